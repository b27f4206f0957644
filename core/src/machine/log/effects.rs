//! What a script did on the leader, as the log carries it: its writes, with a hash of each one's result, and its reply.
//!
//! A script never enters the log. The leader runs it once against an overlay over the very state its entry will be applied
//! to; apply executes the recorded writes natively. Where a result's hash differs, leader and log disagree about the
//! state: the client gets `INDETERMINATE`, a counter rises, and all nodes go on, for all of them see the same.

use crate::grammar::errors;
use crate::keyspace::Resp;
use crate::machine::log::bytes::{put_bytes, put_varint, Hash64, Reader};
use crate::machine::log::command::{Db, Words};
use crate::machine::log::fields::{put_argv, read_argv};
use crate::machine::log::reply_codec::{read_reply, write_reply};
use crate::machine::{AdminAct, Applied, Machine};
use crate::reply::Reply;
use crate::script::scripts::sha1;
use crate::types::Member;

/// One script, or one transaction that holds a script.
#[derive(Clone, Debug, PartialEq)]
pub struct Effects<'a> {
    /// The Redlock listener the request came in by, if it was one.
    pub member: Option<Member>,
    /// In the order they happened.
    pub steps: Vec<Step<'a>>,
    pub reply: Reply,
}

/// One thing a script did.
#[derive(Clone, Debug, PartialEq)]
pub enum Step<'a> {
    /// It looked at a key: client tracking wants to know.
    Read { key: &'a [u8] },
    /// It called a command that may write, whether that succeeded or not.
    Write(Write<'a>),
    /// A script body for the cache.
    Load { body: &'a [u8] },
    /// `SCRIPT FLUSH` inside a transaction.
    FlushScripts,
}

/// One command a script called.
#[derive(Clone, Debug, PartialEq)]
pub struct Write<'a> {
    pub db: Db,
    /// The protocol of the script at that moment.
    pub resp: Resp,
    /// Whether keys that the member has not granted were hidden from it.
    pub hiding: bool,
    pub argv: Words<'a>,
    /// Of the command's reply: see [`result_hash`].
    pub result: u64,
}

/// What stands for a command's reply in the log.
#[must_use]
pub fn result_hash(reply: &Reply) -> u64 {
    let mut bytes = Vec::new();
    write_reply(reply, &mut bytes);
    let mut hash = Hash64::new(0);
    hash.write(&bytes);
    hash.finish()
}

mod tag {
    pub(crate) const READ: u8 = 0;
    pub(crate) const WRITE: u8 = 1;
    pub(crate) const LOAD: u8 = 2;
    pub(crate) const FLUSH_SCRIPTS: u8 = 3;
}

pub(crate) fn put_effects(out: &mut Vec<u8>, effects: &Effects<'_>) {
    put_member(out, effects.member);
    put_varint(out, effects.steps.len() as u64);
    effects.steps.iter().for_each(|step| put_step(out, step));
    write_reply(&effects.reply, out);
}

fn put_member(out: &mut Vec<u8>, member: Option<Member>) {
    match member {
        None => out.push(0),
        Some(member) => {
            out.push(1);
            put_varint(out, member.0);
        }
    }
}

fn put_step(out: &mut Vec<u8>, step: &Step<'_>) {
    match step {
        Step::Read { key } => {
            out.push(tag::READ);
            put_bytes(out, key);
        }
        Step::Write(write) => {
            out.push(tag::WRITE);
            let resp = match write.resp {
                Resp::Two => 0,
                Resp::Three => 1,
            };
            out.push(resp | u8::from(write.hiding) << 1);
            put_varint(out, u64::from(write.db));
            out.extend_from_slice(&write.result.to_le_bytes());
            put_argv(out, &write.argv);
        }
        Step::Load { body } => {
            out.push(tag::LOAD);
            put_bytes(out, body);
        }
        Step::FlushScripts => out.push(tag::FLUSH_SCRIPTS),
    }
}

pub(crate) fn read_effects<'a>(reader: &mut Reader<'a>) -> Option<Effects<'a>> {
    let member = if reader.flag()? { Some(Member(reader.varint()?)) } else { None };
    let mut steps = Vec::new();
    for _ in 0..reader.varint()? {
        steps.push(step(reader)?);
    }
    Some(Effects { member, steps, reply: read_reply(reader)? })
}

