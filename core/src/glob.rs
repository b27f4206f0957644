//! Redis's glob patterns, without backtracking blow-up.
//!
//! Serves `LOCK.SCAN MATCH`, `KEYS`, `SCAN MATCH`, `PSUBSCRIBE` and the proxy's routes. Results are those of Redis's
//! `stringmatchlen`.
//!
//! Usual patterns are matched by a walk that resumes behind the last `*`. It is the fastest, and quadratic for patterns such as
//! `*aaaa…b`. After a number of steps linear in pattern and text the walk is given up, and the pattern's elements are followed all
//! at once as the bits of a few words: at most `text × (pattern / 64 + 1)` word operations, plus one pass over the pattern for each
//! distinct byte of the text. [`matches_counted`] says how much that was, for those who charge for it.

/// Whether `text` matches `pattern`: `*`, `?`, `[a-c]`, `[^a]` and `\x`, as in Redis.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    matches_counted(pattern, text, &mut 0)
}

/// The same; adds the steps it took to `steps`.
#[must_use]
pub fn matches_counted(pattern: &[u8], text: &[u8], steps: &mut u64) -> bool {
    let walk_max = 4 * (pattern.len() + text.len()) as u64 + 64;
    let mut walked = 0;
    let found = walk(pattern, text, walk_max, &mut walked);
    *steps += walked;
    found.unwrap_or_else(|| Elements::of(pattern).matches(text, steps))
}

/// `None`: not decided within `steps_max`.
fn walk(pattern: &[u8], text: &[u8], steps_max: u64, steps: &mut u64) -> Option<bool> {
    let (mut p, mut t) = (0, 0);
    // Where to resume when the text does not go on as the pattern wants: behind the last `*`, one byte further on.
    let mut resume: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            resume = Some((p + 1, t));
            p += 1;
            *steps += 1;
            continue;
        }
        let (hit, next) = match_one(pattern, p, text[t]);
        *steps += (next - p).max(1) as u64;
        if *steps > steps_max {
            return None;
        }
        if hit {
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
            None => return Some(false),
        }
    }
    Some(pattern[p..].iter().all(|byte| *byte == b'*'))
}

/// A pattern as a row of elements, each of which takes one byte, with the places where a `*` stands between them.
struct Elements<'p> {
    pattern: &'p [u8],
    /// Where each element begins.
    starts: Vec<usize>,
    /// One bit a place (the number of elements before it): any bytes may come here.
    stars: Vec<u64>,
}

