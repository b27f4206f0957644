//! What was found: rows of figures, goals with their verdicts, and the files in `bench/results/`.
//!
//! Every part answers a [`Findings`]; `all` puts them together. A part that is run alone replaces its own file only.

use crate::options::Options;
use crate::plot::Plot;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::path::Path;

/// One target under one load.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Row {
    pub(crate) part: String,
    pub(crate) target: String,
    pub(crate) clients: usize,
    pub(crate) per_s: f64,
    /// The median of the turns: what a disk or a machine that stood still for a part of them does not change.
    pub(crate) median_per_s: f64,
    /// From asking for a lock to having it, unless the part says otherwise.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) longest_us: f64,
    /// Release, or the hand-over of a hot lock.
    pub(crate) second_p50_us: f64,
    pub(crate) second_p99_us: f64,
    /// Processor time a unit of work, of all the target's servers and of the load.
    pub(crate) server_cpu_us: f64,
    pub(crate) load_cpu_us: f64,
    pub(crate) counted: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) left_out: Option<String>,
}

/// A figure of its own, such as bytes a lock.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) part: String,
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
}

/// A goal, and what came out.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Goal {
    pub(crate) name: String,
    pub(crate) found: f64,
    pub(crate) limit: f64,
    pub(crate) at_least: bool,
    pub(crate) met: bool,
}

#[derive(Default, Serialize)]
pub(crate) struct Findings {
    pub(crate) rows: Vec<Row>,
    pub(crate) figures: Vec<Figure>,
    pub(crate) goals: Vec<Goal>,
    #[serde(skip)]
    pub(crate) plots: Vec<(String, Plot)>,
}

impl Findings {
    pub(crate) fn absorb(&mut self, other: Findings) {
        self.rows.extend(other.rows);
        self.figures.extend(other.figures);
        self.goals.extend(other.goals);
        self.plots.extend(other.plots);
    }

    pub(crate) fn figure(&mut self, part: &str, name: &str, value: f64, unit: &str) {
        println!("  {name}: {} {unit}", shown(value));
        self.figures.push(Figure { part: part.into(), name: name.into(), value, unit: unit.into() });
    }

    /// Nothing is said where a side of the comparison is missing.
    pub(crate) fn goal_at_least(&mut self, name: &str, found: Option<f64>, limit: f64) {
        self.goal(name, found, limit, true);
    }

    pub(crate) fn goal_at_most(&mut self, name: &str, found: Option<f64>, limit: f64) {
        self.goal(name, found, limit, false);
    }

    fn goal(&mut self, name: &str, found: Option<f64>, limit: f64, at_least: bool) {
        let Some(found) = found.filter(|found| found.is_finite()) else {
            eprintln!("  not compared, one side is missing: {name}");
            return;
        };
        let met = if at_least { found >= limit } else { found <= limit };
        self.goals.push(Goal { name: name.into(), found, limit, at_least, met });
    }

    pub(crate) fn row(&self, part: &str, target: &str, clients: usize) -> Option<&Row> {
        let is_it = |row: &&Row| row.part == part && row.target == target && row.clients == clients;
        self.rows.iter().find(is_it).filter(|row| row.left_out.is_none() && row.counted > 0)
    }

    /// How many times as much the first does.
    pub(crate) fn ratio(&self, part: &str, clients: usize, ours: &str, theirs: &str) -> Option<f64> {
        Some(self.row(part, ours, clients)?.per_s / self.row(part, theirs, clients)?.per_s)
    }

    /// The same by the median of the turns.
    pub(crate) fn median_ratio(&self, part: &str, clients: usize, ours: &str, theirs: &str) -> Option<f64> {
        Some(self.row(part, ours, clients)?.median_per_s / self.row(part, theirs, clients)?.median_per_s)
    }
}

pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| target | clients | per second | p50 us | p99 us | longest us | second p50 us | second p99 us | server CPU us | load CPU us |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for row in rows {
        if let Some(reason) = &row.left_out {
            text.push_str(&format!(
                "| {} | {} | left out: {reason} | | | | | | | |\n",
                row.target, row.clients
            ));
            continue;
        }
        let figures = [
            row.per_s,
            row.p50_us,
            row.p99_us,
            row.longest_us,
            row.second_p50_us,
            row.second_p99_us,
            row.server_cpu_us,
            row.load_cpu_us,
        ];
        let figures: Vec<String> = figures.iter().map(|figure| shown(*figure)).collect();
        text.push_str(&format!("| {} | {} | {} |\n", row.target, row.clients, figures.join(" | ")));
    }
    text
}

pub(crate) fn goals_table(goals: &[Goal]) -> String {
    let mut text = String::from("| goal | found | asked | |\n| --- | ---: | ---: | --- |\n");
    for goal in goals {
        let sign = if goal.at_least { "≥" } else { "≤" };
        let verdict = if goal.met { "met" } else { "**not met**" };
        text.push_str(&format!(
            "| {} | {} | {sign} {} | {verdict} |\n",
            goal.name,
            shown(goal.found),
            shown(goal.limit)
        ));
    }
    text
}

