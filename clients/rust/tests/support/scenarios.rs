//! The driver of `clients/scenarios.toml`: see `clients/SCENARIOS.md`.

use super::relay::{Fault, Faults, Relay};
use super::servers::{Backend, Servers};
use redfence_client::{testing, Client, Error, Kind, Lock, Released, State, Tier};
use redis::Value;
use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use toml::Table;

/// "Polled" in the table.
const POLLED: Duration = Duration::from_secs(10);
/// A step in the background may take its own wait and this much more.
const JOINED: Duration = Duration::from_secs(90);

pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) needs: BTreeSet<String>,
    steps: Vec<Table>,
}

impl Scenario {
    /// Whether it takes nodes down, and so cannot share them.
    pub(crate) fn is_alone(&self) -> bool {
        self.needs.contains("cluster")
    }
}

pub(crate) fn all() -> Vec<Scenario> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../scenarios.toml");
    let table: Table = std::fs::read_to_string(path).expect("the table").parse().expect("TOML");
    let scenarios = table["scenario"].as_array().expect("scenarios").iter().map(|scenario| {
        let list =
            |name: &str| scenario.get(name).and_then(|list| list.as_array()).cloned().unwrap_or_default();
        Scenario {
            name: scenario["name"].as_str().expect("a name").to_owned(),
            needs: list("needs").iter().filter_map(|need| need.as_str()).map(str::to_owned).collect(),
            steps: list("steps").iter().filter_map(|step| step.as_table().cloned()).collect(),
        }
    });
    scenarios.collect()
}

/// What a backend can do, in the table's words.
pub(crate) fn abilities(servers: &Servers) -> BTreeSet<String> {
    let mut abilities: BTreeSet<String> = ["relay".to_owned()].into();
    let mut connection = servers.connect(0);
    match servers.backend {
        Backend::Module | Backend::Lua => drop(abilities.insert("tier1".into())),
        Backend::SingleNode | Backend::ThreeNodes => {
            abilities.extend(["sessions".to_owned(), "real_tier2".to_owned()]);
            if servers.backend == Backend::ThreeNodes {
                abilities.insert("cluster".into());
            }
            let mut shared = redis::cmd("LOCK.ACQUIRE");
            shared.arg("ability").arg(1).arg("SHARED");
            if shared.query::<Value>(&mut connection).is_ok() {
                abilities.insert("kinds".into());
            }
            if redis::cmd("LOCK.NOTIFY").arg("ON").query::<Value>(&mut connection).is_ok() {
                abilities.insert("push".into());
            }
        }
    }
    abilities
}

/// A handle, or what is left of one that was handed over.
#[derive(Clone)]
enum Held {
    Lock(Arc<Lock>),
    Gone { fence: i64 },
}

struct Connected {
    client: Client,
    relays: Vec<Relay>,
    faults: Faults,
}

type Outcome = (String, Option<Lock>);

struct Background {
    task: JoinHandle<Outcome>,
    expected: Vec<String>,
}

pub(crate) struct Run {
    servers: Arc<Mutex<Servers>>,
    prefix: String,
    clients: HashMap<String, Connected>,
    held: HashMap<String, Held>,
    background: HashMap<String, Background>,
}

fn text<'a>(step: &'a Table, name: &str, default: &'a str) -> &'a str {
    step.get(name).and_then(|value| value.as_str()).unwrap_or(default)
}

/// The outcomes that will do.
fn expected(step: &Table) -> Vec<String> {
    match step.get("expect") {
        None => vec!["ok".to_owned()],
        Some(toml::Value::Array(words)) => {
            words.iter().filter_map(|word| word.as_str()).map(str::to_owned).collect()
        }
        Some(word) => vec![word.as_str().expect("a word").to_owned()],
    }
}

fn check(outcome: &str, expected: &[String], what: &str) {
    assert!(expected.iter().any(|word| word == outcome), "{what}: {outcome}");
}

fn number(step: &Table, name: &str, default: i64) -> i64 {
    step.get(name).and_then(toml::Value::as_integer).unwrap_or(default)
}

fn ms(step: &Table, name: &str, default: i64) -> Duration {
    Duration::from_millis(number(step, name, default).unsigned_abs())
}

fn word(error: &Error) -> String {
    match error {
        Error::Busy(_) => "busy",
        Error::Unavailable { .. } | Error::Indeterminate { .. } => "unavailable",
        Error::TierRefused { .. } => "tier_refused",
        Error::Deadlock { .. } => "deadlock",
        Error::Unsupported { .. } => "unsupported",
        Error::Invalid { .. } => "invalid",
        Error::Lost(_) | Error::TooLittleTime { .. } => "lost",
        other => return format!("{other:?}"),
    }
    .to_owned()
}

