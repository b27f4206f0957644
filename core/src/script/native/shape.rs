//! What a lock script comes to: it is followed three times, for a key that is absent, equal to the value it is compared with,
//! and another string. Where what it does depends on anything else, it is not recognised.

use super::parser::{Expr, Stat};
use crate::keyspace::args::is;
use smallvec::SmallVec;
use std::cell::Cell;

/// How the key is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Absent,
    Equal,
    Other,
}

/// A word of a command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Word<'a> {
    Text(&'a [u8]),
    Number(f64),
    Key(usize),
    Arg(usize),
    /// `tonumber(ARGV[n])`
    ArgNumber(usize),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Written<'a> {
    pub(super) words: SmallVec<[Word<'a>; 6]>,
    pub(super) line: u32,
    pub(super) protected: bool,
}

/// What a script answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Returned<'a> {
    Nil,
    Bool(bool),
    Number(f64),
    Text(&'a [u8]),
    Status(&'a [u8]),
    Error(&'a [u8]),
    /// What the write answered.
    Result,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct BranchShape<'a> {
    pub(super) write: Option<Written<'a>>,
    pub(super) returned: Returned<'a>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shape<'a> {
    pub(super) key: usize,
    pub(super) expected: Word<'a>,
    /// Where the key is read.
    pub(super) line: u32,
    /// Whether it is so only with one key.
    pub(super) for_one_key: bool,
    pub(super) absent: BranchShape<'a>,
    pub(super) equal: BranchShape<'a>,
    pub(super) other: BranchShape<'a>,
}

/// What all three ways must agree on.
#[derive(Default)]
struct Facts<'a> {
    get: Cell<Option<(usize, u32)>>,
    expected: Cell<Option<Word<'a>>>,
    for_one_key: Cell<bool>,
}

pub(super) fn shape<'a>(script: &[Stat<'a>]) -> Option<Shape<'a>> {
    let facts = Facts::default();
    let follow = |case| {
        let mut walk = Walk { case, facts: &facts, locals: Vec::new(), write: None, steps: 0 };
        let returned = match walk.block(script)? {
            Flow::Return(value) => walk.returned(value)?,
            Flow::On => Returned::Nil,
        };
        Some(BranchShape { write: walk.write, returned })
    };
    let (absent, equal, other) = (follow(Case::Absent)?, follow(Case::Equal)?, follow(Case::Other)?);
    let (key, line) = facts.get.get()?;
    Some(Shape {
        key,
        line,
        expected: facts.expected.get()?,
        for_one_key: facts.for_one_key.get(),
        absent,
        equal,
        other,
    })
}

