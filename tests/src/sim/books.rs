//! What is kept of a run, to be compared: the log as it was applied, the state after each entry, what clients were granted.

use super::calls::{Ask, Heard};
use super::names;
use super::upgrades::NEW;
use crate::checker::kinds::KindLines;
use raft::eraftpb::{Entry, EntryType};
use redfence::node_api::{LogReader, NodeId};
use redfence::storage::memory::MemoryDisk;
use redfence::tier2::Node;
use redfence_core::event::{Event, EventKind};
use redfence_core::machine::{Applied, Machine, Wanted};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The state's hash is compared after every fourth entry below so many bytes of state, after every eighth below twice as many, and so on:
/// what differs hardly ever becomes equal again.
const STATE_BYTES_PER_STRIDE: u64 = 64 * 1024;
const STRIDE: u64 = 4;

#[derive(Default)]
pub struct Books {
    /// Entries as the first node to apply them had them.
    entries: BTreeMap<u64, Entry>,
    /// The state's hash after an index, and who showed it first.
    hashes: BTreeMap<u64, (u64, NodeId)>,
    /// Resource, owner, fence: what clients were told.
    granted: BTreeSet<(u32, u64, u64)>,
    pub grants: u64,
}

/// What is in the log, and may not have been told.
#[derive(Default)]
pub struct Untold {
    /// Grants that no client was told of: resource and owner, and the fence of the last one.
    pub grants: BTreeMap<(u32, u64), u64>,
    /// How often a resource was renewed under a fence, whoever was told of it.
    pub renewals: BTreeMap<(u32, u64), u64>,
}

impl Untold {
    fn note(&mut self, event: &Event) {
        let number = |name: &[u8], prefix: &[u8]| {
            std::str::from_utf8(name.strip_prefix(prefix)?).ok()?.parse::<u64>().ok()
        };
        let resource = number(&event.resource, b"r").and_then(|number| u32::try_from(number).ok());
        let (Some(resource), Some(owner)) = (resource, number(&event.owner, b"o")) else { return };
        match event.kind {
            EventKind::Acquired => {
                self.grants.insert((resource, owner), event.fence.0);
            }
            EventKind::Renewed => *self.renewals.entry((resource, event.fence.0)).or_default() += 1,
            EventKind::Released
            | EventKind::Expired
            | EventKind::Queued
            | EventKind::Abandoned
            | EventKind::SessionEnded => {}
        }
    }
}

impl Books {
    /// A node has applied entries `from + 1` to `applied`. Every node must have applied the same ones, to the same end.
    pub fn note_applied(
        &mut self,
        id: NodeId,
        node: &Node,
        disk: &MemoryDisk,
        from: u64,
        applied: u64,
    ) -> Result<(), String> {
        if applied < from {
            return Err(format!("node {id} went back from {from} to {applied}"));
        }
        for index in from + 1..=applied {
            // A snapshot may have brought it over some of them.
            let Some(entry) = disk.entries(index, index + 1, u64::MAX).ok().and_then(|mut list| list.pop())
            else {
                continue;
            };
            match self.entries.get(&index) {
                Some(known) if known.term != entry.term || known.data != entry.data => {
                    return Err(format!("node {id} applied another entry {index} than the others"));
                }
                Some(_) => {}
                None => {
                    self.entries.insert(index, entry);
                }
            }
        }
        // Hashing a large state after every entry would take most of a run's time: the larger, the more seldom, at the same
        // entries on every node. The end of a run compares all of them.
        let strides = 1 + node.machine().memory_used_bytes() / STATE_BYTES_PER_STRIDE;
        if !applied.is_multiple_of(STRIDE * strides) {
            return Ok(());
        }
        self.note_state(id, applied, node.machine().state_hash())
    }

    pub fn note_state(&mut self, id: NodeId, applied: u64, hash: u64) -> Result<(), String> {
        match self.hashes.insert(applied, (hash, id)) {
            Some((known, by)) if known != hash => {
                Err(format!("nodes {by} and {id} differ after entry {applied}"))
            }
            Some(_) | None => Ok(()),
        }
    }

    pub fn note_reply(&mut self, ask: &Ask, heard: &Heard) {
        if let (Ask::Acquire { resources, owner, .. }, Heard::Granted(fences)) = (ask, heard) {
            self.grants += fences.len() as u64;
            self.granted
                .extend(resources.iter().zip(fences).map(|(resource, fence)| (*resource, *owner, *fence)));
        }
    }

    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// Every entry and what came of it: its number, its bytes, the machine's time, its events.
    pub fn tell(&self) {
        let mut machine = newer_machine();
        machine.set_watched(true);
        let mut applied = Applied::default();
        for (index, entry) in &self.entries {
            if entry.get_entry_type() == EntryType::EntryNormal && !entry.data.is_empty() {
                applied.clear();
                let taken = machine.apply_entry_at(*index, &entry.data, &mut applied);
                taken.unwrap_or_else(|error| println!("entry {index}: {error}"));
                println!("entry {index}: {}", entry.data.escape_ascii());
            }
            for Event { kind, resource, fence, owner, .. } in applied.events.drain(..) {
                let (resource, owner) = (resource.escape_ascii(), owner.escape_ascii());
                println!("entry {index} at {}: {resource} {kind:?} {fence} {owner}", machine.logical_ms());
            }
        }
    }

