//! The attacks that are commands: a function each, by what they are about.

mod bytes;
mod histories;
mod locks;
mod transactions;
mod wire;
mod work;

use super::{Attack, AttackBody};
use crate::hostile::attacker::Attacker;

const fn attack(item: u8, name: &'static str, run: fn(&mut Attacker)) -> Attack {
    Attack { name, item, quick: false, may_be_cut: false, flushes: false, run: AttackBody::Commands(run) }
}

/// In every test run.
const fn quick(item: u8, name: &'static str, run: fn(&mut Attacker)) -> Attack {
    Attack { quick: true, ..attack(item, name, run) }
}

impl Attack {
    const fn may_be_cut(mut self) -> Attack {
        self.may_be_cut = true;
        self
    }

    const fn flushes(mut self) -> Attack {
        self.flushes = true;
        self
    }
}

#[must_use]
pub fn all() -> Vec<Attack> {
    [histories::ATTACKS, bytes::ATTACKS, transactions::ATTACKS, work::ATTACKS, locks::ATTACKS, wire::ATTACKS]
        .concat()
}
