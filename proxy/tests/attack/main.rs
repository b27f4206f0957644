//! A running cluster with TLS, ACL users and an encrypted peer port, attacked on every port: plain bytes where TLS is spoken, TLS where
//! it is not, truncated and changed handshakes, old protocol versions, replayed peer sessions, frames of strangers, and connections
//! that say one byte at a time.
//!
//! No node may panic, leak a connection or stop serving, and every operation of the honest clients must succeed. Their p99 beside
//! the attack and without it is printed.
//!
//! `REDFENCE_ATTACK_FRAMES` (3,000) and `REDFENCE_ATTACK_SLOW` (200) say how much; `make attack` uses the sizes of the nightly run.

#[path = "../support/mod.rs"]
mod support;

mod frames;
mod honest;
mod recorder;
mod target;

use frames::{Rng, Source};
use honest::Honest;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::await_that;
use target::{Port, Target};

const ATTACKERS: u64 = 4;
/// The answer to the first message of a Noise handshake: an ephemeral key and a tag.
const HANDSHAKE_BYTES: usize = 32 + 16;
/// Connections that one attacker has open at once.
const AT_ONCE: usize = 32;
/// How long it waits for answers to all of them.
const ANSWER_WITHIN: Duration = Duration::from_millis(5);
/// How long the honest clients run alone, to compare with.
const ALONE: Duration = Duration::from_secs(2);
/// File descriptors that are not for slow connections.
const FILES_KEPT: u64 = 1_000;

fn parameter(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is a number, not '{text}'")),
        Err(_) => default,
    }
}

#[test]
fn hostile_bytes_on_every_port_cost_nobody_anything() {
    let frames = parameter("REDFENCE_ATTACK_FRAMES", 3_000);
    let slow = parameter("REDFENCE_ATTACK_SLOW", 200).min(files_allowed());
    let target = Target::start();
    let ports = target.ports();
    let honest = Honest::start(&target);
    std::thread::sleep(ALONE);
    let alone = honest.take();
    let before = target.usage();

    let sources = Source::all(&target);
    let sent = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| drip(&ports, slow, &is_over));
        let attackers: Vec<_> = (0..ATTACKERS)
            .map(|number| {
                let (sources, ports, sent) = (&sources, &ports, &sent);
                scope.spawn(move || attack(Rng(number + 1), sources, ports, sent, frames))
            })
            .collect();
        let ended: Vec<_> = attackers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        is_over.store(true, Ordering::Relaxed);
        slow.join().expect("the slow connections were made");
        ended.into_iter().for_each(|ended| ended.expect("an attacker"));
    });
    let took = began.elapsed();
    let beside = honest.stop();

    await_that("the connections of the attack are gone", || {
        target.usage().iter().zip(&before).all(|(now, before)| now.files <= before.files + 8)
    });
    println!(
        "attack: {} hostile frames and {slow} slow connections in {:.1} s on {} ports; honest clients: {} operations, p50 {:.1} ms, \
         p99 {:.1} ms beside it; {} operations, p50 {:.1} ms, p99 {:.1} ms without it",
        sent.load(Ordering::Relaxed),
        took.as_secs_f64(),
        ports.len(),
        beside.operations,
        beside.p50_ms,
        beside.p99_ms,
        alone.operations,
        alone.p50_ms,
        alone.p99_ms,
    );
    assert!(alone.operations > 0 && beside.operations > 0);
    target.check_unharmed(&before);
}

/// What this process may have open besides what it needs itself.
fn files_allowed() -> u64 {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap_or_default();
    let soft = line.split_whitespace().nth(3).and_then(|word| word.parse().ok()).unwrap_or(1_024_u64);
    soft.saturating_sub(FILES_KEPT).max(20)
}

fn attack(mut rng: Rng, sources: &[Source], ports: &[Port], sent: &AtomicU64, frames: u64) {
    while sent.load(Ordering::Relaxed) < frames {
        let mut open = Vec::with_capacity(AT_ONCE);
        for _ in 0..AT_ONCE {
            let port = &ports[rng.below(ports.len())];
            let source = &sources[rng.below(sources.len())];
            if let Some(mut stream) = target::connect_as_stranger(port.address) {
                // It may be closed while we write.
                let _ = stream.write_all(&source.bytes(&mut rng));
                open.push((port, source, stream));
            }
        }
        sent.fetch_add(open.len() as u64, Ordering::Relaxed);
        std::thread::sleep(ANSWER_WITHIN);
        for (port, source, mut stream) in open {
            let mut answer = [0; 4_096];
            let read = stream.set_nonblocking(true).and_then(|()| stream.read(&mut answer));
            check_answer(port, &answer[..read.unwrap_or(0)], source);
        }
    }
}

/// Whoever has not proved who it is hears nothing of the state.
fn check_answer(port: &Port, answer: &[u8], source: &Source) {
    if port.is_peer {
        // The recorded beginning of a session is good for one answer: a fresh ephemeral key and its tag. Nothing follows, because what
        // was recorded behind it was sealed with other keys.
        let may_answer = if source.is_replay() { HANDSHAKE_BYTES } else { 0 };
        assert!(answer.len() <= may_answer, "the peer port answered a stranger ({source:?}): {answer:?}");
    }
    let text = String::from_utf8_lossy(answer);
    assert!(!text.contains("PONG") && !text.contains(target::SECRET_NAME), "{source:?}: {text}");
}

/// Slow connections, spread over all ports: each says one byte of something at a time. Those that are closed are made again.
fn drip(ports: &[Port], count: u64, is_over: &AtomicBool) {
    let open = |address: SocketAddr| target::connect_as_stranger(address);
    let mut streams: Vec<_> = (0..count as usize).map(|at| open(ports[at % ports.len()].address)).collect();
    let bytes = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03*1\r\n$4\r\nPING";
    let mut round = 0;
    while !is_over.load(Ordering::Relaxed) {
        for (at, stream) in streams.iter_mut().enumerate() {
            let byte = bytes[round % bytes.len()];
            let is_open = stream.as_mut().is_some_and(|stream| stream.write_all(&[byte]).is_ok());
            if !is_open {
                *stream = open(ports[at % ports.len()].address);
            }
        }
        round += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
}
