//! Which names a session may be attached to without being asked for: a name that the server's routes put in Tier 1 is refused with a
//! session, and an older server would take it to Tier 2, where it could have a second holder.

/// The routes of a proxy: patterns and whether they name the correctness tier, the first match counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Routes(Vec<(Vec<u8>, bool)>);

impl Routes {
    /// As `LOCK.CLUSTER GET route` shows them: `wallet:*=correctness cache:*=efficiency`.
    pub(crate) fn parse(text: &[u8]) -> Option<Routes> {
        let mut routes = Vec::new();
        for route in text.split(|byte| *byte == b' ').filter(|route| !route.is_empty()) {
            let at = route.iter().rposition(|byte| *byte == b'=')?;
            routes.push((route[..at].to_vec(), route[at + 1..].eq_ignore_ascii_case(b"correctness")));
        }
        Some(Routes(routes))
    }

    /// Whether the name is served by Tier 2, where that is the default too.
    pub(crate) fn is_correctness(&self, name: &[u8]) -> bool {
        let route = self.0.iter().find(|(pattern, _)| matches(pattern, name));
        route.is_none_or(|(_, is_correctness)| *is_correctness)
    }
}

/// Redis's glob patterns. Steps back to the last `*` alone, so it takes at most `pattern × text` steps.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut seen) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at + 1, seen));
            at += 1;
            continue;
        }
        if seen == text.len() && at == pattern.len() {
            return true;
        }
        let step = text.get(seen).and_then(|byte| one(&pattern[at.min(pattern.len())..], *byte));
        if let Some(len) = step {
            (at, seen) = (at + len, seen + 1);
            continue;
        }
        match star {
            Some((after, from)) if from < text.len() => {
                star = Some((after, from + 1));
                (at, seen) = (after, from + 1);
            }
            _ => return false,
        }
    }
}

/// The length of the pattern's first element, where it matches the byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern.first()? {
        b'?' => Some(1),
        b'\\' if pattern.len() > 1 => (pattern[1] == byte).then_some(2),
        b'[' => {
            let end = pattern.iter().skip(1).position(|other| *other == b']')? + 1;
            let (is_not, set) = match &pattern[1..end] {
                [b'^', set @ ..] => (true, set),
                set => (false, set),
            };
            let mut is_in = false;
            let mut at = 0;
            while at < set.len() {
                if at + 2 < set.len() && set[at + 1] == b'-' {
                    is_in |= (set[at].min(set[at + 2])..=set[at].max(set[at + 2])).contains(&byte);
                    at += 3;
                } else {
                    is_in |= set[at] == byte;
                    at += 1;
                }
            }
            (is_in != is_not).then_some(end + 1)
        }
        other => (other == byte).then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_route_that_matches_counts() {
        let routes = Routes::parse(b"cache:hot:*=correctness cache:*=efficiency w:*=correctness").unwrap();
        assert!(routes.is_correctness(b"cache:hot:1"));
        assert!(!routes.is_correctness(b"cache:1"));
        assert!(routes.is_correctness(b"w:1"));
        assert!(routes.is_correctness(b"anything"));
        assert!(Routes::parse(b"").unwrap().is_correctness(b"x"));
        assert!(Routes::parse(b"nonsense").is_none());
    }

    #[test]
    fn patterns_are_those_of_redis() {
        for (pattern, text, expected) in [
            ("a*c", "abbc", true),
            ("a*c", "abbd", false),
            ("*", "", true),
            ("?", "", false),
            ("a?c", "abc", true),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("*a*b*c*", "xxaxxbxxcxx", true),
            ("", "", true),
            ("", "a", false),
            ("a", "ab", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