fn state_word(state: State) -> &'static str {
    match state {
        State::Held => "held",
        State::Suspect => "suspect",
        State::Lost => "lost",
        State::Released => "released",
        _ => "?",
    }
}

pub(crate) async fn run(scenario: &Scenario, servers: &Arc<Mutex<Servers>>) {
    static RUNS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let number = RUNS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let mut run = Run {
        servers: Arc::clone(servers),
        prefix: format!("{}-{number}-{}:", std::process::id(), scenario.name),
        clients: HashMap::new(),
        held: HashMap::new(),
        background: HashMap::new(),
    };
    for (at, step) in scenario.steps.iter().enumerate() {
        let what = format!("{}, step {}: {step}", scenario.name, at + 1).replace('\n', " ");
        run.step(step, &what).await;
    }
    run.background.values().for_each(|background| background.task.abort());
    for connected in run.clients.into_values() {
        connected.relays.iter().for_each(|relay| relay.cut(false));
        connected.client.close().await;
    }
}

impl Run {
    fn resource(&self, step: &Table) -> String {
        match text(step, "name", "r") {
            "" => String::new(),
            name => format!("{}{name}", self.prefix),
        }
    }

    async fn client(&mut self, step: &Table) -> Client {
        self.client_named(text(step, "client", "a")).await
    }

    async fn client_named(&mut self, name: &str) -> Client {
        if let Some(connected) = self.clients.get(name) {
            return connected.client.clone();
        }
        let addresses = self.servers.lock().unwrap().addresses.clone();
        let (faults, mut relays) = (Faults::default(), Vec::new());
        for address in addresses {
            relays.push(Relay::start(address, faults.clone()).await);
        }
        let client = Client::builder()
            .addresses(relays.iter().map(|relay| format!("redis://{}", relay.address)))
            .connect_timeout(Duration::from_secs(2))
            .attempt_timeout(Duration::from_secs(2))
            .operation_timeout(Duration::from_secs(10))
            .connect()
            .await
            .expect("it connects");
        let kept = client.clone();
        self.clients.insert(name.to_owned(), Connected { client, relays, faults });
        kept
    }

    async fn relays(&mut self, step: &Table) -> Vec<Relay> {
        self.client(step).await;
        self.clients[text(step, "client", "a")].relays.clone()
    }

    async fn faults(&mut self, step: &Table) -> Faults {
        self.client(step).await;
        self.clients[text(step, "client", "a")].faults.clone()
    }

    fn lock(&self, step: &Table) -> Arc<Lock> {
        match self.held.get(text(step, "lock", "l")) {
            Some(Held::Lock(lock)) => Arc::clone(lock),
            _ => panic!("no handle {:?}", step.get("lock")),
        }
    }

    fn fence(&self, handle: &str) -> i64 {
        match self.held.get(handle) {
            Some(Held::Lock(lock)) => lock.fence(),
            Some(Held::Gone { fence }) => *fence,
            None => panic!("no handle {handle}"),
        }
    }

    /// Runs a step that may run in the background, and keeps its handle.
    async fn maybe_later(
        &mut self,
        step: &Table,
        what: &str,
        work: impl Future<Output = Outcome> + Send + 'static,
    ) {
        let key = text(step, "lock", "l").to_owned();
        let expected = expected(step);
        if step.get("background").and_then(toml::Value::as_bool) == Some(true) {
            self.background.insert(key, Background { task: tokio::spawn(work), expected });
            return;
        }
        let (outcome, lock) = work.await;
        check(&outcome, &expected, what);
        if let Some(lock) = lock {
            self.held.insert(key, Held::Lock(Arc::new(lock)));
        }
    }

