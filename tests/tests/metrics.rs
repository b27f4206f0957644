//! `/metrics` of a cluster of real processes under load: the text is what Prometheus expects, the figures are true, trouble shows, and the
//! Grafana board and the alert rules in `docker/` name only metrics that exist.

use redfence_tests::ask;
use redfence_tests::client::Client;
use redfence_tests::cluster::{Cluster, Host, Options};
use redfence_tests::expect;
use redfence_tests::left_out;
use redfence_tests::process::{free_address, poll_until};
use redfence_tests::redis::{self, Redis};
use redfence_tests::resp::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

const WITHIN: Duration = Duration::from_secs(60);

fn docker() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docker")
}

struct Watched {
    cluster: Cluster,
    admin: Vec<SocketAddr>,
}

impl Watched {
    fn start(options: Options) -> Watched {
        let admin: Vec<SocketAddr> = (0..options.nodes).map(|_| free_address()).collect();
        let host = |address: &SocketAddr| Host {
            environment: vec![("REDFENCE_ADMIN".to_owned(), address.to_string())],
            ..Host::default()
        };
        let hosts = admin.iter().map(host).collect();
        Watched { cluster: Cluster::start(&Options { hosts, ..options }), admin }
    }

    fn scrape(&self, id: u64) -> Scrape {
        Scrape::read(self.admin[id as usize - 1])
    }

    fn await_sample(&self, id: u64, series: &str, is_right: impl Fn(f64) -> bool) {
        let mut last = None;
        let done = poll_until(WITHIN, || {
            last = self.scrape(id).samples.get(series).copied();
            last.is_some_and(&is_right)
        });
        assert!(done, "{series} of node {id} is {last:?}\n{}", self.cluster.log());
    }

    fn await_line(&self, id: u64, text: &str) {
        let log = || self.cluster.node(id).process().log();
        assert!(poll_until(WITHIN, || log().contains(text)), "no line \"{text}\" at node {id}\n{}", log());
    }
}

/// One page of metrics: types by family, values by series.
struct Scrape {
    text: String,
    families: BTreeMap<String, String>,
    samples: BTreeMap<String, f64>,
}

impl Scrape {
    fn read(address: SocketAddr) -> Scrape {
        let mut stream = TcpStream::connect(address).expect("the admin listener");
        stream.set_read_timeout(Some(WITHIN)).expect("a time-out");
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, text) = answer.split_once("\r\n\r\n").expect("a body");
        assert!(head.contains("text/plain; version=0.0.4"), "{head}");
        Scrape::parse(text)
    }

    fn parse(text: &str) -> Scrape {
        let (mut families, mut samples, mut helped) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').expect("a help text");
                assert!(help.ends_with('.') && helped.insert(name.to_owned()), "{line}");
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("a type");
                assert!(helped.contains(name), "{name} has no help");
                families.insert(name.to_owned(), kind.to_owned());
            } else {
                let (series, value) = line.rsplit_once(' ').expect("a sample");
                let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
                assert!(samples.insert(series.to_owned(), value).is_none(), "{series} is shown twice");
                assert!(families.contains_key(&family_of(series, &families)), "{series} has no type");
            }
        }
        Scrape { text: text.to_owned(), families, samples }
    }

    /// Families that have at least one sample.
    fn sampled(&self) -> BTreeSet<String> {
        self.samples.keys().map(|series| family_of(series, &self.families)).collect()
    }

    fn sum(&self, name: &str) -> f64 {
        let of_name = |series: &str| series.split('{').next() == Some(name);
        self.samples.iter().filter(|(series, _)| of_name(series)).map(|(_, value)| value).sum()
    }
}

fn family_of(series: &str, families: &BTreeMap<String, String>) -> String {
    let name = series.split('{').next().unwrap_or(series);
    if families.contains_key(name) {
        return name.to_owned();
    }
    let stem = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
    stem.unwrap_or(name).to_owned()
}

