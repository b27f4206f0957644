//! Bytes from a client → the words of one command. A small parser of our own, because requests are flat and strangers write them.
//!
//! It keeps its place between reads, so a frame that trickles in is scanned once; it remembers where words are and never
//! allocates from a declared length. What it accepts, and the text of protocol errors, is Redis's own. A frame too large to hold is
//! taken in pieces, [`Step::Large`], then [`RequestParser::stream`]: handed on where it is meant for the upstream Redis,
//! dropped where Redfence itself would answer it ([`RequestParser::excess`] says why), so that it costs an error and not the
//! connection.
//! Called by `connection` alone.

use crate::resp::inline;
use redfence_core::keyspace::table;
use redfence_core::limits;
use redfence_core::reply::Refusal;
use smallvec::SmallVec;
use std::borrow::Cow;

/// Words in one command that Redfence itself answers.
pub const ITEMS_MAX: usize = limits::WORDS_MAX;
/// Bytes in one word of it.
pub const BULK_BYTES_MAX: usize = limits::WORD_BYTES_MAX;
/// Bytes in one word of a command that carries a script.
pub const SCRIPT_BYTES_MAX: usize = limits::SCRIPT_BYTES_MAX;
/// Bytes in a whole frame that is held in memory. A command takes fewer bytes in the log than here.
pub const FRAME_BYTES_MAX: usize = limits::REQUEST_BYTES_MAX;
/// Longest inline command, and longest header line, as in Redis.
pub const INLINE_BYTES_MAX: usize = 64 * 1024;
/// What a client may send before it has said who it is, as in Redis.
pub const UNAUTHENTICATED_ITEMS_MAX: usize = 10;
pub const UNAUTHENTICATED_BULK_BYTES_MAX: usize = 16 * 1024;
/// Redis's own limits, for what streams through.
const REDIS_ITEMS_MAX: i64 = i32::MAX as i64;
const REDIS_BULK_BYTES_MAX: i64 = 512 * 1024 * 1024;

/// Who is sending, and what stands behind us: decides the limits.
#[derive(Clone, Copy, Debug)]
pub struct ParseLimits {
    pub authenticated: bool,
    /// Whether a command of this name may be handed on in pieces.
    pub may_stream: fn(&[u8]) -> bool,
}

/// Why the connection must end. The text goes out as `-ERR Protocol error: …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtocolError(pub Cow<'static, str>);

/// What the bytes so far amount to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// More bytes are needed.
    Incomplete,
    /// A whole command: `words` knows where it is, `len` bytes long.
    Command { len: usize },
    /// A whole inline command: its words are in `take_inline_words`.
    Inline { len: usize },
    /// Nothing: an empty line or an empty array of `len` bytes.
    Nothing { len: usize },
    /// A command too large to hold. `words` has those that came before (none, where the name itself is too large); `seen` bytes of
    /// the frame were looked at.
    Large { seen: usize },
}

/// Which limit a command is beyond that Redfence itself would have answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Excess {
    Words {
        count: usize,
    },
    Word {
        bytes: usize,
        bytes_max: usize,
    },
    #[default]
    Frame,
}

impl Excess {
    #[must_use]
    pub fn refusal(self) -> Refusal {
        Refusal::new(match self {
            Excess::Words { count } => {
                format!("ERR a command may have {ITEMS_MAX} words, and this one has {count}; nothing was done; split it")
            }
            Excess::Word { bytes, bytes_max } => format!(
                "ERR a word of this command may have {bytes_max} bytes, and one has {bytes}; nothing was done"
            ),
            Excess::Frame => {
                format!("ERR a command may have {FRAME_BYTES_MAX} bytes in all; nothing was done; split it")
            }
        })
    }
}

/// Where a word is, counted from the first byte of its frame.
pub type Span = (u32, u32);

#[derive(Debug, Default)]
pub struct RequestParser {
    /// Bytes of the frame already scanned.
    at: usize,
    /// Words still to come; `None` before the frame's header is read.
    missing: Option<usize>,
    /// Length of the word whose header was read but whose bytes are not all here.
    bulk: Option<usize>,
    streams: bool,
    excess: Excess,
    words: SmallVec<[Span; 16]>,
    inline_words: Vec<Vec<u8>>,
}

