//! The hostile suite: whatever a client may send, against three real nodes. No node dies, all restart on their own data, all
//! hold the same state, and honest clients get their locks meanwhile.
//!
//! An attack is data: a Lua file of `scripts/`, or a function of `commands/` that sends what it likes. It asserts nothing:
//! what must hold is the same for all of them, and the [`campaign`] judges it. `hostile --list` shows all.
//!
//! # Layout
//!
//! - [`attacker`]: the connections of an attack, and what it was answered
//! - [`scripts`], [`commands`]: the attacks
//! - [`honest`]: the other clients; [`watch`]: memory of the nodes
//! - [`equality`]: everything read through every node
//! - [`campaign`]: one cluster, many attacks, restarts, the verdict
//!
//! # Caveats
//!
//! Waits of honest clients are printed; what is asserted of them only tells working from broken, because the machine may be
//! busy with other things.

pub mod attacker;
pub mod campaign;
pub mod commands;
pub mod equality;
pub mod honest;
pub mod scripts;
pub mod watch;

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
    /// It deletes everybody's keys, so honest clients lose their locks to it.
    pub flushes: bool,
    pub run: Run,
}

#[derive(Clone, Copy)]
pub enum Run {
    /// A script, sent whole to every node, then by its digest.
    Script(&'static str),
    /// A script that is made up when it is needed.
    Made(fn() -> Vec<u8>),
    Commands(fn(&mut Attacker)),
}

impl Attack {
    pub fn run(&self, attacker: &mut Attacker) {
        match self.run {
            Run::Script(body) => attacker.run_script(body.as_bytes()),
            Run::Made(make) => attacker.run_script(&make()),
            Run::Commands(run) => run(attacker),
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
