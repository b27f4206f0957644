//! Splitting an inline command into words, as Redis's `sdssplitargs` does: blanks, "double quotes" with escapes, 'single quotes'.

/// The words of `line`; `None` where quotes are not balanced or a closing quote is not followed by a blank.
#[must_use]
pub fn split(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        while let [first, tail @ ..] = rest {
            if !is_space(*first) {
                break;
            }
            rest = tail;
        }
        if rest.is_empty() {
            return Some(words);
        }
        let (word, tail) = take_word(rest)?;
        words.push(word);
        rest = tail;
    }
}

fn take_word(mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut word = Vec::new();
    loop {
        match rest {
            // As in C, where the line is a string: a NUL ends it.
            [] | [0, ..] => return Some((word, &[])),
            [b'"', tail @ ..] => return double_quoted(word, tail),
            [b'\'', tail @ ..] => return single_quoted(word, tail),
            [byte, tail @ ..] if is_space(*byte) => return Some((word, tail)),
            [byte, tail @ ..] => {
                word.push(*byte);
                rest = tail;
            }
        }
    }
}

fn double_quoted(mut word: Vec<u8>, mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    loop {
        match rest {
            [] => return None,
            [b'\\', b'x', high, low, tail @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                word.push(hex(*high) * 16 + hex(*low));
                rest = tail;
            }
            [b'\\', escaped, tail @ ..] => {
                word.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                rest = tail;
            }
            [b'"', tail @ ..] => return closed(word, tail),
            [byte, tail @ ..] => {
                word.push(*byte);
                rest = tail;
            }
        }
    }
}

fn single_quoted(mut word: Vec<u8>, mut rest: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    loop {
        match rest {
            [] => return None,
            [b'\\', b'\'', tail @ ..] => {
                word.push(b'\'');
                rest = tail;
            }
            [b'\'', tail @ ..] => return closed(word, tail),
            [byte, tail @ ..] => {
                word.push(*byte);
                rest = tail;
            }
        }
    }
}

/// A closing quote must be followed by a blank or nothing at all.
fn closed(word: Vec<u8>, tail: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    match tail.first() {
        None => Some((word, tail)),
        Some(byte) if is_space(*byte) => Some((word, tail)),
        Some(_) => None,
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

fn hex(digit: u8) -> u8 {
    (digit as char).to_digit(16).unwrap_or(0) as u8
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn splits_as_redis_does() {
        let words = |line: &str| split(line.as_bytes()).map(|words| words.join(&b'|'));
        assert_eq!(words("PING"), Some(b"PING".to_vec()));
        assert_eq!(words("  SET  a   b "), Some(b"SET|a|b".to_vec()));
        assert_eq!(words(r#"SET a "b c""#), Some(b"SET|a|b c".to_vec()));
        assert_eq!(words(r#"SET a "\x41\n\"""#), Some(b"SET|a|A\n\"".to_vec()));
        assert_eq!(words(r"SET a 'b \' c'"), Some(b"SET|a|b ' c".to_vec()));
        assert_eq!(words(r#"SET a "b"c"#), None);
        assert_eq!(words(r#"SET a "b"#), None);
        assert_eq!(words("SET a 'b"), None);
        assert_eq!(split(b""), Some(vec![]));
        assert_eq!(split(b"ECHO \"\""), Some(vec![b"ECHO".to_vec(), b"".to_vec()]));
    }
}
