//! The connections of an attack: to every node in turn, each answer counted by its kind.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::client::Word;
use crate::resp::{encode, Connection, ReceiveError, Value};

/// A node answers within `--deadline-ms` whatever it is doing; the rest is for a busy machine.
const ANSWERS_WITHIN: Duration = Duration::from_secs(12);
/// The nodes' `--deadline-ms`, nearly.
const LATE_AFTER: Duration = Duration::from_millis(4_500);
/// After so many commands without an answer, or connections without a node, an attack has shown what it can.
const LOSSES_MAX: u64 = 4;
/// How often each script is run again by `EVALSHA`, each time at another node.
const SCRIPT_ROUNDS: usize = 2;

/// The replies to an attack.
#[derive(Clone, Debug, Default)]
pub struct ReplyTally {
    pub answers: BTreeMap<String, u64>,
    pub slowest: Duration,
    /// Commands that got no answer in time.
    pub silent: u64,
    pub closed: u64,
    /// Connections that could not be opened.
    pub refused: u64,
    /// Answers that came when the node's own deadline had passed.
    pub late: u64,
    /// The first few errors, whole.
    pub texts: Vec<String>,
}

impl ReplyTally {
    fn count(&mut self, reply: &Result<Value, ReceiveError>, took: Duration) {
        self.slowest = self.slowest.max(took);
        self.late += u64::from(took >= LATE_AFTER);
        let kind = match reply {
            Ok(Value::Error(line)) => {
                if self.texts.len() < 3 && !self.texts.contains(line) {
                    self.texts.push(line.chars().take(160).collect());
                }
                line.split(' ').next().unwrap_or_default().chars().take(20).collect()
            }
            Ok(_) => "ok".to_string(),
            Err(ReceiveError::TimedOut) => {
                self.silent += 1;
                "silent".to_string()
            }
            Err(ReceiveError::Closed) => {
                self.closed += 1;
                "closed".to_string()
            }
            Err(ReceiveError::Garbage(text)) => {
                self.texts.push(text.clone());
                "garbage".to_string()
            }
        };
        *self.answers.entry(kind).or_default() += 1;
    }
}

/// One connection of an attack.
pub struct AttackConnection {
    connection: Connection,
    /// Sent, and not yet answered.
    pub due: usize,
    broken: bool,
}

impl AttackConnection {
    /// Sends without reading the reply. The node may close the connection of an attacker.
    pub fn send(&mut self, words: &[Vec<u8>]) -> bool {
        self.due += 1;
        self.send_raw(&encode(words))
    }

    /// Nothing more is sent on a connection that did not take what came before.
    pub fn send_raw(&mut self, bytes: &[u8]) -> bool {
        self.broken = self.broken || self.connection.send_raw(bytes).is_err();
        !self.broken
    }
}

pub struct Attacker {
    nodes: Vec<SocketAddr>,
    pub peers: Vec<SocketAddr>,
    turn: usize,
    conns: Vec<Option<AttackConnection>>,
    /// In front of every name the attack makes up.
    pub prefix: String,
    pub tally: ReplyTally,
}

impl Attacker {
    #[must_use]
    pub fn new(nodes: Vec<SocketAddr>, peers: Vec<SocketAddr>, name: &str) -> Attacker {
        let conns = nodes.iter().map(|_| None).collect();
        let (turn, prefix, tally) = (0, format!("hostile:{name}:"), ReplyTally::default());
        Attacker { nodes, peers, turn, conns, prefix, tally }
    }

    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    #[must_use]
    pub fn name(&self, word: impl std::fmt::Display) -> String {
        format!("{}{word}", self.prefix)
    }

    fn is_over(&self) -> bool {
        self.tally.silent + self.tally.refused + self.tally.late >= LOSSES_MAX
    }

    /// A connection of its own to one node.
    pub fn open(&mut self, node: usize) -> Option<AttackConnection> {
        if self.is_over() {
            return None;
        }
        let connection = Connection::open(self.nodes[node % self.nodes.len()]).ok();
        if connection.is_none() {
            self.tally.refused += 1;
            self.tally.count(&Err(ReceiveError::Closed), Duration::ZERO);
        }
        connection.map(|connection| AttackConnection { connection, due: 0, broken: false })
    }

    /// Asks the next node in turn.
    pub fn ask(&mut self, words: &[Vec<u8>]) -> Option<Value> {
        self.turn += 1;
        self.ask_node(self.turn, words)
    }

    pub fn ask_node(&mut self, node: usize, words: &[Vec<u8>]) -> Option<Value> {
        if self.is_over() {
            return None;
        }
        let at = node % self.nodes.len();
        let mut conn = self.conns[at].take().or_else(|| self.open(at))?;
        let reply = self.ask_on(&mut conn, words);
        // After silence or an end the next question has a new connection.
        self.conns[at] = reply.is_some().then_some(conn);
        reply
    }

    pub fn ask_on(&mut self, conn: &mut AttackConnection, words: &[Vec<u8>]) -> Option<Value> {
        conn.send(words);
        self.collect(conn)
    }

    /// The next reply on a connection.
    pub fn collect(&mut self, conn: &mut AttackConnection) -> Option<Value> {
        self.collect_within(conn, ANSWERS_WITHIN)
    }

    pub fn collect_within(&mut self, conn: &mut AttackConnection, within: Duration) -> Option<Value> {
        let asked = Instant::now();
        let reply = conn.connection.receive(within);
        conn.due = conn.due.saturating_sub(1);
        self.tally.count(&reply, asked.elapsed());
        reply.ok()
    }

    /// Every reply a connection is still owed, or until it has none.
    pub fn collect_all(&mut self, conn: &mut AttackConnection) {
        while conn.due > 0 && !self.is_over() && self.collect(conn).is_some() {}
    }

    /// A pipeline: all sent, then all read, in batches that no limit on unread replies can mind.
    pub fn pipeline(&mut self, node: usize, commands: impl IntoIterator<Item = Vec<Vec<u8>>>) {
        let Some(mut conn) = self.open(node) else { return };
        for command in commands {
            if !conn.send(&command) {
                break;
            }
            if conn.due >= 100 {
                self.collect_all(&mut conn);
            }
        }
        self.collect_all(&mut conn);
    }

    /// At every node, whole, then by its digest; with one key.
    pub fn run_script(&mut self, body: &[u8]) {
        let key = self.name("key");
        for node in 0..self.nodes.len() {
            self.ask_node(node, &[b"EVAL".to_vec(), body.to_vec(), b"1".to_vec(), key.word()]);
        }
        let digest = match self.ask(&[b"SCRIPT".to_vec(), b"LOAD".to_vec(), body.to_vec()]) {
            Some(Value::Bulk(digest)) => digest,
            _ => return,
        };
        for node in 0..SCRIPT_ROUNDS {
            self.ask_node(node, &[b"EVALSHA".to_vec(), digest.clone(), b"1".to_vec(), key.word()]);
        }
    }

    /// One value of many bytes, by pieces that fit a word.
    pub fn store_string(&mut self, key: &str, bytes: usize) -> Option<Value> {
        const PIECE: usize = 64 * 1024;
        self.ask(&[b"DEL".to_vec(), key.word()]);
        let mut last = None;
        let mut at = 0;
        while at < bytes {
            let piece = PIECE.min(bytes - at);
            last = self.ask(&[b"APPEND".to_vec(), key.word(), vec![b'v'; piece]]);
            at += piece;
        }
        last
    }
}
