//! One node by itself, on a clock that the test moves. Whole clusters are tested on the simulator: `tests/tests/node`.

mod batching;
mod hostile_peers;
mod stops;
mod throughput;
mod transfers;

use crate::tier2::config::NodeConfig;
use redfence_core::machine::Command;

fn acquire<'a>(resource: &'a str, owner: &'a str, ttl_ms: u64, wait_ms: u64) -> Command<'a> {
    Command::Acquire {
        db: 0,
        resource: resource.as_bytes(),
        ttl_ms,
        wait_ms,
        owner: owner.as_bytes(),
        session: None,
    }
}
