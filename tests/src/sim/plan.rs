//! What a seed draws before the run begins: how many nodes, which faults, how large everything is.

use crate::rng::Rng;
use redfence::tier2::NodeConfig;

/// Kinds of faults. A seed picks some of them, so that each is also met alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// SIGKILL: the node is gone, its disk cache is not.
    Kill,
    /// Power cut: what was not synced is gone, or a part of it.
    PowerCut,
    /// The whole cluster at once.
    Blackout,
    Pause,
    /// A group of nodes cut off from the rest.
    Split,
    /// One direction of one link.
    OneWay,
    /// Messages lost, doubled, late and out of order.
    BadNetwork,
    SlowDisk,
    /// A write fails: the node must stop.
    DiskError,
    SnapshotError,
    /// The wall clock jumps, up to a year either way.
    WallJump,
    /// The monotonic clock runs faster or slower.
    ClockRate,
    Members,
    Transfer,
    /// SIGTERM and a new start.
    Shutdown,
    /// The program of a host is exchanged for one that can run other cluster versions. Not drawn: see [`Plan::mixed_versions`].
    Upgrade,
    /// Two nodes lose their connection for a moment. Not drawn: see [`Plan::wider`].
    CutPeers,
}

pub const FAULTS: [Fault; 15] = [
    Fault::Kill,
    Fault::PowerCut,
    Fault::Blackout,
    Fault::Pause,
    Fault::Split,
    Fault::OneWay,
    Fault::BadNetwork,
    Fault::SlowDisk,
    Fault::DiskError,
    Fault::SnapshotError,
    Fault::WallJump,
    Fault::ClockRate,
    Fault::Members,
    Fault::Transfer,
    Fault::Shutdown,
];

/// One run's dimensions.
#[derive(Clone, Debug)]
pub struct Plan {
    pub founders: u64,
    pub clients: usize,
    pub resources: u32,
    pub faults: Vec<Fault>,
    /// Mean time from one fault to the next.
    pub fault_every_ms: u64,
    /// How long misfortunes go on. Everything heals then.
    pub storm_ms: u64,
    pub timeout_ms: u64,
    pub multi_locks: bool,
    pub sessions: bool,
    /// Operators release by force.
    pub forced: bool,
    /// Clients' answers that get lost, of a thousand.
    pub reply_loss_permille: u64,
    /// How far a clock's rate may be off, in millionths; 0 where all run alike.
    pub rate_off_ppm: u64,
    pub think_ms_max: u64,
    /// Questions that are looks at a lock, of a thousand.
    pub look_permille: u64,
    /// Clients of an unchanged Redlock library, of a thousand: with one master, and with every founder for a master.
    pub plain_permille: u64,
    pub redlock_permille: u64,
    /// Calls that store a value of a byte to a megabyte, of a thousand.
    pub value_permille: u64,
    pub ttl_ms: [u64; 4],
    pub snapshot_entries: u64,
    pub log_keep_entries: u64,
    pub snapshot_piece_bytes: usize,
    pub cache_entries: usize,
    pub idle_record_ms: u64,
    pub node_gone_ms: u64,
    pub election_ticks: usize,
    pub entry_commands_max: usize,
    pub entries_under_way_max: u64,
    /// Hosts begin with a program that can run version 1 alone, and get a newer one during the run.
    pub mixed_versions: bool,
    /// Marks, absolute times, settings and pipelines: `wider.rs`.
    pub wider: bool,
    /// Readers, writers, permits, conversions, policies: `kinds.rs`.
    pub kinds: bool,
}

/// Every so many seeds one has mixed clients, and what else [`Plan::mix`] brings. The others are as they were before it was
/// there, and mean what they meant.
const MIXED_EVERY: u64 = 4;

/// Every so many seeds one is a rolling upgrade.
const UPGRADE_EVERY: u64 = 5;

/// Every so many seeds one has the wider mix.
const WIDER_EVERY: u64 = 6;

/// Every so many seeds one has every kind of lock; and some of the rolling upgrades have.
const KINDS_EVERY: u64 = 5;
const KINDS_IN_UPGRADES_EVERY: u64 = 25;

/// Every so many seeds one has values of every size among its locks.
const VALUES_EVERY: u64 = 8;

impl Plan {
    #[must_use]
    pub fn of(seed: u64, rng: &mut Rng) -> Plan {
        let mut plan = Plan::draw(rng);
        if seed % MIXED_EVERY == MIXED_EVERY - 1 {
            plan.mix(&mut Rng::new(seed ^ 0x6d69_7865_6463));
        }
        if seed % VALUES_EVERY == VALUES_EVERY - 2 {
            plan.value_permille = *Rng::new(seed ^ 0x7661_6c75_6573).pick(&[20, 60]).expect("not empty");
            // Megabytes by pieces of a few bytes would take longer than anybody waits.
            plan.snapshot_piece_bytes = plan.snapshot_piece_bytes.max(64 << 10);
        }
        if seed % UPGRADE_EVERY == UPGRADE_EVERY - 1 {
            plan.mixed_versions = true;
            plan.kinds = seed % KINDS_IN_UPGRADES_EVERY == KINDS_IN_UPGRADES_EVERY - 1;
            plan.faults.push(Fault::Upgrade);
        }
        plan.kinds |= seed.is_multiple_of(KINDS_EVERY);
        if seed % WIDER_EVERY == 1 {
            plan.wider = true;
            plan.faults.push(Fault::CutPeers);
            if Rng::new(seed ^ 0x6a75_6d70).per_mille(500) && !plan.has(Fault::WallJump) {
                plan.faults.push(Fault::WallJump);
            }
        }
        plan
    }

