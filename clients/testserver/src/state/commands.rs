//! Carries out the commands of clients.

use super::{losses, Asked, State, ORIGIN};
use crate::{Fault, Partition};
use redfence_core::grammar::{self, Request};
use redfence_core::keyspace;
use redfence_core::machine::request::{self, MachineWork};
use redfence_core::machine::Command;
use redfence_core::reply::{Refusal, Reply};
use redfence_core::types::{RequestId, SessionId, SessionScope};

impl State {
    /// The reply, where there is one now.
    pub(super) fn execute(&mut self, id: u64, words: &[Vec<u8>]) -> Option<Reply> {
        let name = String::from_utf8_lossy(&words[0]).to_ascii_uppercase();
        if let Some(command) = name.strip_prefix("TEST.") {
            return Some(self.control(id, command, &words[1..]));
        }
        if self.partition == Partition::Silent {
            return None;
        }
        self.touch_sessions(id);
        if let Some(answered) = self.front(id, &name, words) {
            return answered;
        }
        if let Some(reply) = self.notify_command(id, &name, words) {
            return Some(reply);
        }
        if self.partition == Partition::NoQuorum {
            return Some(no_quorum());
        }
        let fault = self.faults.pop_front();
        if fault == Some(Fault::Unavailable) {
            return Some(unavailable("as the test asked for (TEST.FAIL)"));
        }
        *self.calls.entry(name.clone()).or_default() += 1;
        self.commands += 1;
        let reply = self.work(id, &name, words, fault)?;
        self.answer(id, fault, &reply);
        None
    }

    /// Sends a reply, unless a fault has other plans for it.
    pub(super) fn answer(&mut self, id: u64, fault: Option<Fault>, reply: &Reply) {
        match fault {
            None | Some(Fault::Unavailable) => self.reply(id, reply),
            Some(Fault::Indeterminate) => {
                let text = "INDETERMINATE as the test asked for (TEST.FAIL): it was carried out; retry with the same OWNER";
                self.reply(id, &Refusal::new(text).into());
            }
            Some(Fault::LostReply) => self.leave(id),
        }
    }

    /// Carries a command out. The reply, where there is one now.
    fn work(&mut self, id: u64, name: &str, words: &[Vec<u8>], fault: Option<Fault>) -> Option<Reply> {
        let number = self.next_number();
        let made_up = format!("made-up-{number}");
        let argv: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let resp = self.peers.get(&id)?.resp;
        let work = match grammar::parse(words) {
            Some(Err(refusal)) => return Some(refusal.into()),
            Some(Ok(Request::Cluster(_))) => return Some(self.cluster_info(&argv)),
            Some(Ok(request)) => {
                let context = request::RequestContext {
                    db: 0,
                    owner: made_up.as_bytes(),
                    // Spread over all values, as those of a node are.
                    session: SessionId(number.wrapping_mul(0x9E37_79B9_7F4A_7C15)),
                    sessions: SessionScope::All,
                    resp,
                    guarded: argv.get(3..).unwrap_or_default(),
                };
                match request::work(request, context) {
                    Ok(work) => work,
                    Err(refusal) => return Some(refusal.into()),
                }
            }
            None => match keyspace::table::find(&words[0]) {
                Some(row) if row.is(keyspace::table::SCRIPT) => {
                    return Some(
                        Refusal::new("ERR the test server runs no scripts; use redfence serve").into(),
                    );
                }
                Some(row) if redfence_core::machine::is_read(row) => {
                    self.expire();
                    return Some(self.machine.read(0, resp, &argv));
                }
                Some(_) => MachineWork::Change(Command::Redis {
                    db: 0,
                    resp,
                    member: None,
                    argv: argv.iter().copied().collect(),
                }),
                None => {
                    return Some(
                        Refusal::new(format!("ERR unknown command '{name}' of the test server")).into(),
                    )
                }
            },
        };
        let command = match work {
            MachineWork::Change(command) => command,
            MachineWork::Look(query) => {
                // As a read index does: the clock first, then the look.
                self.expire();
                return Some(self.machine.query(query));
            }
        };
        let peer = self.peers.get_mut(&id)?;
        if let Command::SessionOpen { id: opened, .. } | Command::SessionOpenWith { id: opened, .. } =
            &command
        {
            peer.sessions.push(*opened);
        }
        let request = RequestId { origin: ORIGIN, seq: number };
        peer.blocked_in = Some(request);
        let names = losses::names_asked(&command);
        self.asked.insert(request, Asked { peer: id, fault, names });
        self.apply(Some(request), command);
        None
    }

    fn cluster_info(&self, argv: &[&[u8]]) -> Reply {
        let words: Vec<String> =
            argv[1..].iter().map(|word| String::from_utf8_lossy(word).to_lowercase()).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["info"] => {}
            ["get", "default-tier"] => return Reply::Text("correctness"),
            ["get", "route"] => return Reply::Text(""),
            _ => {
                let text = "ERR the test server has no cluster: it answers LOCK.CLUSTER INFO, GET default-tier and GET route";
                return Refusal::new(text).into();
            }
        }
        let applied = Reply::Int(i64::try_from(self.commands).unwrap_or(i64::MAX));
        Reply::Map(vec![
            (Reply::Text("id"), Reply::Int(1)),
            (Reply::Text("role"), Reply::Text("leader")),
            (Reply::Text("leader"), Reply::Int(1)),
            (Reply::Text("term"), Reply::Int(1)),
            (Reply::Text("commit"), applied.clone()),
            (Reply::Text("applied"), applied),
            (Reply::Text("voters"), Reply::Int(1)),
            (Reply::Text("quorum"), Reply::Int(1)),
        ])
    }
}

pub(super) fn no_quorum() -> Reply {
    unavailable("this node has no quorum (TEST.PARTITION ON)")
}

fn unavailable(why: &str) -> Reply {
    Refusal::new(format!("UNAVAILABLE {why}; nothing was done; try again")).into()
}
