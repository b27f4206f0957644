//! Bytes to the words of a command, and replies to bytes. Small and blocking: one thread reads each connection.

use redfence_core::keyspace::Resp;
use redfence_core::limits::{WORDS_MAX, WORD_BYTES_MAX};
use redfence_core::reply::Sink;
use std::io::{self, BufRead, Read};

const LINE_BYTES_MAX: u64 = 64 * 1024;

/// The next command; `None` where the client has left.
pub(crate) fn read_command(reader: &mut impl BufRead) -> io::Result<Option<Vec<Vec<u8>>>> {
    let Some(line) = read_line(reader)? else { return Ok(None) };
    let Some(count) = line.strip_prefix(b"*") else {
        // An inline command, as people type them.
        let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        return Ok(Some(words.map(<[u8]>::to_vec).collect()));
    };
    let count = number(count, WORDS_MAX, "invalid multibulk length")?;
    let mut words = Vec::new();
    for _ in 0..count {
        let Some(header) = read_line(reader)? else { return Ok(None) };
        let len = header.strip_prefix(b"$").ok_or_else(|| invalid("expected '$'"))?;
        let len = number(len, WORD_BYTES_MAX, "invalid bulk length")?;
        let mut word = Vec::new();
        // Grows with what really comes, whatever was declared.
        if reader.by_ref().take(len as u64).read_to_end(&mut word)? < len || read_line(reader)?.is_none() {
            return Ok(None);
        }
        words.push(word);
    }
    Ok(Some(words))
}

fn read_line(reader: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return if line.len() as u64 >= LINE_BYTES_MAX - 1 {
            Err(invalid("too big inline request"))
        } else {
            Ok(None)
        };
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(Some(line))
}

fn number(text: &[u8], max: usize, what: &str) -> io::Result<usize> {
    let value = std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok());
    let value = value.ok_or_else(|| invalid(what))?;
    let value = usize::try_from(value).unwrap_or(0);
    if value > max {
        return Err(invalid(what));
    }
    Ok(value)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Writes replies to the end of a buffer.
pub(crate) struct Encoder {
    pub(crate) out: Vec<u8>,
    pub(crate) resp: Resp,
}

impl Encoder {
    pub(crate) fn new(resp: Resp) -> Encoder {
        Encoder { out: Vec::new(), resp }
    }

    /// The header of a push: an array in RESP2.
    pub(crate) fn push(&mut self, len: usize) {
        self.by_protocol(&format!("*{len}"), &format!(">{len}"));
    }

    fn is_three(&self) -> bool {
        self.resp == Resp::Three
    }

    fn by_protocol(&mut self, two: &str, three: &str) {
        let text = if self.is_three() { three } else { two };
        self.line(text);
    }

    fn line(&mut self, text: &str) {
        // A line ends at the first CR or LF: one inside the text would forge a reply.
        self.out.extend(text.bytes().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }));
        self.out.extend_from_slice(b"\r\n");
    }
}

impl Sink for Encoder {
    fn nil(&mut self) {
        self.by_protocol("$-1", "_");
    }

    fn nil_array(&mut self) {
        self.by_protocol("*-1", "_");
    }

    fn int(&mut self, value: i64) {
        self.line(&format!(":{value}"));
    }

    fn double(&mut self, value: f64) {
        let text = redfence_core::keyspace::numbers::format_g(value, 17);
        if self.is_three() {
            self.line(&format!(",{text}"));
        } else {
            self.bulk(text.as_bytes());
        }
    }

    fn boolean(&mut self, value: bool) {
        self.by_protocol(&format!(":{}", i64::from(value)), if value { "#t" } else { "#f" });
    }

    fn bulk(&mut self, value: &[u8]) {
        self.line(&format!("${}", value.len()));
        self.out.extend_from_slice(value);
        self.out.extend_from_slice(b"\r\n");
    }

    fn status(&mut self, value: &str) {
        self.line(&format!("+{value}"));
    }

    fn error(&mut self, line: &str) {
        self.line(&format!("-{line}"));
    }

    fn verbatim(&mut self, value: &[u8]) {
        if self.is_three() {
            self.line(&format!("={}", value.len() + 4));
            self.out.extend_from_slice(b"txt:");
            self.out.extend_from_slice(value);
            self.out.extend_from_slice(b"\r\n");
        } else {
            self.bulk(value);
        }
    }

    fn array(&mut self, len: usize) {
        self.line(&format!("*{len}"));
    }

    fn map(&mut self, pairs: usize) {
        self.by_protocol(&format!("*{}", pairs * 2), &format!("%{pairs}"));
    }

    fn set(&mut self, len: usize) {
        self.by_protocol(&format!("*{len}"), &format!("~{len}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(bytes: &[u8]) -> io::Result<Option<Vec<Vec<u8>>>> {
        read_command(&mut &bytes[..])
    }

    #[test]
    fn commands_are_read_as_redis_clients_and_people_write_them() {
        let expected = Some(vec![b"GET".to_vec(), b"a b".to_vec()]);
        assert_eq!(words(b"*2\r\n$3\r\nGET\r\n$3\r\na b\r\n").unwrap(), expected);
        assert_eq!(words(b"PING now\r\n").unwrap(), Some(vec![b"PING".to_vec(), b"now".to_vec()]));
        assert_eq!(words(b"*2\r\n$3\r\nGET\r\n$3\r\na").unwrap(), None);
        assert_eq!(words(b"").unwrap(), None);
    }

    #[test]
    fn declared_lengths_are_limited() {
        assert!(words(b"*99999999\r\n").is_err());
        assert!(words(b"*1\r\n$99999999999\r\n").is_err());
        assert!(words(b"*1\r\n+OK\r\n").is_err());
    }
}
