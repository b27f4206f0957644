//! The same words give the same answers: long random conversations held with every Tier 1 backend at once.
//!
//! Each command goes to the machine, the module and both forms of the Lua library, and the answers, error texts
//! included, must be the same once fences are replaced by the order in which they were seen. A failure prints the seed
//! and the conversation; `REDFENCE_SEED=<n>` repeats it. Nothing here depends on time: every ttl is far longer than the run.

use std::collections::HashMap;
use std::sync::Arc;

use redfence_core::types::Tier;
use redfence_tests::backend::Backend;
use redfence_tests::backends::lua::LuaBackend;
use redfence_tests::backends::machine::MachineBackend;
use redfence_tests::backends::module::ModuleBackend;
use redfence_tests::client::Client;
use redfence_tests::resp::{Protocol, Value};

const CONVERSATIONS: u64 = 100;
const COMMANDS_EACH: usize = 60;
/// Fences are microseconds since 1970; nothing else in a reply is anywhere near.
const FENCE_LIKE: i64 = 1_000_000_000_000_000;
/// Times left are compared in these units, rounded up: far coarser than a conversation is long.
const TTL_UNIT_MS: i64 = 100_000;

/// xorshift: small, seeded, the same everywhere.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % bound
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// A word of a command as it is thought of: a fence is another number at every backend.
#[derive(Clone, Debug)]
enum Word {
    Text(String),
    /// The n-th fence that was seen of a resource, counted from the newest.
    Fence {
        resource: String,
        back: usize,
    },
}

type Command = Vec<Word>;

fn text(word: impl ToString) -> Word {
    Word::Text(word.to_string())
}

struct Speaker {
    dice: Dice,
    tag: String,
}

impl Speaker {
    fn resource(&mut self) -> String {
        let number = self.dice.below(4);
        format!("{{{}}}{number}", self.tag)
    }

    fn ttl(&mut self) -> Word {
        let rare = ["0", "-1", "x", "", "31536000001", "1.5"];
        match self.dice.below(12) {
            0 => text(self.dice.pick(&rare)),
            _ => text(self.dice.pick(&["400000", "700000", "31536000000"])),
        }
    }

    fn fence(&mut self, resource: &str) -> Word {
        let rare = ["0", "1", "7", "9007199254740991", "9007199254740992", "-3", "abc", ""];
        match self.dice.below(10) {
            0 => text(self.dice.pick(&rare)),
            1..=6 => Word::Fence { resource: resource.to_owned(), back: 0 },
            _ => Word::Fence { resource: resource.to_owned(), back: 1 + self.dice.below(2) },
        }
    }

    fn options(&mut self, command: &mut Command) {
        if self.dice.below(8) > 0 {
            command.extend([text("OWNER"), text(self.dice.pick(&["ann", "bob", "cy"]))]);
        }
        let nonsense =
            ["WAIT", "OWNER", "NX", "TIER best", "WAIT -1", "OWNER dan", "SESSION x", "TIER correctness", ""];
        match self.dice.below(12) {
            0 => command.extend(self.dice.pick(&nonsense).split(' ').map(text)),
            1 => command.extend([text("wait"), text(1 + self.dice.below(3))]),
            2 => command.extend([text("TIER"), text("Efficiency")]),
            3 | 4 => command.extend([text("Value"), text(self.dice.pick(&["", "note", "other"]))]),
            _ => {}
        }
    }

    fn tier(&mut self, command: &mut Command) {
        match self.dice.below(14) {
            0 => command.extend([text("TIER"), text(self.dice.pick(&["efficiency", "CORRECTNESS", "none"]))]),
            1 => command.push(text(self.dice.pick(&["TIER", "NOW", ""]))),
            _ => {}
        }
    }

