//! From the text a client sent to the text Luau compiles.
//!
//! One pass over the tokens, no line is moved: `KEYS`, `ARGV` and the guard of generic loops become parameters of the
//! chunk, and what stands behind `in` goes through the guard, because Luau, other than Lua 5.1, would walk a bare table in
//! an order that nodes need not share. Luau's own syntax that could hide such a loop is refused, as Lua 5.1 would.

/// The guard's name inside scripts. No script may use it.
const GUARD: &str = "__redfence_each";

/// What the first line `#!lua …` of a script asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    pub(super) no_writes: bool,
}

/// The text to compile and the flags, or the error line without its position.
pub(super) fn prepare(body: &[u8]) -> Result<(Vec<u8>, Flags), String> {
    let (flags, code_at) = shebang(body)?;
    let code = &body[code_at..];
    let mut out = Vec::with_capacity(code.len() + 128);
    out.extend_from_slice(format!("local KEYS, ARGV, {GUARD} = ...; ").as_bytes());
    let mut copied = 0;
    for (at, text) in edits(code).map_err(|error| format!("user_script:{}: {}", error.line, error.text))? {
        out.extend_from_slice(&code[copied..at]);
        out.extend_from_slice(text.as_bytes());
        copied = at;
    }
    out.extend_from_slice(&code[copied..]);
    Ok((out, flags))
}

/// `#!lua [name=…] [flags=a,b]`; answers where the code begins: at the end of that line, so that lines keep their numbers.
fn shebang(body: &[u8]) -> Result<(Flags, usize), String> {
    let mut flags = Flags::default();
    if !body.starts_with(b"#!") {
        return Ok((flags, 0));
    }
    let end = body.iter().position(|byte| *byte == b'\n').ok_or("Invalid script shebang")?;
    let line = String::from_utf8_lossy(&body[2..end]).into_owned();
    let mut words = line.split_ascii_whitespace();
    match words.next() {
        Some("lua") => {}
        other => return Err(format!("Unexpected engine in script shebang: {}", other.unwrap_or(""))),
    }
    for word in words {
        let Some(names) = word.strip_prefix("flags=") else {
            return Err(format!("Unknown lua shebang option: {word}"));
        };
        for name in names.split(',').filter(|name| !name.is_empty()) {
            match name {
                "no-writes" => flags.no_writes = true,
                "allow-oom" | "allow-stale" | "no-cluster" | "allow-cross-slot-keys" => {}
                _ => return Err(format!("Unexpected flag in script shebang: {name}")),
            }
        }
    }
    Ok((flags, end))
}

struct SyntaxError {
    line: usize,
    text: String,
}

/// What is open at a point of the text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    /// A block that ends with `end` or `until`.
    Block,
    /// `for … in`, its `do` still to come.
    In,
    /// A table constructor.
    Brace,
}

/// Where to insert what.
fn edits(code: &[u8]) -> Result<Vec<(usize, String)>, SyntaxError> {
    let mut edits = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    let mut before: Token<'_> = Token::Start;
    let mut tokens = Tokens { code, at: 0 };
    while let Some((token, from)) = tokens.next() {
        let refuse = |text: String| {
            let line = 1 + code[..from].iter().filter(|byte| **byte == b'\n').count();
            Err(SyntaxError { line, text })
        };
        match token {
            Token::Word(b"if") if before.wants_expression(open.last() == Some(&Open::Brace)) => {
                return refuse("unexpected symbol near 'if'".into());
            }
            Token::Word(b"function" | b"if" | b"repeat") => open.push(Open::Block),
            Token::Word(b"in") => {
                open.push(Open::In);
                edits.push((tokens.at, format!(" {GUARD}(")));
            }
            Token::Word(b"do") => {
                if open.last() == Some(&Open::In) {
                    open.pop();
                    edits.push((from, ") ".into()));
                }
                open.push(Open::Block);
            }
            Token::Word(b"end" | b"until") if open.last() == Some(&Open::Block) => {
                open.pop();
            }
            Token::Word(word) if word == GUARD.as_bytes() => {
                return refuse(format!("the name '{GUARD}' is reserved"));
            }
            Token::Sign(b'`') => return refuse("unexpected symbol near '`'".into()),
            Token::Sign(b'{') => open.push(Open::Brace),
            Token::Sign(b'}') if open.last() == Some(&Open::Brace) => {
                open.pop();
            }
            Token::Start | Token::Word(_) | Token::Value | Token::Sign(_) => {}
        }
        before = token;
    }
    Ok(edits)
}

#[derive(Clone, Copy)]
enum Token<'a> {
    Start,
    /// A name or a keyword.
    Word(&'a [u8]),
    /// A string or a number.
    Value,
    /// One byte of an operator or a bracket.
    Sign(u8),
}

impl Token<'_> {
    /// Whether an `if` behind this token is Luau's if-expression, which Lua 5.1 does not know.
    fn wants_expression(self, in_braces: bool) -> bool {
        match self {
            Token::Start | Token::Value => false,
            Token::Word(word) => matches!(word, b"return" | b"and" | b"or" | b"not" | b"in"),
            Token::Sign(b')' | b']' | b'}') => false,
            Token::Sign(b';') => in_braces,
            // The end of a vararg function's last expression: `...`.
            Token::Sign(b'.') => true,
            Token::Sign(_) => true,
        }
    }
}