fn step<'a>(reader: &mut Reader<'a>) -> Option<Step<'a>> {
    Some(match reader.u8()? {
        tag::READ => Step::Read { key: reader.bytes()? },
        tag::WRITE => {
            let bits = reader.u8().filter(|bits| *bits < 4)?;
            let resp = if bits & 1 == 0 { Resp::Two } else { Resp::Three };
            let (db, result) = (reader.varint_u32()?, reader.u64_fixed()?);
            Step::Write(Write { db, resp, hiding: bits & 2 != 0, argv: read_argv(reader)?, result })
        }
        tag::LOAD => Step::Load { body: reader.bytes()? },
        tag::FLUSH_SCRIPTS => Step::FlushScripts,
        _ => return None,
    })
}

/// Writes effects down while a script runs, in the form the log carries.
#[cfg(feature = "scripts")]
#[derive(Default)]
pub(crate) struct Recorder {
    bytes: Vec<u8>,
    count: u64,
    /// Names noted as read since the last write: once is enough.
    read: std::collections::BTreeSet<::bytes::Bytes>,
}

/// A point to go back to.
#[cfg(feature = "scripts")]
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    len: usize,
    count: u64,
}

#[cfg(feature = "scripts")]
impl Recorder {
    pub(crate) fn read(&mut self, key: &[u8]) {
        if !self.read.contains(key) {
            self.read.insert(::bytes::Bytes::copy_from_slice(key));
            self.push(&Step::Read { key });
        }
    }

    pub(crate) fn push(&mut self, step: &Step<'_>) {
        match step {
            Step::Read { .. } => {}
            Step::Write(_) | Step::Load { .. } | Step::FlushScripts => self.read.clear(),
        }
        put_step(&mut self.bytes, step);
        self.count += 1;
    }

    /// Bytes so far.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark { len: self.bytes.len(), count: self.count }
    }

    /// What was recorded since then never was.
    pub(crate) fn rewind(&mut self, mark: Mark) {
        self.bytes.truncate(mark.len);
        self.count = mark.count;
        self.read.clear();
    }

    /// The encoded [`Effects`], behind the command's tag.
    pub(crate) fn finish(self, member: Option<Member>, reply: &Reply, out: &mut Vec<u8>) {
        put_member(out, member);
        put_varint(out, self.count);
        out.extend_from_slice(&self.bytes);
        write_reply(reply, out);
    }
}

impl Machine {
    /// How many scripts had writes that came out differently than on the leader.
    #[must_use]
    pub fn differing_effects(&self) -> u64 {
        self.counters.differing_effects
    }

    fn note_admin_act(&self, write: &Write<'_>, out: &mut Applied) {
        let act = write.argv.first().and_then(|name| AdminAct::named(name));
        if let (Some(act), Some(id)) = (act, self.acting) {
            if !out.admin_acts.contains(&(id, act)) {
                out.admin_acts.push((id, act));
            }
        }
    }

    /// Applies what a script did.
    pub(crate) fn effects(&mut self, effects: &Effects<'_>, out: &mut Applied) -> Reply {
        let mut differs = false;
        for step in &effects.steps {
            match step {
                Step::Read { key } => self.note_name_read(key, out),
                Step::Write(write) => {
                    self.note_admin_act(write, out);
                    let reply = self.run_write(effects.member, write, out);
                    differs |= result_hash(&reply) != write.result;
                }
                Step::Load { body } => self.keep_script(sha1(body), body),
                Step::FlushScripts => self.scripts.flush(),
            }
        }
        if differs {
            self.counters.differing_effects += 1;
            debug_assert!(false, "a script's write came out differently than on the leader: {effects:?}");
            return errors::effects_differ().into();
        }
        effects.reply.clone()
    }
}
