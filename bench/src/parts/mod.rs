//! One file a part of the bench: it starts what it needs, measures, and answers what it found.

pub(crate) mod apart;
pub(crate) mod disk;
pub(crate) mod failover;
pub(crate) mod flapping;
pub(crate) mod held_locks;
pub(crate) mod locks;
pub(crate) mod losses;
pub(crate) mod passthrough;
pub(crate) mod secured;
pub(crate) mod systems;
pub(crate) mod tier1;
pub(crate) mod upkeep;
pub(crate) mod versus;
