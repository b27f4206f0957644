//! The commands of `docs/commands` spoken through the Lua library: the calling convention and the waiting protocol of
//! `lua/README.md`, driven on behalf of a case as a client library would drive them.
//!
//! What stands in front of the keys of a counted command (`LOCK.MACQUIRE count …`) is the caller's to check, since
//! Redis takes the number of keys itself: this adapter does it with core's grammar, as the proxy does.

use std::net::SocketAddr;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use redfence_core::grammar;

use crate::backends::lua::Form;
use crate::backends::rendering::rendered;
use crate::client::{Wire, REPLY_WITHIN};
use crate::resp::{Closer, Connection, Protocol, ReceiveError, Value};

type Command = Vec<Vec<u8>>;

/// A worker thread runs one command after the other, so that what stands behind a waiting one waits.
pub struct LuaWire {
    commands: Sender<Command>,
    replies: Receiver<Value>,
    outstanding: usize,
    closer: Closer,
    address: SocketAddr,
    protocol: Protocol,
    /// Open once the client has subscribed: messages come there.
    watching: Option<Connection>,
}

impl LuaWire {
    pub fn open(address: SocketAddr, protocol: Protocol, form: Form) -> LuaWire {
        let connection = Connection::open_with(address, protocol).unwrap_or_else(|error| panic!("{error}"));
        let closer = connection.closer();
        let (commands, orders) = channel();
        let (answers, replies) = channel();
        let mut worker = Worker { connection, form, protocol };
        std::thread::Builder::new()
            .name("lua-client".into())
            .spawn(move || {
                for command in orders {
                    // A broken connection, or nobody to hear: the client is gone, and so is its worker.
                    let Some(reply) = worker.run(command) else { return };
                    if answers.send(reply).is_err() {
                        return;
                    }
                }
            })
            .expect("a thread for a client");
        LuaWire { commands, replies, outstanding: 0, closer, address, protocol, watching: None }
    }
}

impl Wire for LuaWire {
    fn send(&mut self, args: &[Vec<u8>]) {
        if args[0].to_ascii_uppercase().ends_with(b"SUBSCRIBE") {
            let watching = self.watching.get_or_insert_with(|| {
                Connection::open_with(self.address, self.protocol).unwrap_or_else(|error| panic!("{error}"))
            });
            watching.send(args).unwrap_or_else(|error| panic!("send: {error}"));
            return;
        }
        self.outstanding += 1;
        // A worker that ended shows as a closed connection at the next receive.
        let _ = self.commands.send(args.to_vec());
    }

    fn receive(&mut self, timeout: Duration) -> Result<Value, ReceiveError> {
        if self.outstanding == 0 {
            if let Some(watching) = &mut self.watching {
                return watching.receive(timeout);
            }
        }
        match self.replies.recv_timeout(timeout) {
            Ok(reply) => {
                self.outstanding -= 1;
                Ok(reply)
            }
            Err(RecvTimeoutError::Timeout) => Err(ReceiveError::TimedOut),
            Err(RecvTimeoutError::Disconnected) => Err(ReceiveError::Closed),
        }
    }
}

impl Drop for LuaWire {
    fn drop(&mut self) {
        // The worker may sit in a BLPOP: a client that goes away takes its connection with it.
        self.closer.close();
    }
}

/// A command as the library wants it: keys apart from the other words.
struct Call {
    name: String,
    keys: Vec<Vec<u8>>,
    words: Vec<Vec<u8>>,
}

struct Worker {
    connection: Connection,
    form: Form,
    protocol: Protocol,
}

impl Worker {
    /// `None` when the connection is gone.
    fn run(&mut self, command: Command) -> Option<Value> {
        let name = String::from_utf8_lossy(&command[0]).to_ascii_uppercase();
        if !name.starts_with("LOCK.") && !name.starts_with("FENCE.") {
            return self.ask(&command);
        }
        match split(&name, &command) {
            Some(mut call) => {
                let reply = self.call(&call)?;
                if matches!(&reply, Value::Array(items) if items.first() == Some(&Value::bulk("queued"))) {
                    return self.wait(&mut call, reply);
                }
                Some(reply)
            }
            None => match grammar::parse(&command) {
                Some(Err(refusal)) => Some(rendered(&refusal.into(), self.protocol)),
                _ => panic!("the adapter cannot split {name}, but the grammar takes it"),
            },
        }
    }

