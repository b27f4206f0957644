//! The part of Lua that lock scripts are made of: locals, `if`, `return`, `redis.call`, comparisons, and a loop over `KEYS`.
//! Anything else is not recognised, and the script runs in the VM.

use super::lexer::{Lexer, Token};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr<'a> {
    Nil,
    Bool(bool),
    Number(f64),
    Text(&'a [u8]),
    Local(&'a [u8]),
    /// `KEYS[n]`
    Key(usize),
    /// `ARGV[n]`
    Arg(usize),
    /// `#KEYS`
    KeyCount,
    ToNumber(Box<Expr<'a>>),
    Call {
        protected: bool,
        words: Vec<Expr<'a>>,
        line: u32,
    },
    StatusReply(&'a [u8]),
    ErrorReply(&'a [u8]),
    Not(Box<Expr<'a>>),
    And(Box<Expr<'a>>, Box<Expr<'a>>),
    Or(Box<Expr<'a>>, Box<Expr<'a>>),
    Equal(Box<Expr<'a>>, Box<Expr<'a>>),
    Add(Box<Expr<'a>>, Box<Expr<'a>>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stat<'a> {
    Local(&'a [u8], Expr<'a>),
    Assign(&'a [u8], Expr<'a>),
    Call(Expr<'a>),
    If {
        arms: Vec<(Expr<'a>, Vec<Stat<'a>>)>,
        otherwise: Vec<Stat<'a>>,
    },
    /// `for index, key in ipairs(KEYS) do … end`
    EachKey {
        index: &'a [u8],
        key: &'a [u8],
        body: Vec<Stat<'a>>,
    },
    Block(Vec<Stat<'a>>),
    Return(Expr<'a>),
}

/// Names that mean what they mean.
const FIXED: [&[u8]; 6] = [b"redis", b"server", b"KEYS", b"ARGV", b"ipairs", b"tonumber"];
const KEYWORDS: [&[u8]; 21] = [
    b"and",
    b"break",
    b"do",
    b"else",
    b"elseif",
    b"end",
    b"false",
    b"for",
    b"function",
    b"if",
    b"in",
    b"local",
    b"nil",
    b"not",
    b"or",
    b"repeat",
    b"return",
    b"then",
    b"true",
    b"until",
    b"while",
];
/// Lock scripts are short; a longer one is none.
const TOKENS_MAX: usize = 400;
const DEPTH_MAX: usize = 20;

/// The statements of a script; `None` where it says anything else.
pub(super) fn parse(code: &[u8]) -> Option<Vec<Stat<'_>>> {
    let mut lexer = Lexer::new(code);
    let mut tokens = Vec::new();
    while let Some(token) = lexer.next_token() {
        tokens.push((token, lexer.line()));
        if tokens.len() > TOKENS_MAX {
            return None;
        }
    }
    let mut parser = Parser { tokens: &tokens, at: 0, depth: 0 };
    let block = parser.block()?;
    (parser.at == tokens.len()).then_some(block)
}

struct Parser<'t, 'a> {
    tokens: &'t [(Token<'a>, u32)],
    at: usize,
    depth: usize,
}

impl<'a> Parser<'_, 'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|(token, _)| *token)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).map_or(0, |(_, line)| *line)
    }

    fn is_word(&self, word: &[u8]) -> bool {
        self.peek() == Some(Token::Word(word))
    }

    fn take(&mut self, token: Token<'_>) -> Option<()> {
        (self.peek()? == token).then(|| self.at += 1)
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.take(Token::Word(word))
    }

    fn sign(&mut self, sign: &[u8]) -> Option<()> {
        self.take(Token::Sign(sign))
    }

    /// A name that is a local, or may become one.
    fn name(&mut self) -> Option<&'a [u8]> {
        let Some(Token::Word(name)) = self.peek() else { return None };
        if FIXED.contains(&name) || KEYWORDS.contains(&name) {
            return None;
        }
        self.at += 1;
        Some(name)
    }

    fn deeper<T>(&mut self, part: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth == DEPTH_MAX {
            return None;
        }
        self.depth += 1;
        let parsed = part(self);
        self.depth -= 1;
        parsed
    }

    fn block(&mut self) -> Option<Vec<Stat<'a>>> {
        self.deeper(|parser| {
            let mut stats = Vec::new();
            loop {
                while parser.sign(b";").is_some() {}
                match parser.peek() {
                    None | Some(Token::Word(b"end" | b"else" | b"elseif")) => return Some(stats),
                    Some(Token::Word(b"return")) => {
                        parser.at += 1;
                        stats.push(parser.returned()?);
                        let _ = parser.sign(b";");
                        // Nothing may stand behind it.
                        return Some(stats);
                    }
                    Some(_) => stats.push(parser.stat()?),
                }
            }
        })
    }

    fn returned(&mut self) -> Option<Stat<'a>> {
        Some(Stat::Return(match self.peek() {
            None | Some(Token::Word(b"end" | b"else" | b"elseif") | Token::Sign(b";")) => Expr::Nil,
            Some(_) => self.expr()?,
        }))
    }

    fn stat(&mut self) -> Option<Stat<'a>> {
        match self.peek()? {
            Token::Word(b"local") => {
                self.at += 1;
                let name = self.name()?;
                let value = if self.sign(b"=").is_some() { self.expr()? } else { Expr::Nil };
                Some(Stat::Local(name, value))
            }
            Token::Word(b"if") => self.conditional(),
            Token::Word(b"for") => self.each_key(),
            Token::Word(b"do") => {
                self.at += 1;
                let block = self.block()?;
                self.word(b"end")?;
                Some(Stat::Block(block))
            }
            Token::Word(b"redis" | b"server") => {
                let call = self.primary()?;
                matches!(call, Expr::Call { .. }).then_some(Stat::Call(call))
            }
            Token::Word(_) => {
                let name = self.name()?;
                self.sign(b"=")?;
                Some(Stat::Assign(name, self.expr()?))
            }
            Token::Text(_) | Token::Number(_) | Token::Sign(_) => None,
        }
    }

    fn conditional(&mut self) -> Option<Stat<'a>> {
        let mut arms = Vec::new();
        let mut otherwise = Vec::new();
        // `if` or `elseif`.
        self.at += 1;
        loop {
            let condition = self.expr()?;
            self.word(b"then")?;
            arms.push((condition, self.block()?));
            if self.word(b"elseif").is_some() {
                continue;
            }
            if self.word(b"else").is_some() {
                otherwise = self.block()?;
            }
            self.word(b"end")?;
            return Some(Stat::If { arms, otherwise });
        }
    }

    fn each_key(&mut self) -> Option<Stat<'a>> {
        self.word(b"for")?;
        let index = self.name()?;
        self.sign(b",")?;
        let key = self.name()?;
        self.word(b"in")?;
        self.word(b"ipairs")?;
        self.sign(b"(")?;
        self.word(b"KEYS")?;
        self.sign(b")")?;
        self.word(b"do")?;
        let body = self.block()?;
        self.word(b"end")?;
        Some(Stat::EachKey { index, key, body })
    }

    fn expr(&mut self) -> Option<Expr<'a>> {
        self.deeper(|parser| {
            let mut left = parser.conjunction()?;
            while parser.word(b"or").is_some() {
                left = Expr::Or(Box::new(left), Box::new(parser.conjunction()?));
            }
            Some(left)
        })
    }

    fn conjunction(&mut self) -> Option<Expr<'a>> {
        let mut left = self.comparison()?;
        while self.word(b"and").is_some() {
            left = Expr::And(Box::new(left), Box::new(self.comparison()?));
        }
        Some(left)
    }

    fn comparison(&mut self) -> Option<Expr<'a>> {
        let mut left = self.sum()?;
        loop {
            if self.sign(b"==").is_some() {
                left = Expr::Equal(Box::new(left), Box::new(self.sum()?));
            } else if self.sign(b"~=").is_some() {
                left = Expr::Not(Box::new(Expr::Equal(Box::new(left), Box::new(self.sum()?))));
            } else {
                return Some(left);
            }
        }
    }

    fn sum(&mut self) -> Option<Expr<'a>> {
        let mut left = self.unary()?;
        while self.sign(b"+").is_some() {
            left = Expr::Add(Box::new(left), Box::new(self.unary()?));
        }
        Some(left)
    }

    fn unary(&mut self) -> Option<Expr<'a>> {
        if self.is_word(b"not") {
            self.at += 1;
            return self.deeper(|parser| Some(Expr::Not(Box::new(parser.unary()?))));
        }
        if self.sign(b"-").is_some() {
            let Expr::Number(value) = self.primary()? else { return None };
            return Some(Expr::Number(-value));
        }
        if self.sign(b"#").is_some() {
            return self.word(b"KEYS").map(|()| Expr::KeyCount);
        }
        self.primary()
    }

    fn primary(&mut self) -> Option<Expr<'a>> {
        let line = self.line();
        let token = self.peek()?;
        if let Token::Word(name) = token {
            if !FIXED.contains(&name) && !KEYWORDS.contains(&name) {
                self.at += 1;
                return Some(Expr::Local(name));
            }
        }
        self.at += 1;
        Some(match token {
            Token::Text(text) => Expr::Text(text?),
            Token::Number(digits) => Expr::Number(whole(digits)?),
            Token::Word(b"nil") => Expr::Nil,
            Token::Word(b"true") => Expr::Bool(true),
            Token::Word(b"false") => Expr::Bool(false),
            Token::Word(b"KEYS") => Expr::Key(self.index()?),
            Token::Word(b"ARGV") => Expr::Arg(self.index()?),
            Token::Word(b"tonumber") => {
                self.sign(b"(")?;
                let value = self.expr()?;
                self.sign(b")")?;
                Expr::ToNumber(Box::new(value))
            }
            Token::Word(b"redis" | b"server") => self.redis(line)?,
            Token::Sign(b"(") => {
                let inner = self.expr()?;
                self.sign(b")")?;
                inner
            }
            Token::Word(_) | Token::Sign(_) => return None,
        })
    }

    fn index(&mut self) -> Option<usize> {
        self.sign(b"[")?;
        let Some(Token::Number(digits)) = self.peek() else { return None };
        self.at += 1;
        self.sign(b"]")?;
        whole(digits).filter(|index| *index >= 1.0).map(|index| index as usize)
    }

    fn redis(&mut self, line: u32) -> Option<Expr<'a>> {
        self.sign(b".")?;
        let Some(Token::Word(function)) = self.peek() else { return None };
        self.at += 1;
        self.sign(b"(")?;
        let mut words = vec![self.expr()?];
        while self.sign(b",").is_some() {
            words.push(self.expr()?);
        }
        self.sign(b")")?;
        Some(match (function, &words[..]) {
            (b"call", _) => Expr::Call { protected: false, words, line },
            (b"pcall", _) => Expr::Call { protected: true, words, line },
            (b"status_reply", [Expr::Text(text)]) => Expr::StatusReply(text),
            (b"error_reply", [Expr::Text(text)]) => Expr::ErrorReply(text),
            _ => return None,
        })
    }
}

/// A number without a point.
fn whole(digits: &[u8]) -> Option<f64> {
    let digits = std::str::from_utf8(digits).ok()?;
    let plain = !digits.is_empty() && digits.len() < 16 && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}
