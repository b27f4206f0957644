//! The hostile suite: whatever a client may send, against three real nodes. No node dies, all restart on their own data, all
//! hold the same state, and background clients get their locks meanwhile.
//!
//! An attack is data: a Lua file of `scripts/`, or a function of `commands/` that sends what it likes. It asserts nothing:
//! what must hold is the same for all of them, and the [`campaign`] judges it. `hostile --list` shows all.
//!
//! # Layout
//!
//! - [`attacker`]: the connections of an attack, and what it was answered
//! - [`scripts`], [`commands`]: the attacks
//! - [`background_clients`]: the other clients; [`memory_watch`]: memory of the nodes
//! - [`equality`]: everything read through every node
//! - [`campaign`]: one cluster, many attacks, restarts, the verdict
//!
//! # Caveats
//!
//! Waits of background clients are printed; what is asserted of them only tells working from broken, because the machine may be
//! busy with other things.

pub mod attacker;
pub mod background_clients;
pub mod campaign;
pub mod commands;
pub mod equality;
pub mod memory_watch;
pub mod scripts;

use attacker::Attacker;

/// One attack.
#[derive(Clone, Copy)]
pub struct Attack {
    pub name: &'static str,
    /// What it is about, as the Safety list of `tests/README.md` counts.
    pub item: u8,
    /// Part of every test run; the others run in `make nightly`.
    pub quick: bool,
    /// It does not read its replies, or sends what is no RESP: its connections may be closed.
    pub may_be_cut: bool,
    /// It deletes everybody's keys, so background clients lose their locks to it.
    pub flushes: bool,
    pub run: AttackBody,
}

#[derive(Clone, Copy)]
pub enum AttackBody {
    /// A script, sent whole to every node, then by its digest.
    Script(&'static str),
    /// A script that is made up when it is needed.
    GeneratedScript(fn() -> Vec<u8>),
    Commands(fn(&mut Attacker)),
}

impl Attack {
    pub fn run(&self, attacker: &mut Attacker) {
        match self.run {
            AttackBody::Script(body) => attacker.run_script(body.as_bytes()),
            AttackBody::GeneratedScript(make) => attacker.run_script(&make()),
            AttackBody::Commands(run) => run(attacker),
        }
    }
}

/// Every attack there is.
#[must_use]
pub fn all() -> Vec<Attack> {
    let mut attacks = scripts::all();
    attacks.extend(commands::all());
    attacks
}
