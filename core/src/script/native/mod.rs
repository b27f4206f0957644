//! Scripts that need no VM: compare-and-delete, compare-and-expire and their like, in whatever words.
//!
//! A script is recognised by what it says, not by its hash: blanks, comments, quotes, names of locals, the order of a
//! comparison and the way the branches are put do not matter. What is recognised becomes a native command
//! ([`crate::machine::conditional`]) that gives the answers the script would give; everything else runs.

pub(super) mod lexer;
mod parser;
mod shape;

use super::convert;
use super::redis_api::error_text;
use super::scripts::Sha;
use crate::keyspace::numbers::{format_g, parse_i64};
use crate::keyspace::Db;
use crate::machine::command::Words;
use crate::machine::conditional::{Answer, Branch, Call, Conditional, Script};
use crate::machine::Command;
use crate::reply::{Refusal, Reply};
use crate::types::Member;
use shape::{BranchShape, Returned, Shape, Word};

/// Every command that a recognised script may run, each on the key it names.
pub(super) const COMMANDS_OF_FORMS: &[&str] =
    &["get", "del", "unlink", "persist", "pexpire", "expire", "pexpireat", "expireat", "set"];

/// Scripts longer than this are none of these.
const BODY_BYTES_MAX: usize = 4096;

/// A recognised script: worked out once, bound to each call's keys and arguments.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NativeForm {
    /// Index of the key, counted from 0, and what it is compared with.
    key: usize,
    expected: Part,
    line: u32,
    for_one_key: bool,
    /// What the writes are made of besides.
    parts: Vec<Part>,
    absent: Branch,
    equal: Branch,
    other: Branch,
}

/// Where a word of a write comes from.
#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(Vec<u8>),
    Arg(usize),
    ArgNumber(usize),
}

/// Places of the key and the compared value in a command's words.
const KEY: u8 = 0;
const EXPECTED: u8 = 1;

impl NativeForm {
    /// `None` where the script has to be run.
    pub(super) fn of(body: &[u8]) -> Option<NativeForm> {
        if body.len() > BODY_BYTES_MAX || body.starts_with(b"#!") {
            return None;
        }
        let script = parser::parse(body)?;
        let shape = shape::shape(&script)?;
        let mut form = NativeForm {
            key: shape.key - 1,
            expected: Part::of(&shape.expected)?,
            line: shape.line,
            for_one_key: shape.for_one_key,
            parts: Vec::new(),
            absent: Branch { write: None, answer: Answer::Result },
            equal: Branch { write: None, answer: Answer::Result },
            other: Branch { write: None, answer: Answer::Result },
        };
        form.absent = form.branch(&shape, &shape.absent)?;
        form.equal = form.branch(&shape, &shape.equal)?;
        form.other = form.branch(&shape, &shape.other)?;
        Some(form)
    }

    fn branch(&mut self, shape: &Shape<'_>, outcome: &BranchShape<'_>) -> Option<Branch> {
        let write = match &outcome.write {
            None => None,
            Some(written) => {
                let places =
                    written.words.iter().map(|word| self.place(shape, word)).collect::<Option<_>>()?;
                Some(Call { words: places, line: written.line, protected: written.protected })
            }
        };
        Some(Branch { write, answer: answer(outcome.returned) })
    }

    /// Where a word stands among those of the command.
    fn place(&mut self, shape: &Shape<'_>, word: &Word<'_>) -> Option<u8> {
        if let Word::Key(key) = word {
            return (*key == shape.key).then_some(KEY);
        }
        let part = Part::of(word)?;
        if part == self.expected {
            return Some(EXPECTED);
        }
        let at = self.parts.iter().position(|have| *have == part).unwrap_or_else(|| {
            self.parts.push(part);
            self.parts.len() - 1
        });
        u8::try_from(at + 2).ok()
    }

    /// The command for one call. `None` where this call has to be run: it has other keys or arguments than the form needs.
    pub(super) fn bind<'a>(
        &'a self,
        db: Db,
        member: Option<Member>,
        sha: Sha,
        script: Script<'a>,
        keys: &[&'a [u8]],
        args: &[&'a [u8]],
    ) -> Option<Command<'a>> {
        if self.for_one_key && keys.len() != 1 {
            return None;
        }
        let mut words = Words::new();
        words.push(*keys.get(self.key)?);
        words.push(self.expected.bind(args)?);
        for part in &self.parts {
            words.push(part.bind(args)?);
        }
        Some(Command::Conditional(Box::new(Conditional {
            db,
            member,
            sha,
            script,
            words,
            line: self.line,
            absent: self.absent.clone(),
            equal: self.equal.clone(),
            other: self.other.clone(),
        })))
    }
}

impl Part {
    fn of(word: &Word<'_>) -> Option<Part> {
        Some(match word {
            Word::Text(text) => Part::Text(text.to_vec()),
            Word::Number(value) => Part::Text(format_g(*value, 17).into_bytes()),
            Word::Arg(index) => Part::Arg(index - 1),
            Word::ArgNumber(index) => Part::ArgNumber(index - 1),
            Word::Key(_) => return None,
        })
    }

    fn bind<'a>(&'a self, args: &[&'a [u8]]) -> Option<&'a [u8]> {
        match self {
            Part::Text(text) => Some(text),
            Part::Arg(index) => args.get(*index).copied(),
            // The number a script would make of it is written the same way only where it is whole and not too long.
            Part::ArgNumber(index) => {
                args.get(*index).copied().filter(|text| text.len() < 16 && parse_i64(text).is_some())
            }
        }
    }
}

fn answer(returned: Returned<'_>) -> Answer {
    Answer::Reply(match returned {
        Returned::Result => return Answer::Result,
        Returned::Nil | Returned::Bool(false) => Reply::Nil,
        Returned::Bool(true) => Reply::Int(1),
        Returned::Number(value) => Reply::Int(value as i64),
        Returned::Text(text) => Reply::bulk(text),
        Returned::Status(text) => Reply::Status(convert::one_line(text).into()),
        Returned::Error(text) => Reply::Error(Refusal::new(convert::one_line(&error_text(text)))),
    })
}