    #[allow(clippy::too_many_lines)] // an arm for each kind of step
    async fn step(&mut self, step: &Table, what: &str) {
        match text(step, "do", "") {
            "acquire" => self.acquire(step, what).await,
            "campaign" => {
                let (client, name) = (self.client(step).await, self.resource(step));
                let value = text(step, "value", "").to_owned();
                let work = async move {
                    match client.election(name).value(value).campaign().await {
                        Ok(leadership) => ("ok".to_owned(), Some(leadership.into_lock())),
                        Err(error) => (word(&error), None),
                    }
                };
                self.maybe_later(step, what, work).await;
            }
            "observe" => {
                let (client, name) = (self.client(step).await, self.resource(step));
                let election = client.election(name);
                let mut observer = election.observe().await.expect(what);
                let wanted = text(step, "value", "").as_bytes();
                let seen = async {
                    while observer.next().await.and_then(|leader| leader.value).as_deref() != Some(wanted) {}
                };
                tokio::time::timeout(POLLED, seen).await.expect(what);
            }
            "release" | "resign" => {
                let lock = self.lock(step);
                let before = lock.state();
                let outcome = match lock.release().await {
                    Ok(Released::Now) => "ok".to_owned(),
                    Ok(_) => "already_released".to_owned(),
                    Err(Error::Lost(loss)) if before != State::Lost => loss.cause.as_str().to_owned(),
                    Err(error) => word(&error),
                };
                check(&outcome, &expected(step), what);
            }
            "ensure" => {
                let outcome = self.lock(step).ensure(ms(step, "at_least_ms", 1)).await;
                let outcome = outcome.err().map_or("ok".to_owned(), |error| word(&error));
                check(&outcome, &expected(step), what);
            }
            "state" => {
                let wanted = text(step, "expect", "held").to_owned();
                let held = self.held[text(step, "lock", "l")].clone();
                let state = || match &held {
                    Held::Lock(lock) => state_word(lock.state()),
                    Held::Gone { .. } => "released",
                };
                poll(what, || (state() == wanted).then_some(()).ok_or_else(|| state().to_owned())).await;
            }
            "lost" => {
                let lock = self.lock(step);
                let loss = tokio::time::timeout(POLLED, lock.lost()).await.expect(what);
                let causes = match &step["cause"] {
                    toml::Value::Array(causes) => causes.clone(),
                    cause => vec![cause.clone()],
                };
                assert!(
                    causes.iter().any(|cause| cause.as_str() == Some(loss.cause.as_str())),
                    "{what}: {loss:?}"
                );
            }
            "convert" => {
                let (lock, wait) = (self.lock(step), ms(step, "wait_ms", 0));
                let is_exclusive = text(step, "to", "shared") == "exclusive";
                let work = async move {
                    let outcome =
                        if is_exclusive { lock.upgrade(wait).await } else { lock.downgrade().await };
                    (outcome.err().map_or("ok".to_owned(), |error| word(&error)), None)
                };
                self.maybe_later(step, what, work).await;
            }
            "hand_over" => {
                let key = text(step, "lock", "l").to_owned();
                let Some(Held::Lock(lock)) = self.held.remove(&key) else { panic!("{what}: no handle") };
                let fence = lock.fence();
                let lock = Arc::try_unwrap(lock).expect("nobody else has it");
                let token = lock.hand_over().expect(what);
                self.held.insert(key, Held::Gone { fence });
                let adopted = self.client_named(text(step, "to", "b")).await.adopt(&token).await.expect(what);
                self.held.insert(text(step, "as", "m").to_owned(), Held::Lock(Arc::new(adopted)));
            }
            "newer" => {
                let (own, other) = (self.fence(text(step, "lock", "l")), self.fence(text(step, "than", "l")));
                assert!(own > other, "{what}: {own} {other}");
            }
            "same_fence" => {
                assert_eq!(self.fence(text(step, "lock", "l")), self.fence(text(step, "as", "l")), "{what}");
            }
            "holder" => {
                let wanted = number(step, "count", 1);
                let count = || self.holders(step).map_err(|error| error.to_string());
                poll(what, || match count() {
                    Ok(count) if count == wanted => Ok(()),
                    other => Err(format!("{other:?}")),
                })
                .await;
            }
            "waiters" => {
                let wanted = number(step, "count", 0);
                let count = || self.raw(&["LOCK.QUEUE".to_owned(), self.resource(step)]);
                poll(what, || match count() {
                    Ok(Value::Array(rows)) if i64::try_from(rows.len()) == Ok(wanted) => Ok(()),
                    other => Err(format!("{other:?}")),
                })
                .await;
            }
            "raw" => {
                let words =
                    step["command"].as_array().expect("words").iter().map(|word| match word.as_str() {
                        Some("$r") => self.resource(step),
                        Some(word) => match word.strip_prefix("$fence:") {
                            Some(handle) => self.fence(handle).to_string(),
                            None => word.to_owned(),
                        },
                        None => panic!("{what}: a word is no text"),
                    });
                assert!(!step.contains_key("reply"), "{what}: this driver compares no replies");
                self.raw(&words.collect::<Vec<_>>()).expect(what);
            }
            "cancel" => {
                let background = self.background.remove(text(step, "lock", "l")).expect(what);
                background.task.abort();
                let _ = background.task.await;
            }
            "join" => {
                let key = text(step, "lock", "l").to_owned();
                let background = self.background.remove(&key).expect(what);
                let joined = tokio::time::timeout(JOINED, background.task).await;
                let (outcome, lock) = joined.expect(what).expect(what);
                check(&outcome, &background.expected, what);
                if let Some(lock) = lock {
                    self.held.insert(key, Held::Lock(Arc::new(lock)));
                }
            }
            "sleep" => tokio::time::sleep(ms(step, "ms", 0)).await,
            "close_client" => {
                let connected = self.clients.remove(text(step, "client", "a")).expect(what);
                connected.client.close().await;
            }
            _ => self.fault(step, what).await,
        }
    }

