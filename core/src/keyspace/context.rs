//! What a command sees while it runs: the keys, the client's database and protocol, and typed looks at values.

use super::errors;
use super::fields::Fields;
use super::keys::{Clock, Db, Deadline, Keys};
use super::list::List;
use super::sorted::Sorted;
use super::value::{Value, View};
use super::{KEY_BYTES_MAX, STRING_BYTES_MAX};
use crate::limits::{COLLECTION_BYTES_MAX, READ_REPLY_BYTES_MAX};
use crate::reply::{Refusal, Reply};
use bytes::Bytes;

/// The client's protocol. A few replies differ in shape, not only in encoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resp {
    #[default]
    Two,
    Three,
}

/// A blocking command found nothing: whom to wait for, how long, and what to answer when the time is up. The reply the
/// command gave beside this is for those who may not wait: scripts and transactions.
#[derive(Clone, Debug, PartialEq)]
pub struct WouldBlock {
    pub keys: Vec<Bytes>,
    /// `None`: for ever.
    pub timeout_ms: Option<u64>,
    pub timed_out: Reply,
}

pub struct Context<'k> {
    pub keys: &'k mut dyn Keys,
    pub db: Db,
    pub resp: Resp,
    /// Set by a blocking command that found nothing.
    pub would_block: Option<WouldBlock>,
    /// How many bytes the reply may still have, and what is said of one that would have more.
    pub replies: ReplyRoom,
    /// The most that the words of this command can add to a collection.
    pub(super) growth_max: usize,
}

/// Room for replies: of one command, or of all commands of a transaction together.
#[derive(Clone, Debug)]
pub struct ReplyRoom {
    pub left: usize,
    pub refusal: Refusal,
}

impl ReplyRoom {
    /// For commands that only read.
    #[must_use]
    pub fn for_reads() -> ReplyRoom {
        ReplyRoom { left: READ_REPLY_BYTES_MAX, refusal: errors::READ_REPLY_TOO_LARGE }
    }

    /// Whether a reply with so many bytes of payload may still be given.
    pub fn check(&self, bytes: usize) -> Result<(), Refusal> {
        if bytes > self.left {
            return Err(self.refusal.clone());
        }
        Ok(())
    }
}

/// Bytes of a string that cost as much as a look at an element.
pub const BYTES_PER_UNIT: usize = 256;
/// And of names that are compared with each other.
const COMPARED_BYTES_PER_UNIT: usize = 1_024;

/// What a command answers.
pub type CommandResult = Result<Reply, Refusal>;

impl<'k> Context<'k> {
    pub fn new(keys: &'k mut dyn Keys, db: Db, resp: Resp) -> Context<'k> {
        let replies = ReplyRoom::for_reads();
        Context { keys, db, resp, would_block: None, replies, growth_max: usize::MAX }
    }

    /// With another room for its reply.
    #[must_use]
    pub fn with_replies(mut self, replies: ReplyRoom) -> Context<'k> {
        self.replies = replies;
        self
    }

    /// A string as a reply. Refused before it is copied where it would not fit.
    pub(super) fn shown(&self, value: Option<&[u8]>) -> Result<Reply, Refusal> {
        match value {
            None => Ok(Reply::Nil),
            Some(bytes) => {
                self.replies.check(bytes.len() + 16)?;
                Ok(Reply::bulk(bytes))
            }
        }
    }

    #[must_use]
    pub fn clock(&self) -> Clock {
        self.keys.clock()
    }

    /// See [`Keys::charge`].
    pub fn charge(&self, units: usize) -> Result<(), Refusal> {
        self.keys.charge(units as u64)
    }

    /// See [`Keys::charge_done`].
    pub fn charge_done(&self, units: usize) -> Result<(), Refusal> {
        self.keys.charge_done(units as u64)
    }

