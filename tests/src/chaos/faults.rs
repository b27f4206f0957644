//! The kinds of faults, what each needs of the environment, and the record of an injected one.

use super::environment::Environment;

macro_rules! kinds {
    ($($kind:ident $name:literal),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum FaultKind { $($kind),* }

        impl FaultKind {
            pub const ALL: &[FaultKind] = &[$(FaultKind::$kind),*];

            pub fn name(self) -> &'static str {
                match self { $(FaultKind::$kind => $name),* }
            }
        }
    };
}

kinds! {
    KillLeader "kill-leader",
    KillFollower "kill-follower",
    KillMajority "kill-majority",
    KillAll "kill-all",
    PauseLeader "pause-leader",
    PauseFollower "pause-follower",
    PauseLong "pause-long",
    Transfer "transfer",
    CutClients "cut-clients",
    Storm "storm",
    Replace "replace",
    IsolateLeader "isolate-leader",
    IsolateFollower "isolate-follower",
    DeafLeader "deaf-leader",
    MuteLeader "mute-leader",
    Split "split",
    Bridge "bridge",
    Flap "flap",
    SlowSync "slow-fsync",
    FailSync "fail-fsync",
    FullDisk "full-disk",
    PowerCutOne "power-cut-one",
    PowerCutAll "power-cut-all",
    WallClock "wall-clock",
    OtherClock "other-clock",
}

impl FaultKind {
    /// Kinds that need only signals.
    pub const BASIC: &[FaultKind] = &[
        FaultKind::KillLeader,
        FaultKind::KillFollower,
        FaultKind::PauseLeader,
        FaultKind::PauseFollower,
        FaultKind::PauseLong,
        FaultKind::Transfer,
        FaultKind::CutClients,
        FaultKind::Storm,
    ];

    pub fn is_supported(self, environment: &Environment) -> bool {
        match self {
            FaultKind::KillLeader
            | FaultKind::KillFollower
            | FaultKind::KillMajority
            | FaultKind::KillAll
            | FaultKind::PauseLeader
            | FaultKind::PauseFollower
            | FaultKind::PauseLong
            | FaultKind::Transfer
            | FaultKind::CutClients
            | FaultKind::Storm
            | FaultKind::Replace => true,
            FaultKind::IsolateLeader
            | FaultKind::IsolateFollower
            | FaultKind::DeafLeader
            | FaultKind::MuteLeader
            | FaultKind::Split
            | FaultKind::Bridge
            | FaultKind::Flap => environment.network.is_some(),
            FaultKind::SlowSync | FaultKind::FailSync | FaultKind::FullDisk => environment.has_strace,
            FaultKind::PowerCutOne | FaultKind::PowerCutAll => environment.disks.is_some(),
            FaultKind::WallClock => environment.clocks.is_some(),
            FaultKind::OtherClock => environment.has_time_namespaces,
        }
    }
}

/// One fault, from its injection to the moment all nodes served again.
#[derive(Clone, Debug)]
pub struct InjectedFault {
    pub kind: FaultKind,
    pub node: u64,
    pub from_ns: u64,
    pub healed_ns: u64,
    /// When clients of every node had got a lock again.
    pub served_ns: u64,
}
