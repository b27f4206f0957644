//! The tokens of a script, where a text begins and ends exactly as Luau reads it.

/// One token. Nothing is checked: what is no Lua is a sign like any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::script) enum Token<'a> {
    /// A name or a keyword.
    Word(&'a [u8]),
    /// What stands between the quotes or brackets; `None` where an escape would have to be read.
    Text(Option<&'a [u8]>),
    Number(&'a [u8]),
    /// An operator or a bracket.
    Sign(&'a [u8]),
}

/// Signs of more than one byte, the longest first.
const LONG_SIGNS: [&[u8]; 6] = [b"...", b"..", b"==", b"~=", b"<=", b">="];

pub(in crate::script) struct Lexer<'a> {
    code: &'a [u8],
    at: usize,
    /// Of the last token; the first line is 1.
    line: u32,
    counted: usize,
}

impl<'a> Lexer<'a> {
    pub(in crate::script) fn new(code: &'a [u8]) -> Lexer<'a> {
        Lexer { code, at: 0, line: 1, counted: 0 }
    }

    pub(in crate::script) fn line(&self) -> u32 {
        self.line
    }

    pub(in crate::script) fn next_token(&mut self) -> Option<Token<'a>> {
        self.skip_blanks();
        let from = self.at;
        let byte = *self.code.get(from)?;
        self.line += self.code[self.counted..from].iter().filter(|byte| **byte == b'\n').count() as u32;
        self.counted = from;
        Some(match byte {
            b'"' | b'\'' => self.quoted(byte),
            b'[' if self.long_level(from).is_some() => self.long_text(from),
            b if b.is_ascii_digit() => self.number(from),
            b'.' if self.code.get(from + 1).is_some_and(u8::is_ascii_digit) => self.number(from),
            b if b.is_ascii_alphabetic() || b == b'_' => {
                self.skip_while(|b| b.is_ascii_alphanumeric() || b == b'_');
                Token::Word(&self.code[from..self.at])
            }
            _ => {
                let rest = &self.code[from..];
                let long = LONG_SIGNS.iter().find(|sign| rest.starts_with(sign));
                self.at += long.map_or(1, |sign| sign.len());
                Token::Sign(&self.code[from..self.at])
            }
        })
    }

    fn skip_while(&mut self, belongs: impl Fn(u8) -> bool) {
        while self.code.get(self.at).is_some_and(|byte| belongs(*byte)) {
            self.at += 1;
        }
    }

    fn skip_blanks(&mut self) {
        loop {
            self.skip_while(|byte| byte.is_ascii_whitespace() || byte == 0x0b);
            if !self.code[self.at..].starts_with(b"--") {
                return;
            }
            self.at += 2;
            match self.long_level(self.at) {
                Some(_) => {
                    self.long_text(self.at);
                }
                None => self.skip_while(|byte| byte != b'\n'),
            }
        }
    }

    fn number(&mut self, from: usize) -> Token<'a> {
        self.skip_while(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.');
        Token::Number(&self.code[from..self.at])
    }

    fn quoted(&mut self, quote: u8) -> Token<'a> {
        self.at += 1;
        let from = self.at;
        let mut plain = true;
        while let Some(byte) = self.code.get(self.at) {
            match byte {
                b'\\' => {
                    plain = false;
                    self.at += 1;
                    self.escape();
                }
                // A text that does not end on its line is none.
                b'\n' | b'\r' => return Token::Text(None),
                _ if *byte == quote => {
                    let text = &self.code[from..self.at];
                    self.at += 1;
                    return Token::Text(plain.then_some(text));
                }
                _ => self.at += 1,
            }
        }
        Token::Text(None)
    }

    /// What stands behind a backslash.
    fn escape(&mut self) {
        match self.code.get(self.at) {
            Some(b'\r') => {
                self.at += 1;
                if self.code.get(self.at) == Some(&b'\n') {
                    self.at += 1;
                }
            }
            Some(b'z') => {
                self.at += 1;
                self.skip_while(|byte| byte.is_ascii_whitespace() || byte == 0x0b);
            }
            Some(_) => self.at += 1,
            None => {}
        }
    }

    /// The level of a long bracket that opens at `at`: the number of `=` in `[==[`.
    fn long_level(&self, at: usize) -> Option<usize> {
        let rest = self.code.get(at..)?.strip_prefix(b"[")?;
        let level = rest.iter().take_while(|byte| **byte == b'=').count();
        (rest.get(level) == Some(&b'[')).then_some(level)
    }

    fn long_text(&mut self, at: usize) -> Token<'a> {
        let level = self.long_level(at).unwrap_or(0);
        let from = at + level + 2;
        let mut close = from;
        while let Some(found) = self.code[close..].iter().position(|byte| *byte == b']') {
            close += found;
            let rest = &self.code[close + 1..];
            let signs = rest.iter().take_while(|byte| **byte == b'=').count();
            if signs == level && rest.get(level) == Some(&b']') {
                self.at = close + level + 2;
                // A first line end is dropped, and all of them are read as one byte: too rare to care.
                let text = &self.code[from..close];
                return Token::Text(
                    Some(text).filter(|text| !text.contains(&b'\n') && !text.contains(&b'\r')),
                );
            }
            close += 1 + signs;
        }
        self.at = self.code.len();
        Token::Text(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(code: &str) -> Vec<String> {
        let mut lexer = Lexer::new(code.as_bytes());
        let show = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        std::iter::from_fn(|| lexer.next_token())
            .map(|token| match token {
                Token::Word(word) | Token::Number(word) | Token::Sign(word) => show(word),
                Token::Text(Some(text)) => format!("'{}'", show(text)),
                Token::Text(None) => "'?'".into(),
            })
            .collect()
    }

    #[test]
    fn blanks_comments_and_quotes_do_not_matter() {
        let expected = ["redis", ".", "call", "(", "'get'", ",", "KEYS", "[", "1", "]", ")", "==", "ARGV"];
        for code in [
            "redis.call('get',KEYS[1])==ARGV",
            "redis . call ( \"get\" , KEYS [ 1 ] ) == ARGV -- and so on",
            "--[==[ ]] ]==] redis.call --\n ([[get]], KEYS[1])\t==\r\nARGV--",
        ] {
            assert_eq!(tokens(code), expected, "{code}");
        }
        assert_eq!(tokens("'a\\'b' x"), ["'?'", "x"]);
        assert_eq!(tokens("\"\\\r\n\" x"), ["'?'", "x"]);
        assert_eq!(tokens("'a\\z  \n b' x"), ["'?'", "x"]);
        assert_eq!(tokens("a...b..c ~= 1.5e3"), ["a", "...", "b", "..", "c", "~=", "1.5e3"]);
    }

    #[test]
    fn lines_are_counted() {
        let mut lexer = Lexer::new(b"a --[[\n\n]] b\n'c'");
        let lines: Vec<u32> = std::iter::from_fn(|| lexer.next_token().map(|_| lexer.line())).collect();
        assert_eq!(lines, [1, 3, 4]);
    }
}
