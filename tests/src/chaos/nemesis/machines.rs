//! Faults of machines: disks that are slow, fail or fill up, the power, the clocks.

use std::time::Duration;

use super::{Nemesis, SERVES_WITHIN};
use crate::inject::Injection;

const DAY_S: i64 = 86_400;

impl Nemesis {
    fn inject(&self, id: u64, syscall: &str, what: &str) -> Result<Injection, String> {
        let trace = self.environment.file(&format!("node-{id}.strace"));
        // What an earlier injection wrote must not count for this one.
        let _ = std::fs::remove_file(&trace);
        Injection::attach(self.cluster.node(id).process().pid(), syscall, what, &trace)
    }

    /// Every sync takes a fifth of a second and more.
    pub(super) fn slow_sync(&mut self, leader: u64, follower: u64) -> Result<u64, String> {
        let id = self.either(leader, follower);
        let delay_us = 1_000 * self.rng.between(50, 700);
        let injection = self.inject(id, "fdatasync", &format!("delay_enter={delay_us}"))?;
        self.wait_ms(800, 2_500);
        drop(injection);
        Ok(id)
    }

    /// A system call fails until the node has noticed: it must stop by itself, and come back with all it had.
    pub(super) fn failing_call(
        &mut self,
        leader: u64,
        follower: u64,
        syscall: &str,
        what: &str,
    ) -> Result<u64, String> {
        let id = self.either(leader, follower);
        let injection = self.inject(id, syscall, what)?;
        let ended = self.cluster.node(id).process().wait(SERVES_WITHIN);
        let hit = injection.was_hit();
        drop(injection);
        let log = self.cluster.node(id).process().log_tail();
        match ended {
            None => return Err(format!("node {id} goes on though {syscall} fails (hit: {hit})\n{log}")),
            Some(status) if status.success() || status.code().is_none() || !hit => {
                return Err(format!("node {id} ended with {status} (hit: {hit})\n{log}"));
            }
            Some(_) => {}
        }
        self.cluster.kill(id);
        self.cluster.restart(id);
        Ok(id)
    }

    pub(super) fn power_cut_one(&mut self, leader: u64, follower: u64) -> Result<u64, String> {
        let id = self.either(leader, follower);
        self.power_cut(vec![id])
    }

    /// The power of these goes at one moment. They come back with what they had synced by then, and nothing else.
    pub(super) fn power_cut(&mut self, ids: Vec<u64>) -> Result<u64, String> {
        let hosts: Vec<usize> = ids.iter().map(|id| self.host(*id)).collect();
        for id in &ids {
            self.cluster.pause(*id);
        }
        let disks = self.environment.disks.as_ref().ok_or("there are no disks to lose")?;
        for host in &hosts {
            disks.cut(*host)?;
        }
        for id in &ids {
            self.cluster.kill(*id);
        }
        for host in &hosts {
            disks.come_back(*host)?;
        }
        self.wait_ms(10, 800);
        for id in &ids {
            self.cluster.restart(*id);
        }
        Ok(if ids.len() == 1 { ids[0] } else { 0 })
    }

    /// The time of day jumps, by seconds or by a year, there and back.
    pub(super) fn wall_clock(&mut self, leader: u64, follower: u64) -> Result<u64, String> {
        let id = self.either(leader, follower);
        let host = self.host(id);
        for _ in 0..self.rng.between(1, 4) {
            let seconds = *self.rng.pick(&[-365 * DAY_S, -DAY_S, -5, -1, 1, 5, 3_600]).expect("not empty");
            let clocks = self.environment.clocks.as_ref().ok_or("there are no clocks to shift")?;
            clocks.shift(host, seconds)?;
            std::thread::sleep(Duration::from_millis(self.rng.between(50, 600)));
        }
        let clocks = self.environment.clocks.as_ref().ok_or("there are no clocks to shift")?;
        clocks.shift(host, 0)?;
        Ok(id)
    }

    /// The machine was started anew: its monotonic clock, by which times to live are counted, shows something else altogether.
    pub(super) fn other_clock(&mut self, leader: u64, follower: u64) -> Result<u64, String> {
        let id = self.either(leader, follower);
        self.cluster.kill(id);
        let offset_s = self.rng.between(1, 1_000_000).to_string();
        let words = ["unshare", "-T", "--monotonic", &offset_s, "--boottime", &offset_s];
        self.cluster.prefix_once(id, &words);
        self.wait_ms(10, 500);
        self.cluster.restart(id);
        Ok(id)
    }
}