impl RequestParser {
    /// Looks at `frame`, which begins at the first byte of a frame and holds all that has come of it.
    pub fn parse(&mut self, frame: &[u8], limits: ParseLimits) -> Result<Step, ProtocolError> {
        if self.missing.is_none() {
            match frame.first() {
                None => return Ok(Step::Incomplete),
                Some(b'*') => {
                    if let Some(step) = self.read_header(frame, limits)? {
                        return Ok(step);
                    }
                }
                Some(_) => return self.read_inline(frame),
            }
        }
        self.read_words(frame, limits)
    }

    /// Whether no frame has begun.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.missing.is_none() && self.at == 0
    }

    /// The spans of the words of the command just read.
    #[must_use]
    pub fn words(&self) -> &[Span] {
        &self.words
    }

    /// The words of the inline command just read.
    #[must_use]
    pub fn take_inline_words(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.inline_words)
    }

    /// Forgets the frame: the next byte begins a new one. Big tables are given back.
    pub fn reset(&mut self) {
        self.at = 0;
        self.missing = None;
        self.bulk = None;
        self.streams = false;
        self.excess = Excess::default();
        if self.words.spilled() && self.words.capacity() > 64 {
            self.words = SmallVec::new();
        } else {
            self.words.clear();
        }
        self.inline_words.clear();
    }

    /// How many words the frame declared, once its header was read.
    #[must_use]
    pub fn declared_words(&self) -> usize {
        self.words.len() + self.missing.unwrap_or(0)
    }

    /// After [`Step::Large`]: which limit the frame is beyond, if Redfence itself is to answer it.
    #[must_use]
    pub fn excess(&self) -> Excess {
        self.excess
    }

    /// After [`Step::Large`]: whether the frame may be handed on in pieces.
    #[must_use]
    pub fn may_stream(&self) -> bool {
        self.streams
    }

    fn read_header(&mut self, frame: &[u8], limits: ParseLimits) -> Result<Option<Step>, ProtocolError> {
        if let Some((count, len)) = short_number(&frame[1..]).filter(|_| limits.authenticated) {
            self.begin_words(1 + len, count);
            return Ok(None);
        }
        let Some((line, next)) = header_line(frame, 0, "too big mbulk count string")? else {
            return Ok(Some(Step::Incomplete));
        };
        let count = integer(&line[1..]).filter(|count| *count <= REDIS_ITEMS_MAX);
        let count = count.ok_or(ProtocolError(Cow::Borrowed("invalid multibulk length")))?;
        if count <= 0 {
            return Ok(Some(Step::Nothing { len: next }));
        }
        if !limits.authenticated && count > UNAUTHENTICATED_ITEMS_MAX as i64 {
            return Err(ProtocolError(Cow::Borrowed("unauthenticated multibulk length")));
        }
        self.begin_words(next, count as usize);
        Ok(None)
    }

    fn begin_words(&mut self, at: usize, count: usize) {
        self.at = at;
        self.missing = Some(count);
    }

    fn read_words(&mut self, frame: &[u8], limits: ParseLimits) -> Result<Step, ProtocolError> {
        while self.missing != Some(0) {
            let len = match self.bulk {
                Some(len) => len,
                None => match self.read_bulk_header(frame, limits)? {
                    BulkHeader::Incomplete => return Ok(Step::Incomplete),
                    BulkHeader::TooLarge(excess) => return Ok(self.large(excess)),
                    BulkHeader::Read(len) => len,
                },
            };
            // Redis takes the two bytes behind a word for granted, whatever they are. So do we, or the two would disagree.
            if frame.len() < self.at + len + 2 {
                return Ok(Step::Incomplete);
            }
            self.words.push((self.at as u32, len as u32));
            self.at += len + 2;
            self.bulk = None;
            self.missing = self.missing.map(|missing| missing - 1);
            if self.words.len() == 1 {
                let (start, len) = self.words[0];
                self.learn_limits(&frame[start as usize..][..len as usize], limits);
            }
            let too_many = self.words.len() == 1 && self.declared_words() > ITEMS_MAX;
            if too_many || self.at > FRAME_BYTES_MAX {
                let count = self.declared_words();
                return Ok(self.large(if too_many { Excess::Words { count } } else { Excess::Frame }));
            }
        }
        Ok(Step::Command { len: self.at })
    }

    fn large(&mut self, excess: Excess) -> Step {
        self.excess = excess;
        Step::Large { seen: self.at }
    }

    fn read_bulk_header(&mut self, frame: &[u8], limits: ParseLimits) -> Result<BulkHeader, ProtocolError> {
        let Some(kind) = frame.get(self.at) else {
            return Ok(BulkHeader::Incomplete);
        };
        if let Some((len, digits)) = short_number(&frame[self.at + 1..]).filter(|_| *kind == b'$') {
            self.at += 1 + digits;
            self.bulk = Some(len);
            return Ok(BulkHeader::Read(len));
        }
        let Some((line, next)) = header_line(frame, self.at, "too big bulk count string")? else {
            // Redis waits for the whole line before it looks at the first byte; only then is a wrong one wrong.
            return Ok(BulkHeader::Incomplete);
        };
        if *kind != b'$' {
            let shown = if kind.is_ascii_graphic() || *kind == b' ' { *kind as char } else { '?' };
            return Err(ProtocolError(Cow::Owned(format!("expected '$', got '{shown}'"))));
        }
        let len = integer(&line[1..]).filter(|len| (0..=REDIS_BULK_BYTES_MAX).contains(len));
        let len = len.ok_or(ProtocolError(Cow::Borrowed("invalid bulk length")))? as usize;
        if !limits.authenticated && len > UNAUTHENTICATED_BULK_BYTES_MAX {
            return Err(ProtocolError(Cow::Borrowed("unauthenticated bulk length")));
        }
        if len > BULK_BYTES_MAX {
            let bytes_max = self.word_bytes_max(frame);
            if len > bytes_max {
                return Ok(BulkHeader::TooLarge(Excess::Word { bytes: len, bytes_max }));
            }
            if next + len > FRAME_BYTES_MAX {
                return Ok(BulkHeader::TooLarge(Excess::Frame));
            }
        }
        self.at = next;
        self.bulk = Some(len);
        Ok(BulkHeader::Read(len))
    }

    /// How many bytes the next word may have, which has more than most may.
    #[cold]
    fn word_bytes_max(&self, frame: &[u8]) -> usize {
        let Some((start, len)) = self.words.first() else { return BULK_BYTES_MAX };
        let name = &frame[*start as usize..][..*len as usize];
        match table::find(name) {
            Some(row) if row.is(table::SCRIPT) => SCRIPT_BYTES_MAX,
            Some(_) | None => BULK_BYTES_MAX,
        }
    }

    fn learn_limits(&mut self, name: &[u8], limits: ParseLimits) {
        self.streams = limits.authenticated && (limits.may_stream)(name);
    }

    fn read_inline(&mut self, frame: &[u8]) -> Result<Step, ProtocolError> {
        let Some(newline) = memchr::memchr(b'\n', &frame[self.at..]).map(|found| self.at + found) else {
            if frame.len() > INLINE_BYTES_MAX {
                return Err(ProtocolError(Cow::Borrowed("too big inline request")));
            }
            self.at = frame.len();
            return Ok(Step::Incomplete);
        };
        if newline > INLINE_BYTES_MAX {
            return Err(ProtocolError(Cow::Borrowed("too big inline request")));
        }
        let line = frame[..newline].strip_suffix(b"\r").unwrap_or(&frame[..newline]);
        let words =
            inline::split(line).ok_or(ProtocolError(Cow::Borrowed("unbalanced quotes in request")))?;
        let len = newline + 1;
        if words.is_empty() {
            return Ok(Step::Nothing { len });
        }
        self.inline_words = words;
        Ok(Step::Inline { len })
    }

    /// After [`Step::Large`]: how many of the bytes at the front of `bytes` still belong to the frame, and whether it ends with them.
    /// `bytes` begins where the last call stopped (the first call: at `seen`).
    pub fn stream(&mut self, bytes: &[u8]) -> Result<(usize, bool), ProtocolError> {
        let mut taken = 0;
        loop {
            if let Some(left) = self.bulk {
                let step = left.min(bytes.len() - taken);
                taken += step;
                if step < left {
                    self.bulk = Some(left - step);
                    return Ok((taken, false));
                }
                self.bulk = None;
                self.missing = self.missing.map(|missing| missing - 1);
            }
            if self.missing == Some(0) {
                return Ok((taken, true));
            }
            let rest = &bytes[taken..];
            if rest.is_empty() {
                return Ok((taken, false));
            }
            let Some((line, next)) = header_line(rest, 0, "too big bulk count string")? else {
                return Ok((taken, false));
            };
            if rest[0] != b'$' {
                return Err(ProtocolError(Cow::Borrowed("expected '$'")));
            }
            let len = integer(&line[1..]).filter(|len| (0..=REDIS_BULK_BYTES_MAX).contains(len));
            let len = len.ok_or(ProtocolError(Cow::Borrowed("invalid bulk length")))?;
            self.bulk = Some(len as usize + 2);
            taken += next;
        }
    }
}

