//! `/metrics`: everything that is measured, as text for Prometheus. The page `docs/metrics.md` lists the same names; a test compares them.
//!
//! Labels are few and known when the program is built, but for the ids of peers; no label ever names a resource, an owner or a user.

use crate::metrics::histogram::Snapshot;
use crate::metrics::text::{Kind, Page, Seconds};
use crate::metrics::{NodeMetrics, Queue, ServedBy, SnapshotStep};
use crate::node_api::{ClusterStatus, Role};
use crate::server::commands::info;
use crate::server::stats::CommandKind;
use crate::server::ServerState;
use crate::tier1::upstream::Health;
use crate::tier2::handle::inbox::{CLIENT_BYTES_MAX, CLIENT_ITEMS_MAX, PEER_BYTES_MAX, PEER_ITEMS_MAX};
use redfence_core::types::LossCause;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a page of a busy node takes.
const PAGE_BYTES: usize = 48 << 10;

pub(super) fn page(server: &ServerState) -> String {
    let status = server.tier2.status();
    let metrics = server.tier2.metrics();
    let mut page = Page::with_capacity(PAGE_BYTES);
    node(&mut page, &status);
    raft(&mut page, metrics);
    disk(&mut page, metrics, server.now_us());
    peers(&mut page, metrics);
    queues(&mut page, server, metrics);
    state(&mut page, &status, metrics);
    commands(&mut page, server);
    clients(&mut page, server);
    page.into_text()
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn node(page: &mut Page, status: &ClusterStatus) {
    let flag = u8::from;
    page.family("redfence_build_info", Kind::Gauge, "The version of this program; always 1.")
        .sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.gauge("redfence_node_id", "Id of this node.", status.id);
    page.gauge("redfence_leader_id", "Id of the leader as this node knows it; 0 for none.", status.leader);
    page.gauge("redfence_is_leader", "1 where this node leads.", flag(status.role == Role::Leader));
    page.gauge("redfence_quorum", "1 where this node reaches a leader with a quorum.", flag(status.quorum));
    page.gauge("redfence_voters", "Voters of the cluster.", status.voters);
    page.gauge("redfence_term", "Raft term.", status.term);
    page.gauge("redfence_commit_index", "Last log entry known to be committed.", status.commit);
    page.gauge("redfence_applied_index", "Last log entry applied.", status.applied);
    page.gauge("redfence_cluster_version", "Cluster version in force.", status.cluster_version);
    let digests = status.digests;
    page.gauge(
        "redfence_quarantined",
        "1 where this node's state differs from that of a majority of voters: it serves nothing.",
        flag(status.role == Role::Quarantined),
    );
    page.gauge("redfence_quarantined_members", "Members that are quarantined.", digests.quarantined_members);
    page.gauge(
        "redfence_digest_no_majority",
        "1 where voters report different digests and no majority agrees: no node serves.",
        flag(digests.no_majority),
    );
    page.gauge("redfence_digest_index", "Last entry at which all nodes noted a digest.", digests.point_index);
    page.gauge(
        "redfence_digest_full_index",
        "Last entry at which a digest of the whole state was asked for.",
        digests.full_index,
    );
    page.gauge(
        "redfence_digest_confirmed_index",
        "A majority of voters agrees on everything up to this entry.",
        digests.confirmed_index,
    );
}

fn raft(page: &mut Page, metrics: &NodeMetrics) {
    page.counter(
        "redfence_digests_compared_total",
        "Digests of this node that a majority of voters has confirmed.",
        metrics.digests_compared.get(),
    );
    page.counter("redfence_elections_total", "Elections this node stood for.", metrics.elections.get());
    page.counter(
        "redfence_leader_changes_total",
        "New leaders this node has heard of.",
        metrics.leader_changes.get(),
    );
    page.histogram(
        "redfence_apply_seconds",
        "Time to apply one batch of committed entries.",
        &metrics.apply.snapshot(),
    );
    page.histogram(
        "redfence_proposal_to_apply_seconds",
        "Time from the proposal of an entry until the leader has applied it. On the leader.",
        &metrics.proposal_to_apply.snapshot(),
    );
    page.histogram(
        "redfence_handover_seconds",
        "Time from the proposal of the end of a hold to the grant of its successor. On the leader.",
        &metrics.handover.snapshot(),
    );
    page.counter(
        "redfence_clock_steps_total",
        "Times that the wall clock was set by half a second or more.",
        metrics.clock_steps.get(),
    );
    page.counter(
        "redfence_process_pauses_total",
        "Times that this process did not run for a second or more.",
        metrics.pauses.get(),
    );
}

fn disk(page: &mut Page, metrics: &NodeMetrics, now_us: u64) {
    page.histogram(
        "redfence_log_write_seconds",
        "Time to write one batch to the log and fsync it.",
        &metrics.log_write.snapshot(),
    );
    page.gauge(
        "redfence_log_write_age_seconds",
        "How long the log write that is under way has lasted; 0 for none.",
        Seconds(metrics.log_write_age_us(now_us)),
    );
    page.counter(
        "redfence_disk_stalls_total",
        "Log writes that did not return within a second.",
        metrics.disk_stalls.get(),
    );
    page.gauge("redfence_log_entries", "Entries in the log.", metrics.log_entries.get());
    page.gauge("redfence_log_bytes", "Bytes of the log files.", metrics.log_bytes.get());
    let mut family = page.family(
        "redfence_snapshot_seconds",
        Kind::Histogram,
        "Time to write, send or receive a snapshot.",
    );
    for step in SnapshotStep::ALL {
        family.histogram(&[("step", step.as_str())], &metrics.snapshot(step).snapshot());
    }
    let mut family = page.family(
        "redfence_snapshots_failed_total",
        Kind::Counter,
        "Snapshots that could not be written, sent or received.",
    );
    for step in SnapshotStep::ALL {
        family.sample(&[("step", step.as_str())], metrics.snapshots_failed(step).get());
    }
}

fn peers(page: &mut Page, metrics: &NodeMetrics) {
    let peers: Vec<_> = metrics.peers().into_iter().map(|(id, peer)| (id.to_string(), peer)).collect();
    let mut family = page.family(
        "redfence_peer_round_trip_seconds",
        Kind::Histogram,
        "Time from a heartbeat to its answer. On the leader.",
    );
    for (id, peer) in &peers {
        let snapshot = peer.round_trip.snapshot();
        if snapshot.count() > 0 {
            family.histogram(&[("peer", id)], &snapshot);
        }
    }
    let mut family =
        page.family("redfence_peer_up", Kind::Gauge, "1 where the member was heard of in the last seconds.");
    peers.iter().for_each(|(id, peer)| family.sample(&[("peer", id)], peer.up.get()));
    let mut family =
        page.family("redfence_peer_slow", Kind::Gauge, "1 where the member is slow to answer heartbeats.");
    peers.iter().for_each(|(id, peer)| family.sample(&[("peer", id)], peer.slow.get()));
    let lags = || peers.iter().filter_map(|(id, peer)| Some((id, peer.lag()?)));
    let mut family = page.family(
        "redfence_follower_lag_entries",
        Kind::Gauge,
        "Log entries the member has not acknowledged. On the leader.",
    );
    lags().for_each(|(id, (entries, _))| family.sample(&[("peer", id)], entries));
    let mut family = page.family(
        "redfence_follower_lag_bytes",
        Kind::Gauge,
        "About how many bytes of log the member has not acknowledged. On the leader.",
    );
    lags().for_each(|(id, (_, bytes))| family.sample(&[("peer", id)], bytes));
}

fn queues(page: &mut Page, server: &ServerState, metrics: &NodeMetrics) {
    let fill = server.tier2.inbox_fill();
    let rows = [
        ("requests", fill.clients, CLIENT_ITEMS_MAX, CLIENT_BYTES_MAX),
        ("peer_messages", fill.peers, PEER_ITEMS_MAX, PEER_BYTES_MAX),
    ];
    let mut family =
        page.family("redfence_queue_items", Kind::Gauge, "Items that wait in a queue of this node.");
    rows.iter().for_each(|(queue, fill, ..)| family.sample(&[("queue", queue)], fill.items));
    family.sample(&[("queue", "log_writes")], metrics.log_writes_queued.get());
    let mut family = page.family("redfence_queue_items_max", Kind::Gauge, "Items that may wait in it.");
    rows.iter().for_each(|(queue, _, items, _)| family.sample(&[("queue", queue)], items));
    family.sample(&[("queue", "log_writes")], crate::tier2::shell::LOG_WRITES_MAX);
    let mut family =
        page.family("redfence_queue_bytes", Kind::Gauge, "Bytes that wait in a queue of this node.");
    rows.iter().for_each(|(queue, fill, ..)| family.sample(&[("queue", queue)], fill.bytes));
    let mut family = page.family("redfence_queue_bytes_max", Kind::Gauge, "Bytes that may wait in it.");
    rows.iter().for_each(|(queue, .., bytes)| family.sample(&[("queue", queue)], bytes));
    let mut family = page.family(
        "redfence_queue_full_total",
        Kind::Counter,
        "Requests and messages that were refused or dropped because a queue was full.",
    );
    for queue in Queue::ALL {
        family.sample(&[("queue", queue.as_str())], metrics.queue_full(queue).get());
    }
}

fn state(page: &mut Page, status: &ClusterStatus, metrics: &NodeMetrics) {
    let machine = status.stats;
    let mut family =
        page.family("redfence_locks_held", Kind::Gauge, "Holds of locks and keys of Tier 2 that exist.");
    for (mode, holds) in [
        ("exclusive", machine.exclusive_holds),
        ("shared", machine.shared_holds),
        ("permits", machine.permit_holds),
    ] {
        family.sample(&[("mode", mode)], holds);
    }
    page.gauge("redfence_waiters", "Places in the queues of locks.", machine.waiters);
    page.gauge("redfence_blocked_commands", "Clients blocked in BLPOP and the like.", machine.blocked);
    page.gauge("redfence_sessions", "Open sessions.", machine.sessions);
    page.gauge(
        "redfence_idle_records",
        "Records of free locks that are still remembered.",
        machine.idle_records,
    );
    page.gauge("redfence_state_bytes", "Bytes that count against max-memory.", machine.memory_used_bytes);
    page.gauge("redfence_max_memory_bytes", "The setting max-memory.", machine.memory_max_bytes);
    page.counter("redfence_expiries_total", "Holds that did not end by a release.", machine.expiries);
    page.counter("redfence_deadlocks_total", "Waits refused with DEADLOCK.", machine.deadlocks);
    let mut family = page.family(
        "redfence_losses_total",
        Kind::Counter,
        "Holds that their holder did not end, by cause, in entries this node has applied since its start.",
    );
    for cause in LossCause::ALL {
        family.sample(&[("cause", cause.as_str())], metrics.losses(cause).get());
    }
    page.histogram(
        "redfence_hold_seconds",
        "How long locks and keys of Tier 2 were held, of those that ended since the start of this node.",
        &metrics.hold.snapshot(),
    );
}

fn commands(page: &mut Page, server: &ServerState) {
    let stats = &server.stats;
    page.counter("redfence_commands_total", "Commands of clients.", load(&stats.commands));
    let mut family = page.family(
        "redfence_command_seconds",
        Kind::Histogram,
        "Time from a command to its answer, with the time it waited in a queue.",
    );
    for by in ServedBy::ALL {
        for command in CommandKind::ALL {
            let snapshot: Snapshot = stats.latency(by, command);
            if snapshot.count() > 0 {
                family.histogram(&[("command", command.as_str()), ("tier", by.as_str())], &snapshot);
            }
        }
    }
    let mut family = page.family(
        "redfence_acquire_wait_seconds",
        Kind::Histogram,
        "Time from an acquire with a WAIT to its grant.",
    );
    for by in ServedBy::ALL {
        family.histogram(&[("tier", by.as_str())], &stats.acquire_wait(by));
    }
    page.counter("redfence_grants_total", "Acquires that were granted.", load(&stats.grants));
    page.counter("redfence_releases_total", "Releases that ended a hold.", load(&stats.releases));
    page.counter("redfence_renewals_total", "Renewals that succeeded.", load(&stats.renewals));
    let mut family = page.family(
        "redfence_refusals_total",
        Kind::Counter,
        "Commands that were refused: codes of errors, reasons of releases and renewals, and taken locks.",
    );
    for (code, count) in stats.refusals_by_code() {
        family.sample(&[("code", code)], count);
    }
}

fn clients(page: &mut Page, server: &ServerState) {
    let stats = &server.stats;
    page.gauge("redfence_clients", "Clients that are connected.", server.clients.len());
    page.gauge("redfence_clients_max", "Clients that may be connected.", server.clients_max);
    page.counter("redfence_connections_total", "Connections of clients.", load(&stats.connections));
    page.counter(
        "redfence_connections_refused_total",
        "Connections refused because there were too many.",
        load(&stats.connections_refused),
    );
    page.counter(
        "redfence_tls_handshakes_failed_total",
        "TLS handshakes of clients that failed.",
        load(&stats.tls_handshakes_failed),
    );
    page.counter(
        "redfence_events_lost_total",
        "Lock events that were dropped because they piled up.",
        server.events_lost.load(Ordering::Relaxed),
    );
    let denied = &server.access.denied;
    let mut family = page.family(
        "redfence_acl_denied_total",
        Kind::Counter,
        "Failed logins, and commands refused with NOPERM.",
    );
    for (reason, count) in [
        ("auth", &denied.auth),
        ("command", &denied.command),
        ("key", &denied.key),
        ("channel", &denied.channel),
    ] {
        family.sample(&[("reason", reason)], load(count));
    }
    page.gauge(
        "redfence_acl_users_differ",
        "Nodes that are up and have other ACL users than this one.",
        load(&server.access.users_differ),
    );
    let mut family =
        page.family("redfence_upstream_up", Kind::Gauge, "1 where the upstream Redis serves Tier 1.");
    if let Some(upstream) = &server.upstream {
        let is_up = match upstream.health() {
            Health::Up(_) => true,
            Health::Starting | Health::Down { .. } => false,
        };
        family.sample(&[], u8::from(is_up));
    }
    page.gauge("redfence_resident_memory_bytes", "Resident memory of this process.", info::resident_bytes());
}
