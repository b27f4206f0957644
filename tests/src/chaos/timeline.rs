//! A picture of a run: what was injected, in bars, and what clients saw, in grants and errors a second.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::faults::{FaultKind, InjectedFault};
use super::recorder::{Bucket, BUCKET_MS};

const WIDTH: f64 = 1_400.0;
const LEFT: f64 = 130.0;
const CURVE: f64 = 150.0;
const ROW: f64 = 16.0;
const COLUMNS_MAX: usize = 1_250;

pub fn draw(title: &str, seen: &[Bucket], faults: &[InjectedFault]) -> String {
    let kinds: Vec<FaultKind> =
        faults.iter().map(|fault| fault.kind).collect::<BTreeSet<_>>().into_iter().collect();
    let seconds = (seen.len().max(1) as f64) * BUCKET_MS as f64 / 1e3;
    let scale = (WIDTH - LEFT - 20.0) / seconds;
    let rows_top = 60.0 + 2.0 * (CURVE + 30.0);
    let height = rows_top + kinds.len() as f64 * ROW + 40.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"24\" font-size=\"14\">{title}</text>\n"
    );
    let step = seen.len().div_ceil(COLUMNS_MAX).max(1);
    let rates = |of: fn(&Bucket) -> u32| -> Vec<f64> {
        let chunks = seen.chunks(step);
        chunks
            .map(|part| {
                part.iter().map(|b| f64::from(of(b))).sum::<f64>() * 1e3
                    / (part.len() as f64 * BUCKET_MS as f64)
            })
            .collect()
    };
    let columns_s = step as f64 * BUCKET_MS as f64 / 1e3;
    curve(&mut svg, 50.0, "grants/s", "#2a7a3b", &rates(|bucket| bucket.grants), columns_s * scale);
    curve(&mut svg, 80.0 + CURVE, "errors/s", "#b3261e", &rates(|bucket| bucket.errors), columns_s * scale);
    for (row, kind) in kinds.iter().enumerate() {
        let y = rows_top + row as f64 * ROW;
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            y + 11.0,
            kind.name()
        );
        for fault in faults.iter().filter(|fault| fault.kind == *kind) {
            bar(&mut svg, y, fault.from_ns, fault.healed_ns, scale, "#444");
            bar(&mut svg, y, fault.healed_ns, fault.served_ns, scale, "#e0a030");
        }
    }
    axis(&mut svg, rows_top + kinds.len() as f64 * ROW + 14.0, seconds, scale);
    svg.push_str("</svg>\n");
    svg
}

fn curve(svg: &mut String, top: f64, label: &str, colour: &str, rates: &[f64], step: f64) {
    let most = rates.iter().copied().fold(1.0, f64::max);
    let bottom = top + CURVE;
    let mut path = format!("M{LEFT} {bottom}");
    for (at, rate) in rates.iter().enumerate() {
        let _ = write!(path, " L{:.1} {:.1}", LEFT + at as f64 * step, bottom - rate / most * CURVE);
    }
    let _ = write!(path, " L{:.1} {bottom} Z", LEFT + rates.len().saturating_sub(1) as f64 * step);
    let _ = writeln!(svg, "<path d=\"{path}\" fill=\"{colour}\" fill-opacity=\"0.35\" stroke=\"{colour}\" stroke-width=\"0.7\"/>");
    let x = LEFT - 8.0;
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{}\" text-anchor=\"end\">{most:.0}</text>", top + 8.0);
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{}\" text-anchor=\"end\">{label}</text>", top + CURVE / 2.0);
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{bottom}\" text-anchor=\"end\">0</text>");
}

fn bar(svg: &mut String, y: f64, from_ns: u64, to_ns: u64, scale: f64, colour: &str) {
    let (x, width) = (LEFT + from_ns as f64 / 1e9 * scale, (to_ns - from_ns) as f64 / 1e9 * scale);
    let (top, width, height) = (y + 2.0, width.max(0.8), ROW - 4.0);
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{colour}\"/>"
    );
}

fn axis(svg: &mut String, y: f64, seconds: f64, scale: f64) {
    let every = (seconds / 12.0 / 5.0).ceil() * 5.0;
    let mut at = 0.0;
    while at <= seconds {
        let x = LEFT + at * scale;
        let _ = writeln!(svg, "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"50\" y2=\"{y}\" stroke=\"#ddd\"/>");
        let _ =
            writeln!(svg, "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{at:.0} s</text>", y + 12.0);
        at += every;
    }
    let y = y + 12.0;
    let _ = writeln!(svg, "<text x=\"8\" y=\"{y}\">dark: fault, amber: until all serve</text>");
}