    /// Plain and Redlock clients on the same names, clients that mostly look, late and doubled messages.
    fn mix(&mut self, rng: &mut Rng) {
        self.look_permille = *rng.pick(&[150, 150, 650]).expect("not empty");
        self.plain_permille = *rng.pick(&[0, 300, 500]).expect("not empty");
        self.redlock_permille = *rng.pick(&[0, 300, 500]).expect("not empty");
        if self.plain_permille + self.redlock_permille > 0 {
            // A lock that several wait for together may be free with others in line; a plain client takes what is free.
            self.multi_locks = false;
        }
        if self.look_permille > 150 {
            self.think_ms_max = 5;
        }
        if rng.per_mille(500) && !self.has(Fault::BadNetwork) {
            self.faults.push(Fault::BadNetwork);
        }
    }

    fn draw(rng: &mut Rng) -> Plan {
        let mut faults: Vec<Fault> = Vec::new();
        let wanted = rng.between(1, 5);
        while faults.len() < wanted as usize {
            let fault = *rng.pick(&FAULTS).expect("there are faults");
            if !faults.contains(&fault) {
                faults.push(fault);
            }
        }
        if rng.per_mille(20) {
            faults.clear();
        }
        let rates = faults.contains(&Fault::ClockRate);
        Plan {
            founders: *rng.pick(&[1, 3, 3, 3, 3, 3, 3, 5]).expect("not empty"),
            clients: rng.between(3, 10) as usize,
            resources: rng.between(1, 5) as u32,
            fault_every_ms: *rng.pick(&[150, 400, 1_000, 2_500]).expect("not empty"),
            storm_ms: rng.between(4_000, 16_000),
            timeout_ms: *rng.pick(&[600, 1_500, 5_000]).expect("not empty"),
            multi_locks: rng.per_mille(400),
            sessions: rng.per_mille(500),
            forced: rng.per_mille(100),
            reply_loss_permille: *rng.pick(&[0, 0, 20, 100]).expect("not empty"),
            rate_off_ppm: if rates { *rng.pick(&[1_000, 100_000, 1_000_000]).expect("not empty") } else { 0 },
            look_permille: 150,
            plain_permille: 0,
            redlock_permille: 0,
            value_permille: 0,
            think_ms_max: *rng.pick(&[5, 40, 300]).expect("not empty"),
            ttl_ms: *rng
                .pick(&[[60, 150, 400, 900], [300, 700, 1_500, 3_000], [30, 500, 2_000, 6_000]])
                .expect("not empty"),
            snapshot_entries: *rng.pick(&[3, 20, 100, 1_000_000]).expect("not empty"),
            log_keep_entries: *rng.pick(&[0, 5, 50]).expect("not empty"),
            snapshot_piece_bytes: *rng.pick(&[64, 1_000, 128 << 10]).expect("not empty"),
            cache_entries: *rng.pick(&[1, 16, 1_000]).expect("not empty"),
            idle_record_ms: *rng.pick(&[600_000, 600_000, 600_000, 300]).expect("not empty"),
            node_gone_ms: *rng.pick(&[1_000, 3_000, 10_000]).expect("not empty"),
            election_ticks: *rng.pick(&[6, 12, 12]).expect("not empty"),
            entry_commands_max: *rng.pick(&[1, 4, 4_096]).expect("not empty"),
            entries_under_way_max: *rng.pick(&[1, 8, 8]).expect("not empty"),
            mixed_versions: false,
            wider: false,
            kinds: false,
            faults,
        }
    }

    /// The fastest a node's clock runs, in millionths above true.
    #[must_use]
    pub fn fast_ppm(&self) -> u64 {
        self.rate_off_ppm
    }

    #[must_use]
    pub fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    pub fn configure(&self, config: &mut NodeConfig) {
        config.snapshot_entries = self.snapshot_entries;
        config.log_keep_entries = self.log_keep_entries;
        config.snapshot_piece_bytes = self.snapshot_piece_bytes;
        config.snapshot_window_bytes = 4 * self.snapshot_piece_bytes as u64;
        config.snapshot_stall_ms = 2_000;
        config.cache_entries_max = self.cache_entries;
        config.idle_record_ms = self.idle_record_ms;
        config.node_gone_ms = self.node_gone_ms;
        config.election_ticks = self.election_ticks;
        config.entry_commands_max = self.entry_commands_max;
        config.entries_under_way_max = self.entries_under_way_max;
        config.promote_lag_entries = 8;
        config.checkpoint_ms = 1_500;
    }

    /// The longest time anything can still be held or waited for once everything is healed and nobody asks any more.
    #[must_use]
    pub fn longest_hold_ms(&self) -> u64 {
        let longest_ms = self.ttl_ms[3] * 2;
        // A clock may run at half speed until the storm ends; healing sets it right.
        2 * longest_ms + 2_000
    }
}