    fn command(&mut self) -> Command {
        let resource = self.resource();
        let mut command: Command;
        match self.dice.below(20) {
            0..=6 => {
                command = vec![text("LOCK.ACQUIRE"), text(&resource), self.ttl()];
                self.options(&mut command);
            }
            7..=10 => {
                command = vec![text("LOCK.RELEASE"), text(&resource), self.fence(&resource)];
                self.tier(&mut command);
            }
            11..=12 => {
                command = vec![text("LOCK.RENEW"), text(&resource), self.fence(&resource), self.ttl()];
                self.tier(&mut command);
            }
            13 | 14 => {
                command = vec![text("LOCK.INFO"), text(&resource)];
                self.tier(&mut command);
            }
            15 => command = self.macquire(),
            16 => command = self.mrelease(),
            17 => command = vec![text("LOCK.QUEUE"), text(&resource)],
            18 => {
                command = vec![text("LOCK.FORCERELEASE"), text(&resource)];
                self.tier(&mut command);
            }
            _ => command = self.cut_short(&resource),
        }
        command
    }

    fn macquire(&mut self) -> Command {
        let count = 1 + self.dice.below(3);
        let told = if self.dice.below(6) == 0 { self.dice.below(5) } else { count };
        let mut command = vec![text("LOCK.MACQUIRE"), text(told)];
        for _ in 0..count {
            command.push(text(self.resource()));
        }
        command.push(self.ttl());
        // With a wrong count an option's number may be read as the ttl, and a short one would bring time into play.
        if told == count {
            self.options(&mut command);
        }
        command
    }

    fn mrelease(&mut self) -> Command {
        let count = 1 + self.dice.below(3);
        let told = if self.dice.below(6) == 0 { self.dice.below(5) } else { count };
        let mut command = vec![text("LOCK.MRELEASE"), text(told)];
        for _ in 0..count {
            let resource = self.resource();
            let fence = self.fence(&resource);
            command.extend([text(&resource), fence]);
        }
        command
    }

    /// A command that ends too early.
    fn cut_short(&mut self, resource: &str) -> Command {
        let verbs =
            ["LOCK.ACQUIRE", "LOCK.RELEASE", "LOCK.RENEW", "LOCK.INFO", "LOCK.QUEUE", "LOCK.FORCERELEASE"];
        let mut command = vec![text(self.dice.pick(&verbs))];
        if self.dice.below(2) == 0 {
            command.push(text(resource));
        }
        command
    }
}

/// One backend in a conversation, and the fences it has shown, oldest first.
struct Listener {
    name: &'static str,
    client: Client,
    fences: HashMap<String, Vec<i64>>,
}

impl Listener {
    fn ask(&mut self, command: &Command) -> String {
        let words: Vec<Vec<u8>> = command.iter().map(|word| self.spelled(word).into_bytes()).collect();
        let reply = self.client.ask(&words);
        self.learn(&words, &reply);
        let words: Vec<String> =
            words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        match (&reply, words[0].as_str()) {
            // Its fences may be one number for several resources: each is looked up at its own.
            (Value::Array(items), "LOCK.MACQUIRE") => {
                let fences = items[0].array().iter().enumerate();
                let fences: Vec<String> =
                    fences.map(|(at, fence)| self.shown(fence, &words[2 + at..=2 + at])).collect();
                format!("[{fences:?}, {}]", self.shown(&items[1], &words))
            }
            _ => self.shown(&reply, &words),
        }
    }

    fn spelled(&self, word: &Word) -> String {
        match word {
            Word::Text(text) => text.clone(),
            Word::Fence { resource, back } => {
                let fences = self.fences.get(resource).map(Vec::as_slice).unwrap_or_default();
                match fences.len().checked_sub(1 + back) {
                    Some(at) => fences[at].to_string(),
                    None => "5".into(),
                }
            }
        }
    }

