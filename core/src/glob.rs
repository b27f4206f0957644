//! Redis's glob patterns, in time linear in pattern × text: a hostile pattern cannot make it explode.
//!
//! Serves `LOCK.SCAN MATCH`, `KEYS`, `PSUBSCRIBE` and the proxy's routes.

/// Whether `text` matches `pattern`: `*`, `?`, `[a-c]`, `[^a]` and `\x`, as in Redis.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to resume when the text does not go on as the pattern wants: behind the last `*`, one byte further on.
    let mut resume: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            resume = Some((p + 1, t));
            p += 1;
            continue;
        }
        if let Some(next) = match_one(pattern, p, text[t]) {
            p = next;
            t += 1;
            continue;
        }
        match resume {
            Some((after_star, start)) => {
                p = after_star;
                t = start + 1;
                resume = Some((after_star, start + 1));
            }
            None => return false,
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Matches one byte against the pattern's element at `p`; answers where the next element begins.
fn match_one(pattern: &[u8], p: usize, byte: u8) -> Option<usize> {
    match *pattern.get(p)? {
        b'?' => Some(p + 1),
        b'[' => {
            let (hit, next) = match_class(pattern, p + 1, byte);
            hit.then_some(next)
        }
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte).then_some(p + 2),
        literal => (literal == byte).then_some(p + 1),
    }
}

/// A class from behind its `[`: whether it holds `byte`, and where the pattern goes on. An unclosed class ends with the pattern.
fn match_class(pattern: &[u8], mut p: usize, byte: u8) -> (bool, usize) {
    let negated = pattern.get(p) == Some(&b'^');
    if negated {
        p += 1;
    }
    let mut hit = false;
    loop {
        match pattern.get(p) {
            None => break,
            Some(b']') => {
                p += 1;
                break;
            }
            Some(b'\\') if p + 1 < pattern.len() => {
                hit |= pattern[p + 1] == byte;
                p += 2;
            }
            Some(&low) if pattern.get(p + 1) == Some(&b'-') && p + 2 < pattern.len() => {
                let high = pattern[p + 2];
                let (low, high) = (low.min(high), low.max(high));
                hit |= (low..=high).contains(&byte);
                p += 3;
            }
            Some(&literal) => {
                hit |= literal == byte;
                p += 1;
            }
        }
    }
    (hit != negated, p)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn follows_redis() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("*", "", true),
            ("*", "anything", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            (r"h\*llo", "h*llo", true),
            (r"h\*llo", "hello", false),
            ("wallet:*", "wallet:7", true),
            ("wallet:*", "purse:7", false),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxbyy", false),
            ("[", "[", false),
            ("a[b", "ab", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} on {text}");
        }
    }

    #[test]
    fn hostile_pattern_ends_soon() {
        let pattern = b"a*".repeat(400);
        let text = b"a".repeat(512);
        assert!(matches(&pattern, &text));
        let mut pattern = pattern;
        pattern.push(b'b');
        assert!(!matches(&pattern, &text));
    }
}