impl<'p> Elements<'p> {
    fn of(pattern: &'p [u8]) -> Elements<'p> {
        let mut starts = Vec::new();
        let mut stars = vec![0u64; pattern.len() / 64 + 1];
        let mut p = 0;
        while p < pattern.len() {
            if pattern[p] == b'*' {
                stars[starts.len() / 64] |= 1 << (starts.len() % 64);
                p += 1;
            } else {
                starts.push(p);
                p = match_one(pattern, p, 0).1;
            }
        }
        stars.truncate(starts.len() / 64 + 1);
        Elements { pattern, starts, stars }
    }

    /// Bit `i`: the text so far may be the first `i` elements.
    fn matches(&self, text: &[u8], steps: &mut u64) -> bool {
        let words = self.stars.len();
        let mut state = vec![0u64; words];
        state[0] = 1;
        let mut takers: Vec<Option<Box<[u64]>>> = vec![None; 256];
        for byte in text {
            let taken = takers[usize::from(*byte)].get_or_insert_with(|| {
                *steps += self.pattern.len() as u64;
                self.takers_of(*byte)
            });
            *steps += words as u64;
            let (mut carry, mut alive) = (0, 0);
            for ((word, stars), taken) in state.iter_mut().zip(&self.stars).zip(taken.iter()) {
                let moved = *word & taken;
                *word = (moved << 1) | carry | (*word & stars);
                carry = moved >> 63;
                alive |= *word;
            }
            if alive == 0 {
                return false;
            }
        }
        state[self.starts.len() / 64] >> (self.starts.len() % 64) & 1 == 1
    }

    /// The elements that take this byte, one bit each.
    fn takers_of(&self, byte: u8) -> Box<[u64]> {
        let mut takers = vec![0u64; self.stars.len()];
        for (at, start) in self.starts.iter().enumerate() {
            takers[at / 64] |= u64::from(match_one(self.pattern, *start, byte).0) << (at % 64);
        }
        takers.into_boxed_slice()
    }
}

/// Whether the pattern's element at `p` takes this byte, and where the next element begins. None takes anything behind the end.
fn match_one(pattern: &[u8], p: usize, byte: u8) -> (bool, usize) {
    match pattern.get(p) {
        None => (false, p),
        Some(b'?') => (true, p + 1),
        Some(b'[') => match_class(pattern, p + 1, byte),
        Some(b'\\') if p + 1 < pattern.len() => (pattern[p + 1] == byte, p + 2),
        Some(literal) => (*literal == byte, p + 1),
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
    use super::{matches, matches_counted, Elements};

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

    /// Redis 7.0's `stringmatchlen`, as it is written there, for small inputs. Bytes beyond the end of the pattern read as 0.
    fn stringmatchlen(mut pattern: &[u8], mut text: &[u8], skip_longer: &mut bool) -> bool {
        let first = |pattern: &[u8]| pattern.first().copied().unwrap_or(0);
        while !pattern.is_empty() && !text.is_empty() {
            match pattern[0] {
                b'*' => {
                    while pattern.len() > 1 && pattern[1] == b'*' {
                        pattern = &pattern[1..];
                    }
                    if pattern.len() == 1 {
                        return true;
                    }
                    while !text.is_empty() {
                        if stringmatchlen(&pattern[1..], text, skip_longer) {
                            return true;
                        }
                        if *skip_longer {
                            return false;
                        }
                        text = &text[1..];
                    }
                    *skip_longer = true;
                    return false;
                }
                b'?' => text = &text[1..],
                b'[' => {
                    pattern = &pattern[1..];
                    let not = first(pattern) == b'^';
                    if not {
                        pattern = &pattern[1..];
                    }
                    let mut hit = false;
                    let mut closed = true;
                    loop {
                        if pattern.len() >= 2 && pattern[0] == b'\\' {
                            pattern = &pattern[1..];
                            hit |= pattern[0] == text[0];
                        } else if first(pattern) == b']' {
                            break;
                        } else if pattern.is_empty() {
                            closed = false;
                            break;
                        } else if pattern.len() >= 3 && pattern[1] == b'-' {
                            // `char` is signed where Redis usually runs; names are text, so only ASCII is compared here.
                            let (low, high) = (pattern[0].min(pattern[2]), pattern[0].max(pattern[2]));
                            hit |= (low..=high).contains(&text[0]);
                            pattern = &pattern[2..];
                        } else {
                            hit |= pattern[0] == text[0];
                        }
                        pattern = &pattern[1..];
                    }
                    if hit == not {
                        return false;
                    }
                    text = &text[1..];
                    if !closed {
                        return text.is_empty();
                    }
                }
                _ => {
                    if pattern[0] == b'\\' && pattern.len() >= 2 {
                        pattern = &pattern[1..];
                    }
                    if pattern[0] != text[0] {
                        return false;
                    }
                    text = &text[1..];
                }
            }
            pattern = &pattern[1..];
            if text.is_empty() {
                while first(pattern) == b'*' {
                    pattern = &pattern[1..];
                }
                break;
            }
        }
        pattern.is_empty() && text.is_empty()
    }

    /// Both ways of matching against Redis's, over all kinds of small patterns.
    #[test]
    fn agrees_with_stringmatchlen() {
        let mut seed = 7u64;
        let mut draw = |bound: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % bound
        };
        for _ in 0..200_000 {
            let pattern: Vec<u8> = (0..draw(10)).map(|_| b"ab*?[]^-\\c"[draw(10)]).collect();
            let text: Vec<u8> = (0..1 + draw(8)).map(|_| b"abc]-\\"[draw(6)]).collect();
            let expected = stringmatchlen(&pattern, &text, &mut false);
            let shown = || format!("{} on {}", pattern.escape_ascii(), text.escape_ascii());
            assert_eq!(matches(&pattern, &text), expected, "{}", shown());
            assert_eq!(Elements::of(&pattern).matches(&text, &mut 0), expected, "as elements: {}", shown());
        }
    }

    /// The longest pattern and the longest name there can be.
    #[test]
    fn a_hostile_pattern_takes_few_steps() {
        let text = b"a".repeat(64 * 1024);
        for pattern in [
            [&b"*"[..], &b"a".repeat(1022), b"b"].concat(),
            [&b"a*".repeat(511)[..], b"b"].concat(),
            [&b"*"[..], &b"[a-z]".repeat(200), b"b"].concat(),
            [&b"*"[..], &b"?".repeat(1022), b"b"].concat(),
        ] {
            let mut steps = 0;
            assert!(!matches_counted(&pattern, &text, &mut steps));
            assert!(steps < 2_000_000, "{steps} steps for {}", pattern.escape_ascii());
        }
        let mut steps = 0;
        assert!(matches_counted(b"wallet:*", b"wallet:1234", &mut steps));
        assert!(steps < 32, "{steps} steps for a usual pattern");
    }
}