struct Tokens<'a> {
    code: &'a [u8],
    at: usize,
}

impl<'a> Tokens<'a> {
    /// The next token and where it begins; `at` is where it ends.
    fn next(&mut self) -> Option<(Token<'a>, usize)> {
        loop {
            let from = self.at;
            let byte = *self.code.get(from)?;
            let token = match byte {
                b if b.is_ascii_whitespace() || b == 0x0b => {
                    self.at += 1;
                    continue;
                }
                b'-' if self.code[from..].starts_with(b"--") => {
                    self.comment();
                    continue;
                }
                b'"' | b'\'' => {
                    self.quoted(byte);
                    Token::Value
                }
                b'[' if self.long_bracket(from).is_some() => {
                    self.skip_long(from);
                    Token::Value
                }
                b if b.is_ascii_digit() => {
                    self.skip_while(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'.');
                    Token::Value
                }
                b if b.is_ascii_alphabetic() || b == b'_' => {
                    self.skip_while(|b| b.is_ascii_alphanumeric() || b == b'_');
                    Token::Word(&self.code[from..self.at])
                }
                b'.' if self.code[from..].starts_with(b"...") => {
                    self.at += 3;
                    Token::Value
                }
                other => {
                    self.at += 1;
                    Token::Sign(other)
                }
            };
            return Some((token, from));
        }
    }

    fn skip_while(&mut self, belongs: impl Fn(u8) -> bool) {
        while self.code.get(self.at).is_some_and(|byte| belongs(*byte)) {
            self.at += 1;
        }
    }

    fn comment(&mut self) {
        let from = self.at + 2;
        if self.long_bracket(from).is_some() {
            self.skip_long(from);
        } else {
            self.skip_while(|byte| byte != b'\n');
        }
    }

    fn quoted(&mut self, quote: u8) {
        self.at += 1;
        while let Some(byte) = self.code.get(self.at) {
            self.at += 1;
            match byte {
                // Luau's `\z` also swallows line ends.
                b'\\' if self.code.get(self.at) == Some(&b'z') => {
                    self.at += 1;
                    self.skip_while(|byte| byte.is_ascii_whitespace());
                }
                b'\\' => self.at += 1,
                b'\n' => break,
                _ if *byte == quote => break,
                _ => {}
            }
        }
        self.at = self.at.min(self.code.len());
    }

    /// The level of a long bracket that opens at `at`: the number of `=` in `[==[`.
    fn long_bracket(&self, at: usize) -> Option<usize> {
        let rest = self.code.get(at..)?.strip_prefix(b"[")?;
        let level = rest.iter().take_while(|byte| **byte == b'=').count();
        (rest.get(level) == Some(&b'[')).then_some(level)
    }

    fn skip_long(&mut self, at: usize) {
        let level = self.long_bracket(at).unwrap_or(0);
        let close = [b"]".as_slice(), &vec![b'='; level], b"]"].concat();
        let body = at + level + 2;
        let len = self.code[body..].windows(close.len()).position(|window| window == close);
        self.at = len.map_or(self.code.len(), |len| body + len + close.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(code: &str) -> String {
        let (text, _) = prepare(code.as_bytes()).unwrap();
        String::from_utf8(text).unwrap().split_once("; ").unwrap().1.to_owned()
    }

    #[test]
    fn loops_go_through_the_guard() {
        assert_eq!(
            prepared("for k,v in pairs(t) do f(k) end"),
            "for k,v in __redfence_each( pairs(t) ) do f(k) end"
        );
        assert_eq!(
            prepared("for k in (function() for j in t do end while x do end return next end)(), t do end"),
            "for k in __redfence_each( (function() for j in __redfence_each( t ) do end while x do end return next end)(), t ) do end"
        );
        assert_eq!(prepared("for i = 1, 3 do end"), "for i = 1, 3 do end");
        let untouched =
            "x = 'for k in t do' y = [==[ in do ]] ]==] -- in t do\n--[[ in\n do ]] z = \"\\\" in do\"";
        assert_eq!(prepared(untouched), untouched);
    }

    #[test]
    fn luau_syntax_that_could_hide_a_loop_is_refused() {
        for code in [
            "x = if a then b else c",
            "return if a then b else c",
            "f(if a then b else c)",
            "t = {1; if a then b else c}",
        ] {
            assert!(prepare(code.as_bytes()).is_err(), "{code}");
        }
        for code in [
            "if a then if b then c() end end",
            "f() if a then b() end",
            "x = ... if a then b() end",
            "x = 1; if a then b() end",
            "t = {} if a then b() end",
        ] {
            assert!(prepare(code.as_bytes()).is_ok(), "{code}");
        }
        assert!(prepare(b"x = `{1}`").is_err());
        assert!(prepare(b"local __redfence_each = 1").is_err());
    }

    #[test]
    fn flags_of_the_first_line() {
        assert_eq!(prepare(b"#!lua flags=no-writes\nreturn 1").unwrap().1, Flags { no_writes: true });
        assert!(prepare(b"#!lua flags=bad\nreturn 1").is_err());
        assert!(prepare(b"#!js\nreturn 1").is_err());
        assert!(prepare(b"#!lua").is_err());
    }
}