    /// Pays for names of elements that are compared with so many bytes of others. Nothing at cluster version 1.
    pub(super) fn charge_compared(&self, bytes: usize) -> Result<(), Refusal> {
        match self.keys.is_version_1() {
            true => Ok(()),
            false => self.charge(bytes / COMPARED_BYTES_PER_UNIT),
        }
    }

    #[must_use]
    pub fn value(&self, key: &[u8]) -> Option<View<'_>> {
        self.keys.value(self.db, key)
    }

    #[must_use]
    pub fn exists(&self, key: &[u8]) -> bool {
        self.value(key).is_some()
    }

    /// For writes that ask for an absent key: `NX` and its like.
    #[must_use]
    pub fn is_vacant(&self, key: &[u8]) -> bool {
        self.keys.is_vacant(self.db, key)
    }

    pub fn string(&self, key: &[u8]) -> Result<Option<&[u8]>, Refusal> {
        match self.value(key) {
            None => Ok(None),
            Some(View::Str(bytes)) => {
                self.charge(bytes.len() / BYTES_PER_UNIT)?;
                Ok(Some(bytes))
            }
            Some(View::Hash(_) | View::List(_) | View::Set(_) | View::ZSet(_)) => Err(errors::WRONG_TYPE),
        }
    }

    pub fn hash(&self, key: &[u8]) -> Result<Option<&Fields<Bytes>>, Refusal> {
        match self.value(key) {
            None => Ok(None),
            Some(View::Hash(fields)) => Ok(Some(fields)),
            Some(View::Str(_) | View::List(_) | View::Set(_) | View::ZSet(_)) => Err(errors::WRONG_TYPE),
        }
    }

    pub fn list(&self, key: &[u8]) -> Result<Option<&List>, Refusal> {
        match self.value(key) {
            None => Ok(None),
            Some(View::List(items)) => Ok(Some(items)),
            Some(View::Str(_) | View::Hash(_) | View::Set(_) | View::ZSet(_)) => Err(errors::WRONG_TYPE),
        }
    }

    pub fn set(&self, key: &[u8]) -> Result<Option<&Fields<()>>, Refusal> {
        match self.value(key) {
            None => Ok(None),
            Some(View::Set(members)) => Ok(Some(members)),
            Some(View::Str(_) | View::Hash(_) | View::List(_) | View::ZSet(_)) => Err(errors::WRONG_TYPE),
        }
    }

    pub fn zset(&self, key: &[u8]) -> Result<Option<&Sorted>, Refusal> {
        match self.value(key) {
            None => Ok(None),
            Some(View::ZSet(members)) => Ok(Some(members)),
            Some(View::Str(_) | View::Hash(_) | View::List(_) | View::Set(_)) => Err(errors::WRONG_TYPE),
        }
    }

    /// Writes a string, within the limits.
    pub fn put_string(&mut self, key: &[u8], value: &[u8], deadline: Deadline) -> Result<(), Refusal> {
        check_key(key)?;
        if value.len() > STRING_BYTES_MAX {
            return Err(errors::STRING_TOO_LONG);
        }
        // It is compared and copied whole, however little of it is new.
        self.charge(value.len() / BYTES_PER_UNIT)?;
        self.keys.put(self.db, key, Value::str(value), deadline)
    }

    /// Writes a string whose limits, room and work were looked at before.
    pub(super) fn put_checked_string(&mut self, key: &[u8], value: &[u8]) -> Result<(), Refusal> {
        self.keys.put(self.db, key, Value::str(value), Deadline::Never)
    }

    pub fn put(&mut self, key: &[u8], value: Value, deadline: Deadline) -> Result<(), Refusal> {
        check_key(key)?;
        if value.is_empty_collection() {
            self.remove(key);
            return Ok(());
        }
        if let Value::Str(bytes) = &value {
            self.charge(bytes.len() / BYTES_PER_UNIT)?;
        }
        check_collection(&value)?;
        self.keys.put(self.db, key, value, deadline)
    }

    pub fn remove(&mut self, key: &[u8]) -> bool {
        self.keys.remove(self.db, key)
    }

    /// Changes a hash, made if absent. `change` answers whether it changed anything, and its result.
    pub fn change_hash<R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut Fields<Bytes>) -> (bool, R),
    ) -> Result<R, Refusal> {
        self.hash(key)?;
        self.change(key, change, Value::Hash(Fields::default()), |value| match value {
            Value::Hash(fields) => Some(fields),
            Value::Str(_) | Value::List(_) | Value::Set(_) | Value::ZSet(_) => None,
        })
    }

    pub fn change_list<R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut List) -> (bool, R),
    ) -> Result<R, Refusal> {
        self.list(key)?;
        self.change(key, change, Value::List(Box::default()), |value| match value {
            Value::List(items) => Some(&mut **items),
            Value::Str(_) | Value::Hash(_) | Value::Set(_) | Value::ZSet(_) => None,
        })
    }

    pub fn change_set<R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut Fields<()>) -> (bool, R),
    ) -> Result<R, Refusal> {
        self.set(key)?;
        self.change(key, change, Value::Set(Fields::default()), |value| match value {
            Value::Set(members) => Some(members),
            Value::Str(_) | Value::Hash(_) | Value::List(_) | Value::ZSet(_) => None,
        })
    }

    pub fn change_zset<R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut Sorted) -> (bool, R),
    ) -> Result<R, Refusal> {
        self.zset(key)?;
        self.change(key, change, Value::ZSet(Box::default()), |value| match value {
            Value::ZSet(members) => Some(&mut **members),
            Value::Str(_) | Value::Hash(_) | Value::List(_) | Value::Set(_) => None,
        })
    }

    fn change<T, R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut T) -> (bool, R),
        mut empty: Value,
        part: impl Fn(&mut Value) -> Option<&mut T>,
    ) -> Result<R, Refusal> {
        const CHECKED: &str = "the type was checked before";
        check_key(key)?;
        if !self.exists(key) {
            let (changed, result) = change(part(&mut empty).expect(CHECKED));
            if changed && !empty.is_empty_collection() {
                check_collection(&empty)?;
                self.keys.put(self.db, key, empty, Deadline::Never)?;
            }
            return Ok(result);
        }
        let before = self.value(key).map_or(0, View::weight);
        let fits = before.saturating_add(self.growth_max) <= COLLECTION_BYTES_MAX;
        if !fits || !self.keys.may_grow(self.growth_max) {
            return self.change_copy(key, before, |value| change(part(value).expect(CHECKED)));
        }
        let mut change = Some(change);
        let mut result = None;
        self.keys.edit(self.db, key, &mut |value| {
            let change = change.take().expect("an edit runs once");
            let (changed, answer) = change(part(value).expect(CHECKED));
            result = Some(answer);
            changed
        });
        Ok(result.expect("the key was there"))
    }

    /// Near a limit: a copy is changed, and takes the place of the value only if it may.
    fn change_copy<R>(
        &mut self,
        key: &[u8],
        before: usize,
        change: impl FnOnce(&mut Value) -> (bool, R),
    ) -> Result<R, Refusal> {
        let mut copy = self.value(key).expect("the key is there").to_value();
        let (changed, result) = change(&mut copy);
        if let Some(growth) = copy.weight().checked_sub(before).filter(|growth| *growth > 0) {
            check_collection(&copy)?;
            self.keys.room_for(growth)?;
        }
        let mut copy = Some(copy);
        self.keys.edit(self.db, key, &mut |value| {
            *value = copy.take().expect("an edit runs once");
            changed
        });
        Ok(result)
    }
}

fn check_collection(value: &Value) -> Result<(), Refusal> {
    if value.weight() > COLLECTION_BYTES_MAX {
        return Err(errors::COLLECTION_TOO_LARGE);
    }
    Ok(())
}

fn check_key(key: &[u8]) -> Result<(), Refusal> {
    if key.len() > KEY_BYTES_MAX {
        return Err(errors::KEY_TOO_LONG);
    }
    Ok(())
}
