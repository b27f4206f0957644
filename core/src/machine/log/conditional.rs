//! Compare-and-delete, compare-and-expire and their like, in one logged command: what the script of nearly every lock
//! library comes to. The leader recognises such scripts by what they say (`script::native`) and logs this in their place.
//!
//! One string key is compared with one value; what is done and answered depends on whether it is absent, equal or another
//! string. The answers, errors included, are those the script would give.

use crate::keyspace::{execute, table, Context, Keys, Resp};
use crate::machine::keys::adapter::{Clash, MachineKeys};
use crate::machine::log::bytes::{put_bytes, put_varint, Reader};
use crate::machine::log::command::{Db, Words};
use crate::machine::log::fields::{put_argv, read_argv};
use crate::machine::log::reply_codec::{read_reply, write_reply};
use crate::machine::{Applied, Machine};
use crate::reply::{Refusal, Reply};
use crate::script::scripts::Sha;
use crate::script::{error_at_line, no_script};
use crate::types::Member;
use smallvec::SmallVec;

/// A script that compares one key with one value.
#[derive(Clone, Debug, PartialEq)]
pub struct Conditional<'a> {
    pub db: Db,
    /// The Redlock listener it came in by, if it was one.
    pub member: Option<Member>,
    pub sha: Sha,
    pub script: Script<'a>,
    /// The key, the value it is compared with, and whatever else the writes are made of.
    pub words: Words<'a>,
    /// Where the script reads the key, for errors.
    pub line: u32,
    pub absent: Branch,
    pub equal: Branch,
    pub other: Branch,
}

/// How the client named the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script<'a> {
    /// `EVALSHA`: `NOSCRIPT` unless it is cached.
    BySha,
    /// `EVAL` of a script that was cached when it was logged.
    Known,
    /// `EVAL` of one that was not: it is cached.
    Body(&'a [u8]),
}

/// What happens in one case.
#[derive(Clone, Debug, PartialEq)]
pub struct Branch {
    pub write: Option<Call>,
    pub answer: Answer,
}

/// One command, its words by their places in [`Conditional::words`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub words: SmallVec<[u8; 8]>,
    pub line: u32,
    /// Called by `redis.pcall`: its error does not end the script.
    pub protected: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// What the write answered.
    Result,
    Reply(Reply),
}

const KEY: usize = 0;
const EXPECTED: usize = 1;

pub(crate) fn put_conditional(out: &mut Vec<u8>, conditional: &Conditional<'_>) {
    let Conditional { db, member, sha, script, words, line, absent, equal, other } = conditional;
    let kind = match script {
        Script::BySha => 0,
        Script::Known => 1,
        Script::Body(_) => 2,
    };
    out.push(kind | u8::from(member.is_some()) << 2);
    if let Some(member) = member {
        put_varint(out, member.0);
    }
    put_varint(out, u64::from(*db));
    out.extend_from_slice(sha);
    if let Script::Body(body) = script {
        put_bytes(out, body);
    }
    put_argv(out, words);
    put_varint(out, u64::from(*line));
    [absent, equal, other].into_iter().for_each(|branch| put_branch(out, branch));
}

fn put_branch(out: &mut Vec<u8>, branch: &Branch) {
    let answers_result = matches!(branch.answer, Answer::Result);
    let protected = branch.write.as_ref().is_some_and(|call| call.protected);
    out.push(u8::from(branch.write.is_some()) | u8::from(protected) << 1 | u8::from(answers_result) << 2);
    if let Some(call) = &branch.write {
        put_varint(out, u64::from(call.line));
        put_bytes(out, &call.words);
    }
    if let Answer::Reply(reply) = &branch.answer {
        write_reply(reply, out);
    }
}

pub(crate) fn read_conditional<'a>(reader: &mut Reader<'a>) -> Option<Conditional<'a>> {
    let bits = reader.u8().filter(|bits| *bits < 8)?;
    let member = if bits & 4 != 0 { Some(Member(reader.varint()?)) } else { None };
    let db = reader.varint_u32()?;
    let sha = reader.take(20)?.try_into().ok()?;
    let script = match bits & 3 {
        0 => Script::BySha,
        1 => Script::Known,
        2 => Script::Body(reader.bytes()?),
        _ => return None,
    };
    let words = read_argv(reader).filter(|words| words.len() > EXPECTED)?;
    let line = reader.varint_u32()?;
    let (absent, equal, other) =
        (branch(reader, words.len())?, branch(reader, words.len())?, branch(reader, words.len())?);
    Some(Conditional { db, member, sha, script, words, line, absent, equal, other })
}