    /// Notes the fences of new grants.
    fn learn(&mut self, words: &[Vec<u8>], reply: &Value) {
        let name = |at: usize| String::from_utf8_lossy(&words[at]).into_owned();
        let mut note = |resource: String, fence: i64| {
            let known = self.fences.entry(resource).or_default();
            if known.last() != Some(&fence) {
                assert!(
                    known.last().is_none_or(|last| *last < fence),
                    "{}: fence {fence} stepped back",
                    self.name
                );
                known.push(fence);
            }
        };
        match (words[0].as_slice(), reply) {
            (b"LOCK.ACQUIRE", Value::Array(items)) => note(name(1), items[0].integer()),
            (b"LOCK.MACQUIRE", Value::Array(items)) => {
                for (at, fence) in items[0].array().iter().enumerate() {
                    note(name(2 + at), fence.integer());
                }
            }
            _ => {}
        }
    }

    /// The reply with fences as their place in the order seen, times rounded, made-up owners as one.
    fn shown(&self, reply: &Value, words: &[String]) -> String {
        match reply {
            Value::Array(items) => {
                let mut shown: Vec<String> = items.iter().map(|item| self.shown(item, words)).collect();
                // How long it was held: the backends were asked one after the other.
                let is_held_ms = |item: &Value| *item == Value::bulk("held_ms");
                for at in (1..items.len()).filter(|at| is_held_ms(&items[at - 1])) {
                    if let Value::Integer(_) = items[at] {
                        shown[at] = "some ms".into();
                    }
                }
                format!("[{}]", shown.join(", "))
            }
            Value::Integer(number) if *number >= FENCE_LIKE => {
                let place = words.iter().find_map(|word| {
                    let known = self.fences.get(word)?;
                    known.iter().position(|fence| fence == number).map(|at| format!("fence {at} of {word}"))
                });
                place.unwrap_or_else(|| "a fence nobody was given".into())
            }
            Value::Integer(number) if *number > 1_000 => {
                format!("about {} ms", (number + TTL_UNIT_MS - 1) / TTL_UNIT_MS * TTL_UNIT_MS)
            }
            Value::Bulk(bytes) if !words.iter().any(|word| word.as_bytes() == bytes) && is_made_up(bytes) => {
                "an owner made up".into()
            }
            other => format!("{other:?}"),
        }
    }
}

/// Owners of ours have at most three letters; words of replies are lower or upper case letters and `_`.
fn is_made_up(bytes: &[u8]) -> bool {
    !bytes.iter().all(|byte| byte.is_ascii_alphabetic() || *byte == b'_')
}

fn converse(backends: &[Arc<dyn Backend>], seed: u64) {
    let mut listeners: Vec<Listener> = backends
        .iter()
        .map(|backend| Listener {
            name: backend.name(),
            client: Client::new(backend.connect(Protocol::Resp2), Protocol::Resp2),
            fences: HashMap::new(),
        })
        .collect();
    let mut speaker = Speaker { dice: Dice::new(seed), tag: format!("talk-{seed}") };
    let mut transcript = String::new();
    for _ in 0..COMMANDS_EACH {
        let command = speaker.command();
        let answers: Vec<String> = listeners.iter_mut().map(|listener| listener.ask(&command)).collect();
        transcript += &format!("{command:?}\n  -> {}\n", answers[0]);
        for (listener, answer) in listeners.iter().zip(&answers) {
            assert_eq!(
                *answer, answers[0],
                "{} (left) and {} (right) answer differently; repeat with REDFENCE_SEED={seed}\n{transcript}",
                listener.name, listeners[0].name
            );
        }
    }
}

#[test]
fn all_backends_say_the_same() {
    let backends: Vec<Arc<dyn Backend>> = vec![
        MachineBackend::new(Tier::Efficiency),
        Arc::new(ModuleBackend::default()),
        LuaBackend::functions(),
        LuaBackend::script(),
    ];
    match std::env::var("REDFENCE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => converse(&backends, seed),
        None => (1..=CONVERSATIONS).for_each(|seed| converse(&backends, seed)),
    }
}