enum BulkHeader {
    Incomplete,
    TooLarge(Excess),
    Read(usize),
}

/// The words of a whole frame that a parser has been through, whatever its size. Fewer where it is none.
#[must_use]
pub fn words_of(frame: &[u8]) -> Vec<&[u8]> {
    let mut words = Vec::new();
    let mut header = header_line(frame, 0, "");
    while let Ok(Some((_, at))) = header {
        header = header_line(frame, at, "");
        let Ok(Some((line, start))) = header else { break };
        let len = line.strip_prefix(b"$").and_then(integer).and_then(|len| usize::try_from(len).ok());
        let Some(word) = len.and_then(|len| frame.get(start..start.checked_add(len)?)) else { break };
        words.push(word);
        header = Ok(Some((line, start + word.len() + 2)));
    }
    words
}

/// The line that begins at `at`, without its end, and where the next begins. As in Redis the end is `\r` and one more byte.
fn header_line<'a>(
    frame: &'a [u8],
    at: usize,
    too_big: &'static str,
) -> Result<Option<(&'a [u8], usize)>, ProtocolError> {
    let rest = frame.get(at..).unwrap_or_default();
    match memchr::memchr(b'\r', &rest[..rest.len().min(INLINE_BYTES_MAX + 1)]) {
        Some(end) if rest.len() >= end + 2 => Ok(Some((&rest[..end], at + end + 2))),
        Some(_) => Ok(None),
        None if rest.len() > INLINE_BYTES_MAX => Err(ProtocolError(Cow::Borrowed(too_big))),
        None => Ok(None),
    }
}