fn branch(reader: &mut Reader<'_>, words: usize) -> Option<Branch> {
    let bits = reader.u8().filter(|bits| *bits < 8)?;
    let write = if bits & 1 != 0 {
        let line = reader.varint_u32()?;
        let places = reader.bytes().filter(|places| !places.is_empty())?;
        if places.iter().any(|place| usize::from(*place) >= words) {
            return None;
        }
        Some(Call { words: places.into(), line, protected: bits & 2 != 0 })
    } else {
        None
    };
    let answer = match bits & 4 != 0 {
        true => Answer::Result,
        false => Answer::Reply(read_reply(reader)?),
    };
    if write.is_none() && (bits & 2 != 0 || answer == Answer::Result) {
        return None;
    }
    Some(Branch { write, answer })
}

impl Machine {
    pub(crate) fn conditional(&mut self, conditional: &Conditional<'_>, out: &mut Applied) -> Reply {
        match conditional.script {
            Script::BySha if self.scripts.get(&conditional.sha).is_none() => return no_script().into(),
            Script::BySha | Script::Known => {}
            Script::Body(body) => self.keep_script(conditional.sha, body),
        }
        self.find_fresh(conditional.db, conditional.words[KEY], out);
        let hiding = conditional.member.is_some();
        match self.try_conditional(conditional, hiding, out) {
            (_, Clash::Hidden) => self.try_conditional(conditional, false, out).0,
            (reply, Clash::None | Clash::Refused) => reply,
        }
    }

    fn try_conditional(
        &mut self,
        conditional: &Conditional<'_>,
        hiding: bool,
        out: &mut Applied,
    ) -> (Reply, Clash) {
        let mut keys = MachineKeys::new(self, out).of_member(conditional.member, hiding);
        if conditional.member.is_some() {
            keys.begin();
        }
        let mut cx = Context::new(&mut keys, conditional.db, Resp::Two);
        let reply = conditional.run(&mut cx).unwrap_or_else(Reply::Error);
        let clash = keys.clash();
        if clash != Clash::None {
            keys.rollback();
        }
        (reply, clash)
    }
}

impl<'a> Conditional<'a> {
    pub(crate) fn key(&self) -> &[u8] {
        self.words[KEY]
    }

    /// The commands it may run.
    pub(crate) fn calls(&self) -> impl Iterator<Item = Words<'a>> + '_ {
        let writes =
            [&self.absent, &self.equal, &self.other].into_iter().filter_map(|branch| branch.write.as_ref());
        writes.map(|call| call.words.iter().map(|place| self.words[usize::from(*place)]).collect())
    }

    fn run(&self, cx: &mut Context<'_>) -> Result<Reply, Refusal> {
        let get: [&[u8]; 2] = [b"GET", self.words[KEY]];
        let branch = match cx.string(self.words[KEY]) {
            Err(refusal) => return Err(error_at_line(&refusal.0, &self.sha, self.line)),
            Ok(None) => &self.absent,
            Ok(Some(value)) if value == self.words[EXPECTED] => &self.equal,
            Ok(Some(_)) => &self.other,
        };
        cx.keys.note_read(table::find(b"get").expect("it is in the table"), &get);
        let Some(call) = &branch.write else {
            return Ok(match &branch.answer {
                Answer::Reply(reply) => reply.clone(),
                Answer::Result => unreachable!("decoding checks it"),
            });
        };
        let argv: Words<'_> = call.words.iter().map(|place| self.words[usize::from(*place)]).collect();
        let result = execute(cx, &argv);
        match (result, &branch.answer) {
            (Reply::Error(refusal), _) if !call.protected => {
                Err(error_at_line(&refusal.0, &self.sha, call.line))
            }
            (result, Answer::Result) => Ok(result),
            (_, Answer::Reply(reply)) => Ok(reply.clone()),
        }
    }
}
