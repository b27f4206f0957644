//! `INFO [section…]`: what Redis users look for, and a section of our own.
//!
//! With an upstream Redis the answer is that Redis's own, with our section behind it. While it cannot be asked, this node says what
//! is true of itself.

use super::hello::REDIS_VERSION;
use super::is;
use crate::node_api::Role;
use crate::server::context::CommandContext;
use crate::server::net::connection::Progress;
use crate::server::net::in_flight::{IfAbandoned, InFlight, Source};
use crate::server::ServerState;
use crate::tier1::upstream::Health;
use bytes::Bytes;
use redfence_core::reply::Reply;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

type Section = (&'static str, fn(&ServerState, &mut String));

const OURS: &str = "Redfence";

const SECTIONS: &[Section] = &[
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Persistence", persistence),
    ("Stats", stats),
    ("Replication", replication),
    ("Cluster", cluster),
    ("Keyspace", keyspace),
    (OURS, redfence),
];

/// How long the upstream Redis may take to say what it is.
const UPSTREAM_WITHIN: Duration = Duration::from_secs(2);

impl CommandContext {
    pub(in crate::server) fn info(&mut self, argv: &[&[u8]]) -> Progress {
        let sections: Vec<Bytes> = argv[1..].iter().map(|word| Bytes::copy_from_slice(word)).collect();
        let only_ours = !sections.is_empty() && sections.iter().all(|word| is(word, OURS));
        let upstream = self.server.upstream.clone().filter(|_| self.has_upstream() && !only_ours);
        let Some(upstream) = upstream else {
            self.reply(&Reply::Verbatim(text_of(&self.server, &sections).into()));
            return Progress::Done;
        };
        if !self.can_join(InFlight::Alone) {
            return Progress::Stalled;
        }
        let (sender, receiver) = oneshot::channel();
        let server = Arc::clone(&self.server);
        tokio::spawn(async move {
            let mut words = vec![Bytes::from_static(b"INFO")];
            words.extend(sections.iter().filter(|word| !is(word, OURS)).cloned());
            let reply = match tokio::time::timeout(UPSTREAM_WITHIN, upstream.ask(&words)).await {
                Ok(Reply::Bulk(text)) => {
                    let mut text = String::from_utf8_lossy(&text).into_owned();
                    if wants(&sections, OURS) {
                        text.push_str("\r\n");
                        write_section(&server, OURS, redfence, &mut text);
                    }
                    Reply::Verbatim(text.into())
                }
                Ok(Reply::Error(refusal)) if !matches!(refusal.code(), "UNAVAILABLE" | "INDETERMINATE") => {
                    Reply::Error(refusal)
                }
                Ok(_) | Err(_) => Reply::Verbatim(text_of(&server, &sections).into()),
            };
            // The client may be gone: then nobody misses the answer.
            let _ = sender.send(reply);
        });
        self.await_call(InFlight::Alone, Source::Node(receiver), false, IfAbandoned::Nothing);
        self.needs_no_routes();
        Progress::Done
    }
}

/// What this node says of itself.
fn text_of(server: &ServerState, sections: &[Bytes]) -> String {
    let mut text = String::with_capacity(2048);
    for (title, write) in SECTIONS {
        if wants(sections, title) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            write_section(server, title, *write, &mut text);
        }
    }
    text
}

fn write_section(server: &ServerState, title: &str, write: fn(&ServerState, &mut String), text: &mut String) {
    let _ = write!(text, "# {title}\r\n");
    write(server, text);
}

fn wants(sections: &[Bytes], title: &str) -> bool {
    let all = |word: &Bytes| is(word, "ALL") || is(word, "EVERYTHING") || is(word, "DEFAULT");
    sections.is_empty() || sections.iter().any(|word| all(word) || is(word, title))
}

fn line(text: &mut String, name: &str, value: impl std::fmt::Display) {
    let _ = write!(text, "{name}:{value}\r\n");
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn server(server: &ServerState, text: &mut String) {
    line(text, "redis_version", REDIS_VERSION);
    line(text, "redfence_version", env!("CARGO_PKG_VERSION"));
    line(text, "redis_mode", "standalone");
    line(text, "os", std::env::consts::OS);
    line(text, "arch_bits", usize::BITS);
    line(text, "process_id", std::process::id());
    line(text, "run_id", &server.run_id);
    line(text, "tcp_port", server.listen_address.port());
    line(text, "uptime_in_seconds", server.now_ms() / 1000);
    line(text, "uptime_in_days", server.now_ms() / 86_400_000);
}

fn clients(server: &ServerState, text: &mut String) {
    line(text, "connected_clients", server.clients.len());
    line(text, "maxclients", server.clients_max);
}

/// The resident set of this process; 0 where the system does not tell.
pub(crate) fn resident_bytes() -> u64 {
    // The second number of statm is the resident set in pages, which are 4 KiB wherever we run.
    std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|statm| statm.split(' ').nth(1)?.parse::<u64>().ok())
        .map_or(0, |pages| pages * 4096)
}

