//! The kinds of faults, what each needs, and what became of each that was injected.

use super::ground::Ground;

macro_rules! kinds {
    ($($kind:ident $name:literal),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Kind { $($kind),* }

        impl Kind {
            pub const ALL: &[Kind] = &[$(Kind::$kind),*];

            pub fn name(self) -> &'static str {
                match self { $(Kind::$kind => $name),* }
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

impl Kind {
    /// Need nothing but the right to send signals.
    pub const BASIC: &[Kind] = &[
        Kind::KillLeader,
        Kind::KillFollower,
        Kind::PauseLeader,
        Kind::PauseFollower,
        Kind::PauseLong,
        Kind::Transfer,
        Kind::CutClients,
        Kind::Storm,
    ];

    pub fn can_be_done(self, ground: &Ground) -> bool {
        match self {
            Kind::KillLeader
            | Kind::KillFollower
            | Kind::KillMajority
            | Kind::KillAll
            | Kind::PauseLeader
            | Kind::PauseFollower
            | Kind::PauseLong
            | Kind::Transfer
            | Kind::CutClients
            | Kind::Storm
            | Kind::Replace => true,
            Kind::IsolateLeader
            | Kind::IsolateFollower
            | Kind::DeafLeader
            | Kind::MuteLeader
            | Kind::Split
            | Kind::Bridge
            | Kind::Flap => ground.network.is_some(),
            Kind::SlowSync | Kind::FailSync | Kind::FullDisk => ground.has_strace,
            Kind::PowerCutOne | Kind::PowerCutAll => ground.disks.is_some(),
            Kind::WallClock => ground.clocks.is_some(),
            Kind::OtherClock => ground.has_time_namespaces,
        }
    }
}

/// One fault, from its injection to the moment all nodes served again.
#[derive(Clone, Debug)]
pub struct Injected {
    pub kind: Kind,
    pub node: u64,
    pub from_ns: u64,
    pub healed_ns: u64,
    /// When clients of every node had got a lock again.
    pub served_ns: u64,
}