    async fn fault(&mut self, step: &Table, what: &str) {
        let count = usize::try_from(number(step, "count", 1)).expect("a count");
        match text(step, "do", "") {
            "stop_renewals" => testing::stop_renewals(&self.client(step).await),
            "drop_reply" => {
                self.faults(step).await.add(text(step, "command", ""), Fault::DropReply, count);
            }
            "refuse" => {
                let fault = match text(step, "with", "") {
                    "UNAVAILABLE" => Fault::Unavailable,
                    "INDETERMINATE" => Fault::Indeterminate,
                    other => panic!("{what}: {other}"),
                };
                self.faults(step).await.add(text(step, "command", ""), fault, count);
            }
            "cut" => self.relays(step).await.iter().for_each(|relay| relay.cut(true)),
            "heal" => self.relays(step).await.iter().for_each(|relay| relay.cut(false)),
            "disconnect" => self.relays(step).await.iter().for_each(Relay::disconnect),
            "crash_client" => self.relays(step).await.iter().for_each(Relay::crash),
            "kill_leader" => {
                let mut servers = self.servers.lock().unwrap();
                let leader = servers.leader();
                servers.kill(leader);
            }
            "kill_own_node" => {
                let relays = self.relays(step).await;
                let own = relays.iter().position(|relay| relay.open() > 0).expect("it is connected");
                self.servers.lock().unwrap().kill(own);
            }
            other => panic!("{what}: this driver does not know {other}"),
        }
    }

    async fn acquire(&mut self, step: &Table, what: &str) {
        let client = self.client(step).await;
        let names = step.get("names").and_then(|names| names.as_array()).map(|names| {
            let name = |name: &toml::Value| format!("{}{}", self.prefix, name.as_str().expect("a name"));
            names.iter().map(name).collect::<Vec<_>>()
        });
        let (name, options) = (self.resource(step), step.clone());
        let work = async move {
            let mut request = match names {
                Some(names) => client.locks(names),
                None => client.lock(name),
            };
            request = request.ttl(ms(&options, "ttl_ms", 5000)).wait(ms(&options, "wait_ms", 0));
            request = match text(&options, "tier", "") {
                "correctness" => request.tier(Tier::Correctness),
                "efficiency" => request.tier(Tier::Efficiency),
                _ => request,
            };
            let permits = |name| u32::try_from(number(&options, name, 1)).expect("permits");
            request = request.kind(match text(&options, "kind", "exclusive") {
                "shared" => Kind::Shared,
                "permits" => Kind::Permits { count: permits("permits"), of: permits("of") },
                _ => Kind::Exclusive,
            });
            if let Some(value) = options.get("value").and_then(|value| value.as_str()) {
                request = request.value(value);
            }
            if options.contains_key("max_hold_ms") {
                request = request.max_hold(ms(&options, "max_hold_ms", 0));
            }
            if options.get("transferable").and_then(toml::Value::as_bool) == Some(true) {
                request = request.transferable();
            }
            match request.acquire().await {
                Ok(lock) => ("ok".to_owned(), Some(lock)),
                Err(error) => (word(&error), None),
            }
        };
        self.maybe_later(step, what, work).await;
    }

    /// Asked on a connection of the driver's own, at a node that lives.
    fn raw(&self, words: &[String]) -> redis::RedisResult<Value> {
        let servers = self.servers.lock().unwrap();
        let node = if servers.backend == Backend::ThreeNodes { servers.leader() } else { 0 };
        let cmd = if servers.backend == Backend::Lua {
            let mut cmd = redis::cmd("FCALL");
            cmd.arg(words[0].to_ascii_lowercase().replace('.', "_")).arg(1).arg(&words[1..]);
            cmd
        } else {
            let mut cmd = redis::cmd(&words[0]);
            cmd.arg(&words[1..]);
            cmd
        };
        cmd.query(&mut servers.connect(node))
    }

    fn holders(&self, step: &Table) -> redis::RedisResult<i64> {
        let info: HashMap<String, Value> =
            redis::from_redis_value(self.raw(&["LOCK.INFO".to_owned(), self.resource(step)])?)?;
        Ok(match info.get("holders") {
            Some(Value::Array(holders)) => i64::try_from(holders.len()).expect("a count"),
            _ => i64::from(info.get("state") == Some(&Value::BulkString(b"held".to_vec()))),
        })
    }
}

/// Looks until it is so; the last that was seen otherwise.
async fn poll(what: &str, look: impl Fn() -> Result<(), String>) {
    let began = Instant::now();
    loop {
        match look() {
            Ok(()) => return,
            Err(seen) => assert!(began.elapsed() < POLLED, "{what}: {seen}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
