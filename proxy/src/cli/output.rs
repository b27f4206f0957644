//! What programs print: tables for people with colour on a terminal alone, JSON for programs, one object a line.

use super::exit::Failure;
use super::reply::is_unprintable;
use std::io::{self, IsTerminal, StdoutLock, Write};

/// Longest cell of a table, in characters. JSON shows all of it.
const CELL_CHARS_MAX: usize = 48;

/// How a cell is shown on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Good,
    Bad,
    Faint,
}

/// A line on standard error. Nobody may read there any more (`2>&1 | head`, a logger that died): that ends no program. What a node has
/// sent must not steer the terminal.
pub fn tell(line: &str) {
    let line: String =
        line.chars().map(|c| if is_unprintable(c) && c != '\n' { '\u{fffd}' } else { c }).collect();
    let _ = writeln!(io::stderr(), "{line}");
}

/// A line on standard output, for programs whose work is something else. `println!` panics where nobody reads any more.
pub(crate) fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Standard output. A reader that has gone, as `head` does, is no error.
pub(crate) struct Output {
    out: StdoutLock<'static>,
    has_colour: bool,
    is_closed: bool,
}

impl Output {
    pub(crate) fn new() -> Output {
        let out = io::stdout().lock();
        let has_colour =
            out.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Output { out, has_colour, is_closed: false }
    }

    /// Nobody reads any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        if self.is_closed {
            return Ok(());
        }
        match writeln!(self.out, "{text}").and_then(|()| self.out.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.is_closed = true;
                Ok(())
            }
            Err(error) => Err(format!("cannot write to standard output: {error}").into()),
        }
    }

    pub(crate) fn json(&mut self, value: &serde_json::Value) -> Result<(), Failure> {
        self.line(&json_line(&value.to_string()))
    }

    pub(crate) fn paint(&self, text: &str, style: Style) -> String {
        let code = match style {
            Style::Plain => return text.to_owned(),
            Style::Good => "32",
            Style::Bad => "31",
            Style::Faint => "2",
        };
        if self.has_colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    pub(crate) fn table(&mut self, table: &Table) -> Result<(), Failure> {
        let widths = table.widths();
        let head: Vec<Cell> = table.head.iter().map(|name| Cell::styled(*name, Style::Faint)).collect();
        for row in std::iter::once(&head).chain(&table.rows) {
            let mut text = String::new();
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let padding = if at + 1 == row.len() { 0 } else { width + 2 - cell.text.chars().count() };
                text.push_str(&self.paint(&cell.text, cell.style));
                text.push_str(&" ".repeat(padding));
            }
            self.line(text.trim_end())?;
        }
        Ok(())
    }
}

pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub(crate) fn new(text: impl Into<String>) -> Cell {
        Cell::styled(text, Style::Plain)
    }

    pub(crate) fn styled(text: impl Into<String>, style: Style) -> Cell {
        Cell { text: shortened(text.into()), style }
    }
}

fn shortened(text: String) -> String {
    match text.char_indices().nth(CELL_CHARS_MAX) {
        None => text,
        Some(_) => text.chars().take(CELL_CHARS_MAX - 1).chain(['…']).collect(),
    }
}

/// Columns aligned on the left, two spaces between them.
pub(crate) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub(crate) fn new(head: &[&'static str]) -> Table {
        Table { head: head.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.head.iter().map(|name| name.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.text.chars().count());
            }
        }
        widths
    }
}

/// A text of JSON in one line that steers no terminal. What is not printable can stand only inside its strings, where it may be escaped;
/// control characters below the blank only between its parts.
pub(crate) fn json_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\0'..' ' => line.push(' '),
            // None of them is beyond U+FFFF.
            c if is_unprintable(c) => {
                // Writing to a text cannot fail.
                let _ = std::fmt::Write::write_fmt(&mut line, format_args!("\\u{:04x}", u32::from(c)));
            }
            c => line.push(c),
        }
    }
    line
}

/// Milliseconds as a person reads them.
pub(crate) fn shown_ms(ms: i64) -> String {
    match ms {
        ..=-1 => "-".to_owned(),
        0..1_000 => format!("{ms}ms"),
        1_000..60_000 => format!("{}.{}s", ms / 1_000, ms % 1_000 / 100),
        60_000..3_600_000 => format!("{}m{:02}s", ms / 60_000, ms / 1_000 % 60),
        _ => format!("{}h{:02}m", ms / 3_600_000, ms / 60_000 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_two_units_at_most() {
        for (ms, text) in
            [(7, "7ms"), (29_918, "29.9s"), (61_000, "1m01s"), (90_000_000, "25h00m"), (-1, "-")]
        {
            assert_eq!(shown_ms(ms), text);
        }
    }

    #[test]
    fn a_line_of_json_means_what_it_meant_and_steers_nothing() {
        let name = "a\u{1b}[31m\u{7f}\u{9b}\u{202e}\u{feff}\r\n\"\\é";
        let line = json_line(&serde_json::json!({ "resource": name }).to_string());
        assert!(!line.chars().any(is_unprintable), "{line:?}");
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["resource"], name);
        assert_eq!(json_line("{\n\t\"a\": 1\r\n}"), "{  \"a\": 1  }");
    }

    #[test]
    fn long_cells_are_cut_by_characters() {
        assert_eq!(shortened("é".repeat(48)), "é".repeat(48));
        assert_eq!(shortened("é".repeat(49)), format!("{}…", "é".repeat(47)));
    }
}