    /// What the log holds beyond what clients were told. Plain keys of the wider mix, which have other names, are none of it.
    pub fn untold(&self) -> Untold {
        let mut machine = newer_machine();
        machine.set_watched(true);
        let (mut applied, mut untold) = (Applied::default(), Untold::default());
        for entry in self.entries.values() {
            applied.clear();
            let is_ours = entry.get_entry_type() == EntryType::EntryNormal && !entry.data.is_empty();
            if !is_ours || machine.apply_entry_at(entry.index, &entry.data, &mut applied).is_err() {
                continue;
            }
            applied.events.iter().for_each(|event| untold.note(event));
        }
        for (resource, owner, _) in &self.granted {
            untold.grants.remove(&(*resource, *owner));
        }
        untold
    }

    /// The whole log once more, from nothing: every state must come out again, and everything clients were told.
    pub fn replay(&self) -> Result<(), String> {
        let mut machine = newer_machine();
        machine.set_wanted(Wanted::ALL);
        let mut applied = Applied::default();
        let mut lines = Lines::default();
        let mut index = 1;
        for (at, entry) in &self.entries {
            if *at != index + 1 {
                return Err(format!("entry {} was applied by nobody, entry {at} was", index + 1));
            }
            index = *at;
            if entry.get_entry_type() == EntryType::EntryNormal && !entry.data.is_empty() {
                applied.clear();
                let taken = machine.apply_entry_at(entry.index, &entry.data, &mut applied);
                taken.map_err(|error| format!("entry {index}: {error}"))?;
                machine.check_invariants().map_err(|violation| format!("entry {index}: {violation}"))?;
                applied.events.iter().try_for_each(|event| lines.take(event))?;
                KindLines::check_losses(&applied.events, &applied.losses)?;
                applied.events.retain(|event| names::is_kind(&event.resource));
                let policies = KindLines::check_policies(&machine, &applied.events);
                policies.map_err(|text| format!("entry {index}: {text}"))?;
            }
            if let Some((hash, id)) = self.hashes.get(at) {
                if *hash != machine.state_hash() {
                    return Err(format!("node {id} differs from a replay of the log after entry {at}"));
                }
            }
        }
        match self.granted.difference(&lines.granted).next() {
            None => Ok(()),
            Some((resource, owner, fence)) => Err(format!(
                "owner {owner} was told of fence {fence} of resource {resource}, which is not in the log"
            )),
        }
    }
}

/// One that can apply whatever the log holds.
fn newer_machine() -> Machine {
    let mut machine = Machine::new();
    machine.set_versions(NEW);
    machine
}

/// The queues as the log shows them: strictly first come, first served, one holder at a time, fences rising.
#[derive(Default)]
struct Lines {
    queues: BTreeMap<u32, VecDeque<u64>>,
    holders: BTreeMap<u32, u64>,
    fences: BTreeMap<u32, u64>,
    granted: BTreeSet<(u32, u64, u64)>,
    kinds: KindLines,
}

impl Lines {
    fn take(&mut self, event: &Event) -> Result<(), String> {
        if names::is_value(&event.resource) {
            return Ok(());
        }
        if names::is_kind(&event.resource) {
            return self.kinds.take(event);
        }
        let resource = names::resource_number(&event.resource);
        let owner = names::owner_number(&event.owner);
        let wrong =
            |text: &str| Err(format!("resource {resource}, owner {owner}, fence {}: {text}", event.fence));
        let queue = self.queues.entry(resource).or_default();
        match event.kind {
            EventKind::Queued => queue.push_back(owner),
            EventKind::Abandoned => queue.retain(|other| *other != owner),
            EventKind::Acquired => {
                if self.holders.insert(resource, owner).is_some() {
                    return wrong("granted while another held it");
                }
                let last = self.fences.insert(resource, event.fence.0).unwrap_or(0);
                if event.fence.0 <= last {
                    return wrong("its fence does not rise");
                }
                self.granted.insert((resource, owner, event.fence.0));
                match queue.front() {
                    Some(first) if *first == owner => {
                        queue.pop_front();
                    }
                    Some(_) => return wrong("granted out of its turn"),
                    None => {}
                }
            }
            EventKind::Released | EventKind::Expired | EventKind::SessionEnded => {
                if self.holders.remove(&resource) != Some(owner) {
                    return wrong("ended though it did not hold it");
                }
            }
            EventKind::Renewed => {}
        }
        Ok(())
    }
}