/// Three digits that count, and no more than are needed.
pub(crate) fn shown(value: f64) -> String {
    match value.abs() {
        zero if zero < 1e-9 => "-".into(),
        small if small < 10.0 => format!("{value:.2}"),
        middle if middle < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// One line that is written over, where somebody looks; nothing in a file.
pub(crate) fn progress(line: &str) {
    let mut error = std::io::stderr();
    if error.is_terminal() {
        let _ = write!(error, "\r\x1b[K{line}");
        let _ = error.flush();
    }
}

/// The machine and the moment, without names of users or places.
#[derive(Serialize)]
pub(crate) struct RunConditions {
    date: String,
    command: String,
    commit: String,
    cores: usize,
    processor: String,
    kernel: String,
    memory_gb: u64,
    versions: Vec<String>,
}

impl RunConditions {
    pub(crate) fn now(part: &str, options: &Options) -> RunConditions {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let value = |text: &str, key: &str| {
            let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
            line.split_once(':').map_or("", |(_, value)| value.trim()).to_string()
        };
        let memory = value(&read("/proc/meminfo"), "MemTotal");
        let kilobytes: u64 = memory.split(' ').next().and_then(|digits| digits.parse().ok()).unwrap_or(0);
        let mut versions = vec![first_line("redis-server", &["--version"])];
        for etcd in std::iter::once(options.etcd()).chain(options.other_etcd()) {
            versions.push(first_line(&etcd.to_string_lossy(), &["--version"]));
        }
        RunConditions {
            date: first_line("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
            command: format!("redfence-bench {part}{}", if options.quick { " --quick" } else { "" }),
            commit: first_line("git", &["describe", "--always", "--dirty"]),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            processor: value(&read("/proc/cpuinfo"), "model name"),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_string(),
            memory_gb: kilobytes.div_ceil(1024 * 1024),
            versions,
        }
    }

    fn shown(&self) -> String {
        format!(
            "`{}` on {}, commit {}; {} cores of {}, {} GB, Linux {}; {}.\n",
            self.command,
            self.date,
            self.commit,
            self.cores,
            self.processor,
            self.memory_gb,
            self.kernel,
            self.versions.join("; ")
        )
    }
}

fn first_line(program: &str, arguments: &[&str]) -> String {
    let run =
        std::process::Command::new(program).args(arguments).stderr(std::process::Stdio::null()).output();
    let text = run.map(|run| String::from_utf8_lossy(&run.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("not known").trim().to_string()
}

/// `PART.json`, `PART.md` and the plots. For `all` these are the last full run.
pub(crate) fn write(
    directory: &Path,
    part: &str,
    setting: &RunConditions,
    findings: &Findings,
) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot write {}: {error}", directory.display());
    std::fs::create_dir_all(directory).map_err(failed)?;
    let json = serde_json::json!({ "setting": setting, "findings": findings });
    let json = serde_json::to_string_pretty(&json).map_err(|error| error.to_string())?;
    std::fs::write(directory.join(format!("{part}.json")), json + "\n").map_err(failed)?;
    std::fs::write(directory.join(format!("{part}.md")), page(setting, findings)).map_err(failed)?;
    for (name, plot) in &findings.plots {
        std::fs::write(directory.join(format!("{name}.svg")), plot.svg()).map_err(failed)?;
    }
    println!("written: {part}.md, {part}.json and {} plots", findings.plots.len());
    Ok(())
}

fn page(setting: &RunConditions, findings: &Findings) -> String {
    let mut text = format!("# Last run\n\n{}\n", setting.shown());
    if !findings.goals.is_empty() {
        text.push_str(&format!("## Goals\n\n{}\n", goals_table(&findings.goals)));
    }
    let mut parts: Vec<&str> = findings.rows.iter().map(|row| row.part.as_str()).collect();
    parts.dedup();
    for part in parts {
        let rows: Vec<Row> = findings.rows.iter().filter(|row| row.part == part).cloned().collect();
        text.push_str(&format!("## {part}\n\n{}\n", table(&rows)));
    }
    if !findings.figures.is_empty() {
        text.push_str("## Figures\n\n| part | figure | value |\n| --- | --- | ---: |\n");
        for figure in &findings.figures {
            text.push_str(&format!(
                "| {} | {} | {} {} |\n",
                figure.part,
                figure.name,
                shown(figure.value),
                figure.unit
            ));
        }
        text.push('\n');
    }
    for (name, _) in &findings.plots {
        text.push_str(&format!("![{name}]({name}.svg)\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(target: &str, per_s: f64) -> Row {
        Row { part: "p".into(), target: target.into(), clients: 64, per_s, counted: 1, ..Row::default() }
    }

    #[test]
    fn goals_are_judged_on_their_side() {
        let mut findings = Findings { rows: vec![row("a", 100.0), row("b", 20.0)], ..Findings::default() };
        let ratio = findings.ratio("p", 64, "a", "b");
        findings.goal_at_least("more", ratio, 5.0);
        findings.goal_at_least("much more", ratio, 5.1);
        findings.goal_at_most("less", ratio, 5.0);
        findings.goal_at_most("missing", findings.ratio("p", 64, "a", "nobody"), 1.0);
        assert_eq!(findings.goals.iter().map(|goal| goal.met).collect::<Vec<_>>(), [true, false, true]);
    }

    #[test]
    fn a_target_that_was_left_out_is_compared_with_nothing() {
        let mut lost = row("b", 20.0);
        lost.left_out = Some("gone".into());
        let findings = Findings { rows: vec![row("a", 100.0), lost], ..Findings::default() };
        assert_eq!(findings.ratio("p", 64, "a", "b"), None);
        assert!(table(&findings.rows).contains("left out: gone"));
    }

    #[test]
    fn figures_show_what_counts() {
        assert_eq!([shown(0.0), shown(1.234), shown(45.67), shown(1234.5)], ["-", "1.23", "45.7", "1234"]);
    }
}