/// A value, as far as it is known.
#[derive(Clone, Copy, PartialEq)]
enum Value<'a> {
    Nil,
    Bool(bool),
    Number(f64),
    Text(&'a [u8]),
    Key(usize),
    Arg(usize),
    ArgNumber(usize),
    Status(&'a [u8]),
    Error(&'a [u8]),
    /// What the key holds: false where it is absent, a string otherwise.
    Token,
    /// What the write answered: never nil and never false.
    Result,
}

enum Flow<'a> {
    On,
    Return(Value<'a>),
}

struct Walk<'f, 'a> {
    case: Case,
    facts: &'f Facts<'a>,
    locals: Vec<(&'a [u8], Value<'a>)>,
    write: Option<Written<'a>>,
    steps: usize,
}

const STEPS_MAX: usize = 1000;

impl<'a> Walk<'_, 'a> {
    fn block(&mut self, stats: &[Stat<'a>]) -> Option<Flow<'a>> {
        let outer = self.locals.len();
        for stat in stats {
            match self.stat(stat)? {
                Flow::On => {}
                Flow::Return(value) => return Some(Flow::Return(value)),
            }
        }
        self.locals.truncate(outer);
        Some(Flow::On)
    }

    fn stat(&mut self, stat: &Stat<'a>) -> Option<Flow<'a>> {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            return None;
        }
        match stat {
            Stat::Local(name, value) => {
                let value = self.value(value)?;
                self.locals.push((name, value));
            }
            Stat::Assign(name, value) => {
                let value = self.value(value)?;
                self.locals.iter_mut().rev().find(|(local, _)| local == name)?.1 = value;
            }
            Stat::Call(call) => {
                self.value(call)?;
            }
            Stat::If { arms, otherwise } => {
                for (condition, block) in arms {
                    if self.is_true(condition)? {
                        return self.block(block);
                    }
                }
                return self.block(otherwise);
            }
            Stat::EachKey { index, key, body } => {
                self.facts.for_one_key.set(true);
                let outer = self.locals.len();
                self.locals.extend([(*index, Value::Number(1.0)), (*key, Value::Key(1))]);
                let flow = self.block(body)?;
                self.locals.truncate(outer);
                return Some(flow);
            }
            Stat::Block(block) => return self.block(block),
            Stat::Return(value) => return Some(Flow::Return(self.value(value)?)),
        }
        Some(Flow::On)
    }

    fn is_true(&mut self, expr: &Expr<'a>) -> Option<bool> {
        let value = self.value(expr)?;
        Some(self.truth(value))
    }

    /// `None` where it depends on whether an argument is a number.
    fn known_truth(&self, value: Value<'a>) -> Option<bool> {
        if let Value::ArgNumber(_) = value {
            return None;
        }
        Some(self.truth(value))
    }

    fn truth(&self, value: Value<'a>) -> bool {
        match value {
            Value::Nil | Value::Bool(false) => false,
            Value::Token => self.case != Case::Absent,
            // Keys and arguments there are none of are not bound at all.
            Value::Bool(true)
            | Value::Number(_)
            | Value::Text(_)
            | Value::Key(_)
            | Value::Arg(_)
            | Value::Status(_)
            | Value::Error(_)
            | Value::Result => true,
            // Nil where the argument is no number; only commands take it, and they check it.
            Value::ArgNumber(_) => true,
        }
    }

    fn value(&mut self, expr: &Expr<'a>) -> Option<Value<'a>> {
        Some(match expr {
            Expr::Nil => Value::Nil,
            Expr::Bool(value) => Value::Bool(*value),
            Expr::Number(value) => Value::Number(*value),
            Expr::Text(text) => Value::Text(text),
            Expr::Local(name) => self.locals.iter().rev().find(|(local, _)| local == name)?.1,
            Expr::Key(index) => Value::Key(*index),
            Expr::Arg(index) => Value::Arg(*index),
            Expr::KeyCount => {
                self.facts.for_one_key.set(true);
                Value::Number(1.0)
            }
            Expr::ToNumber(value) => match self.value(value)? {
                Value::Arg(index) => Value::ArgNumber(index),
                Value::Number(value) => Value::Number(value),
                Value::Nil
                | Value::Bool(_)
                | Value::Text(_)
                | Value::Key(_)
                | Value::ArgNumber(_)
                | Value::Status(_)
                | Value::Error(_)
                | Value::Token
                | Value::Result => return None,
            },
            Expr::Call { protected, words, line } => self.call(*protected, words, *line)?,
            Expr::StatusReply(text) => Value::Status(text),
            Expr::ErrorReply(text) => Value::Error(text),
            Expr::Not(value) => {
                let value = self.value(value)?;
                Value::Bool(!self.known_truth(value)?)
            }
            Expr::And(left, right) => {
                let left = self.value(left)?;
                if self.known_truth(left)? {
                    self.value(right)?
                } else {
                    left
                }
            }
            Expr::Or(left, right) => {
                let left = self.value(left)?;
                if self.known_truth(left)? {
                    left
                } else {
                    self.value(right)?
                }
            }
            Expr::Equal(left, right) => {
                let (left, right) = (self.value(left)?, self.value(right)?);
                Value::Bool(self.equal(left, right)?)
            }
            Expr::Add(left, right) => match (self.value(left)?, self.value(right)?) {
                (Value::Number(left), Value::Number(right)) => Value::Number(left + right),
                _ => return None,
            },
        })
    }

    fn equal(&self, left: Value<'a>, right: Value<'a>) -> Option<bool> {
        match (left, right) {
            (Value::Token, other) | (other, Value::Token) => self.equals_token(other),
            (Value::Result, Value::Nil) | (Value::Nil, Value::Result) => Some(false),
            (Value::Nil | Value::Bool(_) | Value::Number(_) | Value::Text(_), _)
                if matches!(right, Value::Nil | Value::Bool(_) | Value::Number(_) | Value::Text(_)) =>
            {
                Some(left == right)
            }
            _ => None,
        }
    }

    fn equals_token(&self, other: Value<'a>) -> Option<bool> {
        let expected = match other {
            Value::Nil => return Some(false),
            Value::Bool(value) => return Some(!value && self.case == Case::Absent),
            Value::Arg(index) => Word::Arg(index),
            Value::Text(text) => Word::Text(text),
            Value::Number(_)
            | Value::Key(_)
            | Value::ArgNumber(_)
            | Value::Status(_)
            | Value::Error(_)
            | Value::Token
            | Value::Result => return None,
        };
        match self.facts.expected.get() {
            None => self.facts.expected.set(Some(expected)),
            Some(before) if before == expected => {}
            Some(_) => return None,
        }
        Some(self.case == Case::Equal)
    }

    fn call(&mut self, protected: bool, words: &[Expr<'a>], line: u32) -> Option<Value<'a>> {
        let mut values: SmallVec<[Word<'a>; 6]> = SmallVec::new();
        for word in words {
            values.push(match self.value(word)? {
                Value::Text(text) => Word::Text(text),
                Value::Number(value) => Word::Number(value),
                Value::Key(index) => Word::Key(index),
                Value::Arg(index) => Word::Arg(index),
                Value::ArgNumber(index) => Word::ArgNumber(index),
                Value::Nil
                | Value::Bool(_)
                | Value::Status(_)
                | Value::Error(_)
                | Value::Token
                | Value::Result => return None,
            });
        }
        let (&[Word::Text(name), Word::Key(key), ..], None) = (&values[..], &self.write) else { return None };
        if is(name, "GET") && values.len() == 2 && !protected {
            match self.facts.get.get() {
                None => self.facts.get.set(Some((key, line))),
                // Read again: the first one would have failed at its own place.
                Some((before, _)) if before == key => {}
                Some(_) => return None,
            }
            return Some(Value::Token);
        }
        let (known, _) = self.facts.get.get()?;
        if known != key || !is_known_write(name, &values) {
            return None;
        }
        self.write = Some(Written { words: values, line, protected });
        Some(Value::Result)
    }

    fn returned(&self, value: Value<'a>) -> Option<Returned<'a>> {
        Some(match value {
            Value::Nil => Returned::Nil,
            Value::Bool(value) => Returned::Bool(value),
            Value::Number(value) => Returned::Number(value),
            Value::Text(text) => Returned::Text(text),
            Value::Status(text) => Returned::Status(text),
            Value::Error(text) => Returned::Error(text),
            Value::Result => Returned::Result,
            Value::Token if self.case == Case::Absent => Returned::Nil,
            Value::Token | Value::Key(_) | Value::Arg(_) | Value::ArgNumber(_) => return None,
        })
    }
}

/// Commands whose answer is never nil, and that touch no key but their first.
fn is_known_write(name: &[u8], words: &[Word<'_>]) -> bool {
    match words {
        [_, _] => ["DEL", "UNLINK", "PERSIST"].iter().any(|known| is(name, known)),
        [_, _, _] => {
            ["PEXPIRE", "EXPIRE", "PEXPIREAT", "EXPIREAT", "SET"].iter().any(|known| is(name, known))
        }
        [_, _, _, Word::Text(unit), _] => {
            is(name, "SET") && ["PX", "EX", "PXAT", "EXAT"].iter().any(|known| is(unit, known))
        }
        _ => false,
    }
}