/// A number of one to four digits at the front of `text` and the length of its line: nearly all headers have one. What is not that
/// simple, or not all there, is left to [`header_line`].
#[inline]
fn short_number(text: &[u8]) -> Option<(usize, usize)> {
    let (&first, rest) = text.split_first()?;
    if !matches!(first, b'1'..=b'9') {
        return None;
    }
    let mut value = usize::from(first - b'0');
    for (at, byte) in rest.iter().enumerate().take(SHORT_DIGITS_MAX) {
        match byte {
            b'0'..=b'9' => value = 10 * value + usize::from(byte - b'0'),
            b'\r' if at + 1 < rest.len() => return Some((value, at + 3)),
            _ => return None,
        }
    }
    None
}

const SHORT_DIGITS_MAX: usize = 4;
const _: () = {
    let largest = 10_usize.pow(SHORT_DIGITS_MAX as u32) - 1;
    assert!(largest <= UNAUTHENTICATED_BULK_BYTES_MAX && UNAUTHENTICATED_BULK_BYTES_MAX <= BULK_BYTES_MAX);
};

/// Redis's `string2ll`: a sign at most, no blanks, no leading zeros.
fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let value = redfence_core::grammar::words::decimal(digits)?;
    match (negative, value) {
        (true, 0) => None,
        (true, value) => 0i64.checked_sub_unsigned(value),
        (false, value) => i64::try_from(value).ok(),
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