    /// Listens and asks again until granted or out of time; then leaves the queue.
    fn wait(&mut self, call: &mut Call, mut reply: Value) -> Option<Value> {
        let start = Instant::now();
        let wait = Duration::from_millis(option(&call.words, "WAIT").and_then(number).expect("it waits"));
        loop {
            let (owner, wake_key, poll) = match reply.array() {
                [_, owner, wake_key, poll_ms] => (
                    owner.bytes().to_vec(),
                    wake_key.bytes().to_vec(),
                    Duration::from_millis(poll_ms.integer() as u64),
                ),
                other => panic!("expected [queued, owner, wake_key, poll_ms], got {other:?}"),
            };
            let left = wait.saturating_sub(start.elapsed());
            let timeout = format!("{:.3}", poll.min(left).max(Duration::from_millis(1)).as_secs_f64());
            let woken = self.ask(&[b"BLPOP".to_vec(), wake_key, timeout.into_bytes()])?;
            if let Some(grant) = granted_by(&woken, call.name.starts_with("LOCK.M")) {
                return Some(grant);
            }
            let left_ms = wait.saturating_sub(start.elapsed()).as_millis();
            if left_ms == 0 {
                let name = if call.name == "LOCK.MACQUIRE" { "LOCK.MCANCEL" } else { "LOCK.CANCEL" };
                return self.call(&Call { name: name.into(), keys: call.keys.clone(), words: vec![owner] });
            }
            set_option(&mut call.words, "WAIT", left_ms.to_string().into_bytes());
            set_option(&mut call.words, "OWNER", owner);
            reply = self.call(call)?;
            if !matches!(&reply, Value::Array(items) if items.first() == Some(&Value::bulk("queued"))) {
                return Some(reply);
            }
        }
    }

    fn call(&mut self, call: &Call) -> Option<Value> {
        let mut command = match &self.form {
            Form::Functions => {
                vec![b"FCALL".to_vec(), call.name.to_ascii_lowercase().replace('.', "_").into_bytes()]
            }
            Form::Script(sha) => vec![b"EVALSHA".to_vec(), sha.clone().into_bytes()],
        };
        command.push(call.keys.len().to_string().into_bytes());
        command.extend(call.keys.iter().cloned());
        if let Form::Script(_) = self.form {
            command.push(call.name.clone().into_bytes());
        }
        command.extend(call.words.iter().cloned());
        self.ask(&command)
    }

    fn ask(&mut self, command: &[Vec<u8>]) -> Option<Value> {
        match self.connection.ask(command, REPLY_WITHIN) {
            Ok(value) => Some(value),
            Err(ReceiveError::Closed | ReceiveError::TimedOut) => None,
            Err(ReceiveError::Garbage(text)) => panic!("{text}"),
        }
    }
}

/// Keys and words of a command; `None` where the count in front of the keys is wrong.
fn split(name: &str, command: &[Vec<u8>]) -> Option<Call> {
    let rest = &command[1..];
    let (keys, words): (Vec<Vec<u8>>, Vec<Vec<u8>>) = match name {
        "LOCK.SCAN" | "LOCK.SESSION" | "LOCK.NOTIFY" => (Vec::new(), rest.to_vec()),
        "LOCK.MACQUIRE" | "LOCK.MRELEASE" if rest.len() < 3 => return None,
        "LOCK.MACQUIRE" => {
            let count = number(&rest[0]).filter(|count| *count > 0)? as usize;
            (rest.get(1..=count)?.to_vec(), rest.get(count + 1..).filter(|words| !words.is_empty())?.to_vec())
        }
        "LOCK.MRELEASE" => {
            let count = number(&rest[0]).filter(|count| *count > 0)? as usize;
            let pairs = rest.get(1..=count.checked_mul(2)?)?;
            let keys = pairs.iter().step_by(2).cloned().collect();
            let fences = pairs.iter().skip(1).step_by(2).cloned();
            (keys, fences.chain(rest[2 * count + 1..].iter().cloned()).collect())
        }
        _ => (rest.iter().take(1).cloned().collect(), rest.iter().skip(1).cloned().collect()),
    };
    Some(Call { name: name.to_owned(), keys, words })
}

fn number(word: impl AsRef<[u8]>) -> Option<u64> {
    grammar::words::decimal(word.as_ref())
}

/// `<ttl> <fence> …` at the wake key is the grant itself.
fn granted_by(woken: &Value, multi: bool) -> Option<Value> {
    let Value::Array(items) = woken else { return None };
    let text = items[1].text();
    if text == "again" {
        return None;
    }
    let numbers: Vec<Value> =
        text.split(' ').map(|word| Value::Integer(word.parse().expect("ttl and fences"))).collect();
    let (ttl, fences) = numbers.split_first().expect("a ttl");
    let fences = if multi { Value::Array(fences.to_vec()) } else { fences[0].clone() };
    Some(Value::Array(vec![fences, ttl.clone()]))
}

/// Where an option's value stands. The first word is the ttl; options come in pairs behind it.
fn option_at(words: &[Vec<u8>], name: &str) -> Option<usize> {
    (1..words.len()).step_by(2).find(|at| words[*at].eq_ignore_ascii_case(name.as_bytes())).map(|at| at + 1)
}

fn option<'a>(words: &'a [Vec<u8>], name: &str) -> Option<&'a Vec<u8>> {
    option_at(words, name).and_then(|at| words.get(at))
}

fn set_option(words: &mut Vec<Vec<u8>>, name: &str, value: Vec<u8>) {
    match option_at(words, name) {
        Some(at) => words[at] = value,
        None => words.extend([name.as_bytes().to_vec(), value]),
    }
}
