//! Partitions: silent, one way or both, whole or flapping. Clients reach every node all the time, also the cut-off ones.

use std::time::Duration;

use super::Nemesis;

impl Nemesis {
    /// Neither hears of the others nor is heard.
    pub(super) fn isolate(&mut self, id: u64) -> Result<u64, String> {
        let links = self.links_to(id, true, true);
        self.cut_for(&links, 400, 3_000)?;
        Ok(id)
    }

    /// It is heard and hears nothing, or the other way round.
    pub(super) fn one_way(&mut self, id: u64, deaf: bool) -> Result<u64, String> {
        let links = self.links_to(id, deaf, !deaf);
        self.cut_for(&links, 400, 3_000)?;
        Ok(id)
    }

    /// The leader's side is the smaller one: the others must elect, it must refuse.
    pub(super) fn split(&mut self, leader: u64) -> Result<u64, String> {
        let mut others = self.cluster.followers(leader);
        let smaller = others.len().div_ceil(2);
        let first = self.rng.below(others.len() as u64) as usize;
        others.rotate_left(first);
        let majority = others.split_off(smaller.saturating_sub(1).min(others.len()));
        let minority: Vec<u64> = others.into_iter().chain([leader]).collect();
        let mut links = Vec::new();
        for (one, other) in minority.iter().flat_map(|one| majority.iter().map(move |other| (*one, *other))) {
            let (one, other) = (self.host(one), self.host(other));
            links.extend([(one, other), (other, one)]);
        }
        self.cut_for(&links, 500, 3_000)?;
        Ok(leader)
    }

    /// The leader and one other do not hear each other; both hear everybody else.
    pub(super) fn bridge(&mut self, leader: u64) -> Result<u64, String> {
        let others = self.cluster.followers(leader);
        let Some(other) = self.rng.pick(&others).copied() else { return Ok(0) };
        let (one, two) = (self.host(leader), self.host(other));
        self.cut_for(&[(one, two), (two, one)], 400, 3_000)?;
        Ok(other)
    }

    /// The leader's links go and come many times, faster than an election.
    pub(super) fn flap(&mut self, leader: u64) -> Result<u64, String> {
        for _ in 0..self.rng.between(3, 8) {
            let (hears, is_heard) = (self.rng.per_mille(700), self.rng.per_mille(700));
            let links = self.links_to(leader, !hears, !is_heard);
            self.cut_for(&links, 30, 400)?;
            std::thread::sleep(Duration::from_millis(self.rng.between(10, 200)));
        }
        Ok(leader)
    }

    fn links_to(&self, id: u64, deaf: bool, mute: bool) -> Vec<(usize, usize)> {
        let own = self.host(id);
        let others: Vec<usize> =
            self.ids().into_iter().filter(|other| *other != id).map(|other| self.host(other)).collect();
        let to_it = others.iter().filter(|_| deaf).map(|other| (*other, own));
        let from_it = others.iter().filter(|_| mute).map(|other| (own, *other));
        to_it.chain(from_it).collect()
    }

    fn cut_for(&mut self, links: &[(usize, usize)], low_ms: u64, high_ms: u64) -> Result<(), String> {
        let network = self.environment.network.as_ref().ok_or("there is no network to cut")?;
        for (from, to) in links {
            network.cut(*from, *to)?;
        }
        self.wait_ms(low_ms, high_ms);
        let network = self.environment.network.as_ref().ok_or("there is no network to mend")?;
        for (from, to) in links {
            network.mend(*from, *to)?;
        }
        Ok(())
    }
}
