//! How soon a holder hears that its lock was taken from it, on a cluster that does nothing else.
//!
//! From the moment an operator sends `LOCK.FORCERELEASE` to the moment the holder has read its `lock-lost` push: the commit, which lies in
//! between, is seen by nobody outside. Both are connected to nodes in turn, so that holder and operator are at the same node and at others.

use crate::connection::BlockingConnection;
use crate::latencies::Latencies;
use crate::options::Options;
use crate::report::Findings;
use crate::resp;
use crate::servers::redfence::Cluster;
use crate::work::{granted, name, TTL_MS};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(10);
const LOSSES: usize = 500;
const LOSSES_QUICK: usize = 20;
const MOST_MS: f64 = 50.0;

pub(crate) fn run(options: &Options) -> Result<Findings, String> {
    let cluster = Cluster::start(&options.redfence()?, 3, &[])?;
    let losses = if options.quick { LOSSES_QUICK } else { LOSSES };
    let addresses = cluster.addresses();
    let mut latencies = Latencies::default();
    for holder in &addresses {
        for operator in &addresses {
            lose(*holder, *operator, losses, &mut latencies)
                .map_err(|error| format!("{holder}, {operator}: {error}"))?;
        }
    }
    println!(
        "\na lock taken by force: from the operator's request to the holder's push, an idle cluster of three"
    );
    let mut findings = Findings::default();
    findings.figure("losses", "told after, p50", latencies.quantile_us(0.5), "us");
    findings.figure("losses", "told after, p99", latencies.quantile_us(0.99), "us");
    findings.figure("losses", "told after, longest", latencies.longest_us(), "us");
    let p99_ms = latencies.quantile_us(0.99) / 1_000.0;
    findings.goal_at_most("lock-lost after the loss was asked for, p99, ms", Some(p99_ms), MOST_MS);
    Ok(findings)
}

fn lose(
    holder: SocketAddr,
    operator: SocketAddr,
    losses: usize,
    latencies: &mut Latencies,
) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let mut holder = BlockingConnection::open(holder, PATIENCE).map_err(failed)?;
    let mut operator = BlockingConnection::open(operator, PATIENCE).map_err(failed)?;
    for words in [[b"HELLO".as_slice(), b"3"], [b"LOCK.NOTIFY", b"ON"]] {
        let reply = holder.ask(&words).map_err(failed)?;
        if resp::is_error(&reply) {
            return Err(resp::shown(&reply));
        }
    }
    for number in 0..losses {
        let lock = name(number as u64);
        let fence = granted(&holder.ask(&[b"LOCK.ACQUIRE", &lock, TTL_MS]).map_err(failed)?)?;
        let asked_at = Instant::now();
        operator.send(&[b"LOCK.FORCERELEASE", &lock]).map_err(failed)?;
        let push = holder.receive().map_err(failed)?;
        latencies.record(asked_at.elapsed());
        if !is_loss_of(&push, fence) {
            return Err(format!("not a loss of {fence}: {}", resp::shown(&push)));
        }
        let reply = operator.receive().map_err(failed)?;
        if reply != b":1\r\n" {
            return Err(format!("not released: {}", resp::shown(&reply)));
        }
    }
    Ok(())
}

fn is_loss_of(push: &[u8], fence: i64) -> bool {
    let has = |text: &[u8]| resp::lines(push).any(|line| line == text);
    push.starts_with(b">5\r\n") && has(b"lock-lost") && resp::integers(push).next() == Some(fence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_a_push_with_the_fence() {
        let push = b">5\r\n$9\r\nlock-lost\r\n$1\r\na\r\n:7\r\n$6\r\nforced\r\n_\r\n";
        assert_eq!(resp::reply_len(push), Some(push.len()));
        assert!(is_loss_of(push, 7) && !is_loss_of(push, 8));
        assert!(!is_loss_of(b">5\r\n$12\r\nlock-suspect\r\n$1\r\na\r\n:7\r\n$9\r\nno_quorum\r\n_\r\n", 7));
    }
}