/// Every bucket holds what the ones below it hold, and the last all of them.
fn check_histograms(scrape: &Scrape) {
    for (name, _) in scrape.families.iter().filter(|(_, kind)| *kind == "histogram") {
        let mut last: Option<(String, f64, f64)> = None;
        let buckets = scrape.text.lines().filter_map(|line| line.strip_prefix(&format!("{name}_bucket{{")));
        for bucket in buckets {
            let (labels, value) = bucket.rsplit_once(' ').expect("a sample");
            let (labels, le) = labels.split_once("le=\"").expect("a bound");
            let le = match le.trim_end_matches("\"}") {
                "+Inf" => f64::INFINITY,
                le => le.parse().expect("a number"),
            };
            let value: f64 = value.parse().expect("a number");
            if let Some((_, last_le, last_value)) = last.filter(|(last, ..)| last == labels) {
                assert!(last_le < le && last_value <= value, "{name}{{{bucket}");
            }
            if le.is_infinite() {
                let labels = labels.trim_end_matches(',');
                let series = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
                assert_eq!(scrape.samples.get(&format!("{name}_count{series}")), Some(&value), "{name}");
            }
            last = Some((labels.to_owned(), le, value));
        }
    }
}

/// Locks of every mode, waits, hand-overs, losses and refusals, in both tiers.
fn work(clients: &mut [Client]) {
    let names = ["a", "b", "c"];
    for round in 0..20 {
        for client in &mut *clients {
            let name = names[round % names.len()];
            let grant = expect::granted(&ask!(client, "LOCK.ACQUIRE", name, 60_000, "WAIT", 10_000));
            expect::renewed(&ask!(client, "LOCK.RENEW", name, grant.fence, 60_000));
            expect::released(&ask!(client, "LOCK.RELEASE", name, grant.fence));
            expect::refused(&ask!(client, "LOCK.RELEASE", name, grant.fence), "already_released");
        }
    }
    let (first, rest) = clients.split_first_mut().expect("a client");
    let grant = expect::granted(&ask!(first, "LOCK.ACQUIRE", "handed", 60_000));
    let words = ["LOCK.ACQUIRE", "handed", "60000", "WAIT", "30000"].map(|word| word.as_bytes().to_vec());
    rest[0].send(&words);
    let queued = || matches!(ask!(first, "LOCK.QUEUE", "handed"), Value::Array(queue) if queue.len() == 1);
    assert!(poll_until(WITHIN, queued), "nobody waits");
    expect::released(&ask!(first, "LOCK.RELEASE", "handed", grant.fence));
    expect::granted(&rest[0].receive());
    expect::granted(&ask!(first, "LOCK.ACQUIRE", "short", 3_000));
    expect::granted(&ask!(first, "LOCK.ACQUIRE", "tier1", 60_000, "TIER", "EFFICIENCY"));
    expect::granted(&ask!(first, "LOCK.ACQUIRE", "permits", 600_000, "PERMITS", 2, "OF", 5));
    for client in rest {
        expect::granted(&ask!(client, "LOCK.ACQUIRE", "shared", 600_000, "SHARED"));
        expect::error(&ask!(client, "LOCK.ACQUIRE", "permits", 1_000, "SHARED"), "MODE");
    }
}

fn names_in(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_name(c)).filter(|word| word.starts_with("redfence_"));
    words.map(str::to_owned).collect()
}

#[test]
fn board_and_rules_name_metrics_that_a_cluster_under_load_has() {
    let redis = Redis::start(&redis::Options::with_module());
    let options = Options::nodes(3)
        .flag("--redis", &redis.address().to_string())
        .flag("--route", "tier1=efficiency")
        .flag("--snapshot-entries", "50");
    let watched = Watched::start(options);
    let leader = watched.cluster.wait_for_leader(WITHIN);
    let mut clients: Vec<Client> = watched.cluster.nodes.iter().map(|node| node.client()).collect();
    work(&mut clients);
    watched.await_sample(leader, "redfence_losses_total{cause=\"expired\"}", |count| count >= 1.0);
    watched.await_sample(leader, "redfence_locks_held{mode=\"exclusive\"}", |holds| holds == 1.0);
    watched.await_sample(leader, "redfence_locks_held{mode=\"shared\"}", |holds| holds == 2.0);
    watched.await_sample(leader, "redfence_locks_held{mode=\"permits\"}", |holds| holds == 1.0);
    watched.await_sample(leader, "redfence_digests_compared_total", |count| count >= 1.0);
    watched.await_sample(leader, "redfence_snapshot_seconds_count{step=\"write\"}", |count| count >= 1.0);
    let scrapes: Vec<Scrape> = watched.cluster.nodes.iter().map(|node| watched.scrape(node.id)).collect();
    scrapes.iter().for_each(check_histograms);
    check_figures(&scrapes, leader);
    let sampled: BTreeSet<String> = scrapes.iter().flat_map(Scrape::sampled).collect();
    let empty: Vec<&String> = scrapes[0].families.keys().filter(|name| !sampled.contains(*name)).collect();
    assert!(empty.is_empty(), "without a sample on any node: {empty:?}");
    for file in ["prometheus/rules.yml", "prometheus/rules.test.yml", "grafana/boards/redfence.json"] {
        let text = std::fs::read_to_string(docker().join(file)).expect("a readable file");
        let unknown: Vec<String> = names_in(&text)
            .into_iter()
            .filter(|name| !sampled.contains(&family_of(name, &scrapes[0].families)))
            .collect();
        assert!(unknown.is_empty(), "{file} names metrics that no node has: {unknown:?}");
    }
    for node in &watched.cluster.nodes {
        promtool(&["check", "metrics"], Some(&watched.scrape(node.id).text));
    }
}