fn memory(_: &ServerState, text: &mut String) {
    let resident_bytes = resident_bytes();
    line(text, "used_memory", resident_bytes);
    line(text, "used_memory_rss", resident_bytes);
}

fn persistence(_: &ServerState, text: &mut String) {
    line(text, "loading", 0);
    line(text, "async_loading", 0);
}

fn stats(server: &ServerState, text: &mut String) {
    line(text, "total_connections_received", load(&server.stats.connections));
    line(text, "rejected_connections", load(&server.stats.connections_refused));
    line(text, "idle_disconnected_clients", load(&server.stats.idle_disconnected));
    line(text, "total_commands_processed", load(&server.stats.commands));
    line(text, "pubsub_channels", server.hub.channel_count());
    line(text, "pubsub_patterns", server.hub.pattern_count());
    denied(server, text);
}

/// As Redis counts them.
fn denied(server: &ServerState, text: &mut String) {
    let denied = &server.access.denied;
    line(text, "acl_access_denied_auth", load(&denied.auth));
    line(text, "acl_access_denied_cmd", load(&denied.command));
    line(text, "acl_access_denied_key", load(&denied.key));
    line(text, "acl_access_denied_channel", load(&denied.channel));
}

fn replication(_: &ServerState, text: &mut String) {
    line(text, "role", "master");
    line(text, "connected_slaves", 0);
    line(text, "master_repl_offset", 0);
}

fn cluster(_: &ServerState, text: &mut String) {
    line(text, "cluster_enabled", 0);
}

/// Databases with keys. What is left of the times of keys is not averaged.
fn keyspace(server: &ServerState, text: &mut String) {
    for (db, stats) in server.tier2.status().stats.databases.iter().enumerate() {
        if stats.keys > 0 {
            line(
                text,
                &format!("db{db}"),
                format_args!("keys={},expires={},avg_ttl=0", stats.keys, stats.expires),
            );
        }
    }
}

fn redfence(server: &ServerState, text: &mut String) {
    let status = server.tier2.status();
    line(text, "node_id", status.id);
    line(text, "node_role", status.role.as_str());
    line(text, "leader_id", status.leader);
    line(text, "is_leader", u8::from(status.role == Role::Leader));
    line(text, "quorum", u8::from(status.quorum));
    line(text, "term", status.term);
    line(text, "commit", status.commit);
    line(text, "applied", status.applied);
    let digests = status.digests;
    line(text, "quarantined", u8::from(status.role == Role::Quarantined));
    line(text, "quarantined_members", digests.quarantined_members);
    line(text, "digest_no_majority", u8::from(digests.no_majority));
    line(text, "digest_index", digests.point_index);
    line(text, "digest_full_index", digests.full_index);
    line(text, "digest_confirmed_index", digests.confirmed_index);
    let tier1 = match &server.upstream {
        None => "none".to_string(),
        Some(upstream) => match upstream.health() {
            Health::Starting => "starting".to_string(),
            Health::Up(backend) => backend.as_str().to_string(),
            Health::Down { .. } => "down".to_string(),
        },
    };
    line(text, "tier1", tier1);
    let machine = status.stats;
    line(text, "locks_held", machine.locks_held);
    line(text, "waiters", machine.waiters);
    line(text, "blocked_commands", machine.blocked);
    line(text, "sessions", machine.sessions);
    line(text, "idle_records", machine.idle_records);
    line(text, "state_bytes", machine.memory_used_bytes);
    line(text, "max_memory", machine.memory_max_bytes);
    line(text, "commands", load(&server.stats.commands));
    line(text, "grants", load(&server.stats.grants));
    line(text, "releases", load(&server.stats.releases));
    line(text, "renewals", load(&server.stats.renewals));
    line(text, "expiries", machine.expiries);
    line(text, "deadlocks", machine.deadlocks);
    line(text, "refusals", load(&server.stats.refusals));
    line(text, "errors", load(&server.stats.errors));
    line(text, "tls_handshakes_failed", load(&server.stats.tls_handshakes_failed));
    let latency = server.stats.all_latency();
    line(text, "latency_p50_us", latency.percentile_us(50));
    line(text, "latency_p99_us", latency.percentile_us(99));
    line(text, "events_lost", server.events_lost.load(Ordering::Relaxed));
    denied(server, text);
    line(text, "acl_users_differ", load(&server.access.users_differ));
}
