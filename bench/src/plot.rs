//! Plots as SVG, written by hand: bars side by side, or lines over a logarithmic axis. Readable on light and dark pages.

const WIDTH: f64 = 860.0;
const LABELS_WIDTH: f64 = 300.0;
const BAR_HEIGHT: f64 = 18.0;
const LINE_HEIGHT_PX: f64 = 320.0;
const COLOURS: [&str; 8] =
    ["#c0392b", "#2980b9", "#27ae60", "#8e44ad", "#d68910", "#16a085", "#7f8c8d", "#2c3e50"];

pub(crate) enum Plot {
    Bars { title: String, unit: String, bars: Vec<(String, f64)> },
    Lines { title: String, x_label: String, y_label: String, lines: Vec<(String, Vec<(f64, f64)>)> },
}

impl Plot {
    pub(crate) fn svg(&self) -> String {
        match self {
            Plot::Bars { title, unit, bars } => bars_svg(title, unit, bars),
            Plot::Lines { title, x_label, y_label, lines } => lines_svg(title, x_label, y_label, lines),
        }
    }
}

fn open(height: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"10\" y=\"20\" font-size=\"15\" font-weight=\"bold\">{}</text>\n",
        escaped(title)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Ours are red, everybody else's grey.
fn bars_svg(title: &str, unit: &str, bars: &[(String, f64)]) -> String {
    let height = 50.0 + bars.len() as f64 * (BAR_HEIGHT + 6.0);
    let largest = bars.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let mut svg = open(height, title);
    for (at, (name, value)) in bars.iter().enumerate() {
        let y = 36.0 + at as f64 * (BAR_HEIGHT + 6.0);
        let length = scaled(*value, largest, WIDTH - LABELS_WIDTH - 110.0);
        let colour = if name.starts_with("tier") { COLOURS[0] } else { COLOURS[6] };
        svg.push_str(&format!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{LABELS_WIDTH}\" y=\"{y}\" width=\"{length:.1}\" height=\"{BAR_HEIGHT}\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{}\">{} {}</text>\n",
            LABELS_WIDTH - 8.0,
            y + 13.0,
            escaped(name),
            LABELS_WIDTH + length + 6.0,
            y + 13.0,
            crate::report::shown(*value),
            escaped(unit)
        ));
    }
    svg + "</svg>\n"
}

/// A length in proportion; 0 where there is nothing to compare with.
fn scaled(value: f64, largest: f64, length_max: f64) -> f64 {
    if largest > 0.0 {
        (value / largest).clamp(0.0, 1.0) * length_max
    } else {
        0.0
    }
}

/// Where a value lies between two others, by their logarithms.
fn log_share(value: f64, (low, high): (f64, f64)) -> f64 {
    if high <= low {
        return 0.5;
    }
    ((value.max(low) / low).ln() / (high / low).ln()).clamp(0.0, 1.0)
}

fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let found = values
        .filter(|value| *value > 0.0)
        .fold((f64::MAX, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
    if found.0 > found.1 {
        (1.0, 10.0)
    } else {
        found
    }
}

fn lines_svg(title: &str, x_label: &str, y_label: &str, lines: &[(String, Vec<(f64, f64)>)]) -> String {
    let points = || lines.iter().flat_map(|(_, points)| points.iter());
    let across = bounds(points().map(|(x, _)| *x));
    // From zero: a fall must look as large as it is.
    let top = points().map(|(_, y)| *y).fold(0.0, f64::max) * 1.05;
    let (left, plot_width) = (90.0, WIDTH - 90.0 - 230.0);
    let bottom = 40.0 + LINE_HEIGHT_PX;
    let mut svg = open(bottom + 50.0, title);
    let place = |(x, y): &(f64, f64)| {
        (left + log_share(*x, across) * plot_width, bottom - scaled(*y, top, LINE_HEIGHT_PX))
    };
    svg.push_str(&format!(
        "<path d=\"M{left} 40V{bottom}H{}\" fill=\"none\" stroke=\"#555\"/><text x=\"{left}\" y=\"{}\">{}</text>\
         <text x=\"10\" y=\"36\">{}</text>\n",
        left + plot_width,
        bottom + 40.0,
        escaped(x_label),
        escaped(y_label)
    ));
    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let y = bottom - share * LINE_HEIGHT_PX;
        let value = crate::report::shown(top * share);
        svg.push_str(&format!(
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>\n",
            left - 6.0,
            y + 4.0
        ));
    }
    let mut marks: Vec<f64> = points().map(|(x, _)| *x).collect();
    marks.sort_by(f64::total_cmp);
    marks.dedup();
    for mark in marks {
        let (x, _) = place(&(mark, 0.0));
        svg.push_str(&format!(
            "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{mark}</text>\n",
            bottom + 18.0
        ));
    }
    for (at, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let path: Vec<String> = points.iter().map(&place).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let y = 50.0 + at as f64 * 18.0;
        let x = left + plot_width + 16.0;
        svg.push_str(&format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"3\" fill=\"{colour}\"/><text x=\"{}\" y=\"{y}\">{}</text>\n",
            path.join(" "),
            y - 5.0,
            x + 18.0,
            escaped(name)
        ));
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_keep_their_proportions() {
        assert_eq!(scaled(50.0, 100.0, 400.0), 200.0);
        assert_eq!(scaled(50.0, 0.0, 400.0), 0.0);
        let bars = vec![("tier 2 <x>".to_string(), 10.0), ("etcd".to_string(), 5.0)];
        let svg = Plot::Bars { title: "a & b".into(), unit: "/s".into(), bars }.svg();
        assert!(svg.contains("width=\"450.0\"") && svg.contains("width=\"225.0\""), "{svg}");
        assert!(svg.contains("a &amp; b") && svg.contains("tier 2 &lt;x&gt;"));
    }

    #[test]
    fn a_logarithmic_axis_puts_the_geometric_middle_in_the_middle() {
        assert_eq!(log_share(10.0, (1.0, 100.0)), 0.5);
        assert_eq!(log_share(1.0, (1.0, 100.0)), 0.0);
        assert_eq!(log_share(1_000.0, (1.0, 100.0)), 1.0);
        assert_eq!(log_share(7.0, (7.0, 7.0)), 0.5);
    }

    #[test]
    fn lines_without_points_are_an_empty_plot() {
        let lines = vec![("nothing".to_string(), vec![])];
        let svg = Plot::Lines { title: "t".into(), x_label: "x".into(), y_label: "y".into(), lines }.svg();
        assert!(!svg.contains("NaN") && svg.ends_with("</svg>\n"), "{svg}");
    }
}
