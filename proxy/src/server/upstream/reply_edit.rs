//! Replies of the upstream Redis that do not pass as they are. They are changed as they stream by: nothing of them is kept but what may be the
//! beginning of a place to change.
//!
//! - `COMMAND`, `COMMAND LIST`, `COMMAND DOCS`: what this node serves itself stands behind what that Redis lists.
//! - `EXEC` of a transaction with commands about the connection: that Redis was sent an `ECHO` of a random word in the place of each, and the
//!   answers stand where it echoes them. Where the transaction was carried out, its `SELECT` holds for the client.

use crate::resp::encode::Encoder;
use crate::server::context::CommandContext;
use bytes::Bytes;
use memchr::memmem;
use std::collections::VecDeque;

#[derive(Debug)]
pub struct ReplyEdit {
    kind: EditKind,
    /// What may be the beginning of a place to change.
    held: Vec<u8>,
}

#[derive(Debug)]
enum EditKind {
    /// The reply is an array, a set or a map. `items`: elements that are added, 2 for a pair.
    Append { items: usize, bytes: Vec<u8> },
    /// `EXEC`, as long as it is not known whether it was carried out.
    Exec(Exec),
    /// The rest passes as it is, and then this.
    Rest { behind: Vec<u8> },
    /// `EXEC` was carried out.
    Carried(Exec),
}

#[derive(Debug)]
struct Exec {
    /// The reply to an `ECHO`.
    mark: Vec<u8>,
    /// In the order of their marks.
    commands: VecDeque<Vec<Bytes>>,
    db: Option<u32>,
}

impl ReplyEdit {
    #[must_use]
    pub fn append(items: usize, bytes: Vec<u8>) -> ReplyEdit {
        ReplyEdit { kind: EditKind::Append { items, bytes }, held: Vec::new() }
    }

    /// `echoed`: the word in place of each command. `db`: that of the last `SELECT`.
    #[must_use]
    pub fn exec(echoed: &[u8], commands: Vec<Vec<Bytes>>, db: Option<u32>) -> ReplyEdit {
        let mut mark = format!("${}\r\n", echoed.len()).into_bytes();
        mark.extend_from_slice(echoed);
        mark.extend_from_slice(b"\r\n");
        ReplyEdit { kind: EditKind::Exec(Exec { mark, commands: commands.into(), db }), held: Vec::new() }
    }
}

impl CommandContext {
    /// Changes what has come of a reply: the end of `self.replies.out`, from `start`.
    pub(in crate::server) fn edit_reply(&mut self, edit: &mut ReplyEdit, start: usize, is_whole: bool) {
        let mut bytes = std::mem::take(&mut edit.held);
        bytes.extend(self.replies.out.drain(start..));
        if let EditKind::Append { items, bytes: behind } = &mut edit.kind {
            match header(&bytes) {
                None if !is_whole => {
                    edit.held = bytes;
                    return;
                }
                // An error, or nothing.
                None | Some(Header { count: None, .. }) => edit.kind = EditKind::Rest { behind: Vec::new() },
                Some(Header { kind, count: Some(count), end }) => {
                    let more = if kind == b'%' { *items / 2 } else { *items };
                    let line = format!("{}{}\r\n", char::from(kind), count + more);
                    self.replies.out.extend_from_slice(line.as_bytes());
                    bytes.drain(..end);
                    edit.kind = EditKind::Rest { behind: std::mem::take(behind) };
                }
            }
        }
        if let EditKind::Exec(exec) = &mut edit.kind {
            if bytes.len() < 2 && !is_whole {
                edit.held = bytes;
                return;
            }
            let is_carried_out = bytes.first() == Some(&b'*') && bytes.get(1) != Some(&b'-');
            edit.kind = match is_carried_out {
                true => EditKind::Carried(Exec {
                    mark: std::mem::take(&mut exec.mark),
                    commands: std::mem::take(&mut exec.commands),
                    db: exec.db,
                }),
                false => EditKind::Rest { behind: Vec::new() },
            };
        }
        match &mut edit.kind {
            EditKind::Carried(exec) => {
                let kept = self.answer_marks(exec, &bytes, is_whole);
                edit.held = bytes.split_off(kept);
                if let (true, Some(db)) = (is_whole, exec.db) {
                    self.set_database(db);
                }
            }
            EditKind::Rest { behind } => {
                self.replies.out.append(&mut bytes);
                if is_whole {
                    self.replies.out.append(behind);
                }
            }
            EditKind::Append { .. } | EditKind::Exec(_) => unreachable!("decided above"),
        }
    }

    /// Answers the commands whose marks have come. Gives the place from which on the bytes may be part of a mark.
    fn answer_marks(&mut self, exec: &mut Exec, bytes: &[u8], is_whole: bool) -> usize {
        let mut at = 0;
        while !exec.commands.is_empty() {
            let Some(found) = memmem::find(&bytes[at..], &exec.mark) else { break };
            self.replies.out.extend_from_slice(&bytes[at..at + found]);
            at += found + exec.mark.len();
            if let Some(argv) = exec.commands.pop_front() {
                let reply = self.queued_client_command(&argv);
                let protocol = self.client.protocol;
                reply.render(&mut Encoder { out: &mut self.replies.out, protocol });
            }
        }
        let is_over = is_whole || exec.commands.is_empty();
        let end =
            if is_over { bytes.len() } else { at.max((bytes.len() + 1).saturating_sub(exec.mark.len())) };
        self.replies.out.extend_from_slice(&bytes[at..end]);
        end
    }
}

struct Header {
    kind: u8,
    /// `None`: it has no elements to count.
    count: Option<usize>,
    /// Where its first element begins.
    end: usize,
}

/// `None`: it has not come whole.
fn header(bytes: &[u8]) -> Option<Header> {
    let kind = *bytes.first()?;
    if !matches!(kind, b'*' | b'~' | b'%') {
        return Some(Header { kind, count: None, end: 0 });
    }
    let end = memmem::find(bytes, b"\r\n")?;
    let count = std::str::from_utf8(&bytes[1..end]).ok().and_then(|digits| digits.parse().ok());
    Some(Header { kind, count, end: end + 2 })
}
