//! What a connection asks besides locks and keys: greetings, small talk, subscriptions.

use crate::state::{State, WATCHES_MAX};
use redfence_core::keyspace::Resp;
use redfence_core::reply::{Refusal, Reply};

impl State {
    /// `None` where the command is about locks or keys. Inside: the reply, where there is one to send.
    pub(crate) fn front(&mut self, id: u64, name: &str, words: &[Vec<u8>]) -> Option<Option<Reply>> {
        let reply = match name {
            "HELLO" => self.hello(id, words),
            "PING" => words.get(1).map_or(Reply::Status("PONG".into()), Reply::bulk),
            "ECHO" => {
                words.get(1).map_or_else(|| Refusal::new("ERR ECHO needs a message").into(), Reply::bulk)
            }
            "AUTH" => Reply::OK,
            "SELECT" if words.get(1).is_some_and(|db| db == b"0") => Reply::OK,
            "SELECT" => Refusal::new("ERR the test server has database 0 alone").into(),
            "CLIENT" if words.get(1).is_some_and(|word| word.eq_ignore_ascii_case(b"ID")) => {
                Reply::Int(i64::try_from(id).unwrap_or(i64::MAX))
            }
            "CLIENT" => Reply::OK,
            "COMMAND" => Reply::Array(Vec::new()),
            "QUIT" => {
                self.reply(id, &Reply::OK);
                self.leave(id);
                return Some(None);
            }
            "SUBSCRIBE" | "PSUBSCRIBE" | "UNSUBSCRIBE" | "PUNSUBSCRIBE" => {
                self.watch(id, name, &words[1..]);
                return Some(None);
            }
            _ => return None,
        };
        Some(Some(reply))
    }

    fn hello(&mut self, id: u64, words: &[Vec<u8>]) -> Reply {
        let Some(peer) = self.peer_mut(id) else { return Reply::Nil };
        match words.get(1).map(Vec::as_slice) {
            Some(b"2") => peer.resp = Resp::Two,
            Some(b"3") => peer.resp = Resp::Three,
            None => {}
            Some(_) => return Refusal::new("NOPROTO unsupported protocol version").into(),
        }
        let proto = if peer.resp == Resp::Three { 3 } else { 2 };
        Reply::Map(vec![
            (Reply::Text("server"), Reply::Text("redfence-testserver")),
            (Reply::Text("version"), Reply::Text(env!("CARGO_PKG_VERSION"))),
            (Reply::Text("proto"), Reply::Int(proto)),
            (Reply::Text("id"), Reply::Int(i64::try_from(id).unwrap_or(i64::MAX))),
            (Reply::Text("mode"), Reply::Text("standalone")),
            (Reply::Text("role"), Reply::Text("master")),
            (Reply::Text("modules"), Reply::Array(Vec::new())),
        ])
    }

    /// As in Redis: one confirmation for each name, and one with nil where there was nothing to end.
    fn watch(&mut self, id: u64, verb: &str, names: &[Vec<u8>]) {
        let is_pattern = verb.starts_with('P');
        let is_begin = verb.ends_with("SUBSCRIBE") && !verb.contains("UNSUBSCRIBE");
        let Some(peer) = self.peer_mut(id) else { return };
        let mut confirmed = Vec::new();
        if !is_begin && names.is_empty() {
            let ended =
                peer.watches.iter().filter(|watch| watch.0 == is_pattern).map(|watch| watch.1.clone());
            let ended: Vec<Vec<u8>> = ended.collect();
            peer.watches.retain(|watch| watch.0 != is_pattern);
            let left = peer.watches.len();
            confirmed.extend(ended.iter().map(|name| (Reply::bulk(name), left)));
            if confirmed.is_empty() {
                confirmed.push((Reply::Nil, left));
            }
        }
        for name in names {
            let watch = (is_pattern, name.clone());
            if !is_begin {
                peer.watches.retain(|known| *known != watch);
            } else if !peer.watches.contains(&watch) && peer.watches.len() < WATCHES_MAX {
                peer.watches.push(watch);
            }
            confirmed.push((Reply::bulk(name), peer.watches.len()));
        }
        let verb = verb.to_ascii_lowercase();
        for (name, count) in confirmed {
            let count = Reply::Int(i64::try_from(count).unwrap_or(i64::MAX));
            self.push(id, &[Reply::bulk(&verb), name, count]);
        }
    }
}
