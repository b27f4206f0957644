//! How many threads serve clients. Asked once by `main`; Raft, its log and its peers have their own.

use std::net::IpAddr;

/// After so many polls of tasks a thread looks at the sockets and timers, even if it has more tasks to poll (tokio's default is 61).
/// Clients that send without end keep every thread busy, and each of their polls takes as long as it may
/// (`server::net::connection`): so long, times this, others wait to be noticed. How often threads look for tasks that other threads
/// have woken is left to tokio, which looks the more often the longer polls take.
pub const POLLS_PER_LOOK: u32 = 16;

/// One per core; if the upstream Redis runs on the same machine, one core is left to it. On two cores a second thread would cost more in being woken
/// than it serves (`docs/internals/performance-notes.md`).
#[must_use]
pub fn for_clients(cores: usize, redis_host: Option<&str>) -> usize {
    let shares_cores = redis_host.is_some_and(is_on_this_machine);
    cores.saturating_sub(usize::from(shares_cores)).max(1)
}

/// By the look of its name; other names of this machine are not known as such.
fn is_on_this_machine(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redis_beside_us_gets_a_core() {
        for here in ["127.0.0.1", "localhost", "LOCALHOST", "::1", "127.8.0.1"] {
            assert_eq!(for_clients(2, Some(here)), 1, "{here}");
            assert_eq!(for_clients(8, Some(here)), 7, "{here}");
        }
        for elsewhere in ["10.0.0.1", "redis", "localhost.example.org", "fe80::1"] {
            assert_eq!(for_clients(2, Some(elsewhere)), 2, "{elsewhere}");
        }
        assert_eq!(for_clients(2, None), 2);
        assert_eq!(for_clients(1, Some("127.0.0.1")), 1);
        assert_eq!(for_clients(1, None), 1);
    }
}