fn check_figures(scrapes: &[Scrape], leader: u64) {
    let total = |name: &str| scrapes.iter().map(|scrape| scrape.sum(name)).sum::<f64>();
    assert_eq!(total("redfence_is_leader"), 1.0);
    // 60 rounds, and seven more: two of `handed`, one each of `short`, `tier1` and `permits`, two of `shared`.
    assert_eq!((total("redfence_grants_total"), total("redfence_renewals_total")), (67.0, 60.0));
    assert_eq!(total("redfence_releases_total"), 61.0);
    let refusals = |code: &str| {
        let series = format!("redfence_refusals_total{{code=\"{code}\"}}");
        scrapes.iter().map(|scrape| scrape.samples[&series]).sum::<f64>()
    };
    assert_eq!((refusals("already_released"), refusals("MODE"), refusals("taken")), (60.0, 2.0, 0.0));
    assert_eq!(total("redfence_acquire_wait_seconds_count"), 61.0);
    let leads = &scrapes[leader as usize - 1];
    for name in ["redfence_handover_seconds_count", "redfence_proposal_to_apply_seconds_count"] {
        assert!(leads.samples[name] >= 1.0, "{name}");
    }
    // 61 releases and one expiry.
    assert!(leads.samples["redfence_hold_seconds_count"] >= 62.0);
    assert_eq!(
        leads.samples.keys().filter(|series| series.starts_with("redfence_follower_lag_entries")).count(),
        2
    );
    assert!(leads.samples["redfence_log_entries"] >= 1.0);
    assert!(leads.samples["redfence_log_write_seconds_count"] >= 1.0);
}

/// Says aloud where it is missing.
fn promtool(arguments: &[&str], input: Option<&str>) {
    let child = Command::new("promtool")
        .args(arguments)
        .current_dir(docker().join("prometheus"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        return left_out::or_fail(
            "promtool is missing (Debian package prometheus): alert rules are not checked",
        );
    };
    let mut stdin = child.stdin.take().expect("piped");
    // It may end before it has read everything; its status tells.
    let _ = stdin.write_all(input.unwrap_or("").as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("its output");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "promtool {arguments:?}: {}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
}

#[test]
fn promtool_accepts_the_alert_rules_and_their_tests() {
    promtool(&["check", "config", "prometheus.yml"], None);
    promtool(&["check", "rules", "rules.yml"], None);
    promtool(&["test", "rules", "rules.test.yml"], None);
}

#[test]
fn a_paused_node_is_slow_for_its_leader_and_says_itself_that_it_did_not_run() {
    let watched = Watched::start(Options::nodes(3));
    let leader = watched.cluster.wait_for_leader(WITHIN);
    let paused = watched.cluster.follower(leader).id;
    let peer = |name: &str| format!("{name}{{peer=\"{paused}\"}}");
    watched.await_sample(leader, &peer("redfence_peer_round_trip_seconds_count"), |count| count >= 1.0);
    watched.cluster.pause(paused);
    watched.await_sample(leader, &peer("redfence_peer_slow"), |slow| slow == 1.0);
    watched.await_line(leader, "peer is slow to answer heartbeats");
    watched.await_sample(leader, &peer("redfence_peer_up"), |up| up == 0.0);
    watched.cluster.resume(paused);
    // It sees a pause where it was about to sleep, as it nearly always is.
    let has_seen = || watched.scrape(paused).samples["redfence_process_pauses_total"] >= 1.0;
    for _ in 0..5 {
        if poll_until(Duration::from_secs(2), has_seen) {
            break;
        }
        watched.cluster.pause(paused);
        watched.await_sample(leader, &peer("redfence_peer_up"), |up| up == 0.0);
        watched.cluster.resume(paused);
    }
    watched.await_line(paused, "this process did not run for a while");
    watched.await_sample(leader, &peer("redfence_peer_up"), |up| up == 1.0);
}
