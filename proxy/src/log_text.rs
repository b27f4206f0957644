//! What goes into the log: one event is one line, whatever clients call their locks.
//!
//! Names from outside are shown with [`Escaped`], which also bounds them. [`OneLine`] is behind every event, those of libraries too:
//! a control character that got into one is escaped there, so nobody can end a line and write one of his own.

use std::fmt::{self, Write as _};
use std::io::{self, Write};

/// Bytes of a name that are shown.
const SHOWN_BYTES_MAX: usize = 256;

/// A name from a client or a peer, as part of a line: control characters, separators of lines and text that changes the
/// direction of writing are escaped, bytes that are no UTF-8 shown as `\xNN`.
#[derive(Clone, Copy)]
pub struct Escaped<'a>(pub &'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(SHOWN_BYTES_MAX)];
        for chunk in shown.utf8_chunks() {
            chunk.valid().chars().try_for_each(|letter| match letter {
                '\\' => f.write_str("\\\\"),
                letter if is_harmless(letter) => f.write_char(letter),
                letter => write!(f, "{}", letter.escape_default()),
            })?;
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        match self.0.len() - shown.len() {
            0 => Ok(()),
            more => write!(f, "… ({more} bytes more)"),
        }
    }
}

impl fmt::Debug for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn is_harmless(letter: char) -> bool {
    let turns_text =
        matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !letter.is_control() && !turns_text && !matches!(letter, '\u{2028}' | '\u{2029}')
}

/// Writes each event as one line. The log gives it a whole event at a time.
pub struct OneLine<W>(pub W);

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let body = event.strip_suffix(b"\n").unwrap_or(event);
        // A tab harms nothing. The second byte of U+0080 to U+009F is above 0x7f: looked for as text.
        let is_clean = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte < 0x7f);
        if body.iter().all(is_clean)
            || std::str::from_utf8(body).is_ok_and(|text| text.chars().all(is_harmless))
        {
            self.0.write_all(event)?;
            return Ok(event.len());
        }
        let mut line = String::with_capacity(body.len() + 32);
        for chunk in body.utf8_chunks() {
            for letter in chunk.valid().chars() {
                match is_harmless(letter) || letter == '\t' {
                    true => line.push(letter),
                    false => line.extend(letter.escape_default()),
                }
            }
            for byte in chunk.invalid() {
                let _ = write!(line, "\\x{byte:02x}");
            }
        }
        line.push('\n');
        self.0.write_all(line.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &[u8] = b"a\nb\x1b[31mc\r\x00\xff\xc2\x85d\\n\xe2\x80\xa8\xe2\x80\xae";

    #[test]
    fn a_name_is_a_part_of_one_line() {
        let shown = Escaped(HOSTILE).to_string();
        assert_eq!(shown, "a\\nb\\u{1b}[31mc\\r\\u{0}\\xff\\u{85}d\\\\n\\u{2028}\\u{202e}");
        assert_eq!(Escaped("grün:1".as_bytes()).to_string(), "grün:1");
        let long = Escaped(&[b'x'; 10_000]).to_string();
        assert!(long.len() < 300 && long.ends_with("(9744 bytes more)"), "{long}");
    }

    #[test]
    fn an_event_is_one_line_whatever_is_in_it() {
        let mut log = OneLine(Vec::new());
        log.write_all(b"plain event\n").unwrap();
        log.write_all(&[HOSTILE, b"\n"].concat()).unwrap();
        log.write_all("grün\ttab\n".as_bytes()).unwrap();
        let text = String::from_utf8(log.0).unwrap();
        assert_eq!(text.lines().count(), 3);
        assert!(text.starts_with("plain event\na\\nb\\u{1b}[31mc"));
        assert!(!text.contains('\x1b') && !text.contains('\r') && text.ends_with("grün\ttab\n"));
    }
}
