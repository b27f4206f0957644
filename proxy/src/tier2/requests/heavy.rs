//! Fairness by cost: heavy commands of this node's clients wait here, so that no light command is queued behind many of them.
//!
//! A command is heavy where [`Machine::cost_us`](redfence_core::machine::Machine::cost_us) expects more than `heavy_from_us` of
//! it. A node has only so much heavy work under way (numbered, and not applied here): `heavy_under_way_us_max`, and one command
//! more. The rest waits **before** it gets a number, so whatever comes later passes it on the whole way: forwards, the leader's
//! stage, the log. So a light command has at most that much heavy work of each node in front of it.
//!
//! **Order.** What comes by a connection with a waiting command waits behind it, light or not. Connections take turns: a turn is
//! one heavy command and the light ones behind it. Nobody starves: as soon as what is under way is applied, the next has its turn.
//!
//! What waits here until its deadline, or until the node stops, was certainly not applied.

use crate::node_api::{ConnectionId, Submit, Ticket};
use crate::tier2::node::Node;
use crate::tier2::refusals;
use redfence_core::reply::Reply;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// What keeps its order: the commands of a connection, or one that came by none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum OrderKey {
    Connection(ConnectionId),
    Alone(Ticket),
}

impl OrderKey {
    fn of(submit: &Submit) -> OrderKey {
        match submit.connection {
            0 => OrderKey::Alone(submit.ticket),
            connection => OrderKey::Connection(connection),
        }
    }
}

#[derive(Debug)]
struct WaitingCommand {
    submit: Submit,
    /// 0 for a light one.
    heavy_us: u64,
    came_ms: u64,
}

impl WaitingCommand {
    fn is_overdue(&self, now_ms: u64) -> bool {
        self.came_ms.saturating_add(self.submit.timeout_ms) <= now_ms
    }
}

#[derive(Debug, Default)]
pub(in crate::tier2) struct HeavyQueue {
    queues: FxHashMap<OrderKey, VecDeque<WaitingCommand>>,
    /// Every queue once, the next one first. A queue whose commands were all cancelled stays until its turn.
    turns: VecDeque<OrderKey>,
    key_of_ticket: FxHashMap<Ticket, OrderKey>,
    bytes: usize,
}

impl HeavyQueue {
    fn len(&self) -> usize {
        self.key_of_ticket.len()
    }

    fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// Whether a command would overtake one of its connection.
    fn holds(&self, submit: &Submit) -> bool {
        !self.is_empty() && self.queues.contains_key(&OrderKey::of(submit))
    }

    fn push(&mut self, waiting: WaitingCommand) {
        let key = OrderKey::of(&waiting.submit);
        self.bytes += waiting.submit.blob.len();
        self.key_of_ticket.insert(waiting.submit.ticket, key);
        let commands = self.queues.entry(key).or_insert_with(|| {
            self.turns.push_back(key);
            VecDeque::new()
        });
        commands.push_back(waiting);
    }

    fn forget(&mut self, waiting: &WaitingCommand) {
        self.bytes -= waiting.submit.blob.len();
        self.key_of_ticket.remove(&waiting.submit.ticket);
    }

    /// The turn of the next queue: its first command, and the light ones right behind it.
    fn take_turn(&mut self) -> Vec<WaitingCommand> {
        let Some(key) = self.turns.pop_front() else { return Vec::new() };
        let Some(commands) = self.queues.get_mut(&key) else { return Vec::new() };
        let next_heavy = commands.iter().skip(1).position(|waiting| waiting.heavy_us > 0);
        let taken: Vec<WaitingCommand> = match next_heavy {
            Some(behind) => {
                self.turns.push_back(key);
                commands.drain(..=behind).collect()
            }
            None => self.queues.remove(&key).into_iter().flatten().collect(),
        };
        taken.iter().for_each(|waiting| self.forget(waiting));
        taken
    }

    /// Its client is gone. Whether it was here.
    fn call_off(&mut self, ticket: Ticket) -> bool {
        let Some(commands) = self.key_of_ticket.get(&ticket).and_then(|key| self.queues.get_mut(key)) else {
            return false;
        };
        let place = commands.iter().position(|waiting| waiting.submit.ticket == ticket);
        let Some(waiting) = place.and_then(|place| commands.remove(place)) else { return false };
        self.forget(&waiting);
        true
    }

    /// Those past their deadline, in the order of their queues' turns.
    fn take_overdue(&mut self, now_ms: u64) -> Vec<Ticket> {
        let mut overdue = Vec::new();
        for key in &self.turns {
            let Some(commands) = self.queues.get_mut(key) else { continue };
            if commands.iter().any(|waiting| waiting.is_overdue(now_ms)) {
                let all = std::mem::take(commands).into_iter();
                let (late, kept): (Vec<WaitingCommand>, Vec<WaitingCommand>) =
                    all.partition(|waiting| waiting.is_overdue(now_ms));
                *commands = kept.into();
                overdue.extend(late);
            }
        }
        overdue.iter().for_each(|waiting| self.forget(waiting));
        overdue.into_iter().map(|waiting| waiting.submit.ticket).collect()
    }
}

impl Node {
    /// A client's command on its way to a number: at once, or by this queue.
    pub(in crate::tier2) fn take_in(&mut self, submit: Submit) {
        let now_ms = self.now.monotonic_ms();
        let cost_us = self.machine.cost_us(&submit.blob);
        let heavy_us = if cost_us > self.config.heavy_from_us { cost_us } else { 0 };
        if heavy_us == 0 && !self.heavy.holds(&submit) {
            self.pending.submit(submit, now_ms);
            return;
        }
        // A half of what the node takes, so that light commands find room beside them.
        let is_full = self.heavy.len() >= self.config.pending_requests_max / 2
            || self.heavy.bytes + submit.blob.len() > self.config.pending_bytes_max / 2;
        match is_full {
            true => self.out.replies.push((submit.ticket, refusals::queue_full())),
            false => self.heavy.push(WaitingCommand { submit, heavy_us, came_ms: now_ms }),
        }
    }

    pub(in crate::tier2) fn may_admit_heavy(&self) -> bool {
        !self.heavy.is_empty() && self.pending.heavy_us() < self.config.heavy_under_way_us_max
    }

    /// Heavy commands have their turn while little enough of them is under way.
    pub(in crate::tier2) fn admit_heavy(&mut self) {
        let now_ms = self.now.monotonic_ms();
        while self.may_admit_heavy() {
            for WaitingCommand { mut submit, heavy_us, came_ms } in self.heavy.take_turn() {
                submit.timeout_ms = submit.timeout_ms.saturating_sub(now_ms - came_ms);
                self.pending.submit_heavy(submit, heavy_us, now_ms);
            }
        }
    }

    /// Whether a command that was called off had not left the queue.
    pub(in crate::tier2) fn call_off_heavy(&mut self, ticket: Ticket) -> bool {
        self.heavy.call_off(ticket)
    }

    pub(in crate::tier2) fn give_up_heavy(&mut self, now_ms: u64, reply: fn() -> Reply) {
        if !self.heavy.is_empty() {
            let overdue = self.heavy.take_overdue(now_ms);
            self.out.replies.extend(overdue.into_iter().map(|ticket| (ticket, reply())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn waiting(connection: ConnectionId, ticket: Ticket, heavy_us: u64) -> WaitingCommand {
        let submit =
            Submit { ticket, connection, blob: Bytes::from_static(b"x"), timeout_ms: 1_000, wait_ms: 0 };
        WaitingCommand { submit, heavy_us, came_ms: ticket }
    }

    fn turn(queue: &mut HeavyQueue) -> Vec<Ticket> {
        queue.take_turn().into_iter().map(|waiting| waiting.submit.ticket).collect()
    }

    #[test]
    fn connections_take_turns_and_light_commands_follow_their_heavy_one() {
        let mut queue = HeavyQueue::default();
        for (connection, ticket, heavy_us) in
            [(1, 1, 50), (1, 2, 0), (1, 3, 0), (1, 4, 50), (2, 5, 50), (0, 6, 50), (0, 7, 50), (1, 8, 0)]
        {
            queue.push(waiting(connection, ticket, heavy_us));
        }
        let turns: Vec<Vec<Ticket>> = (0..6).map(|_| turn(&mut queue)).collect();
        assert_eq!(turns, [vec![1, 2, 3], vec![5], vec![6], vec![7], vec![4, 8], vec![]]);
        assert!(
            queue.is_empty() && queue.key_of_ticket.is_empty() && queue.bytes == 0 && queue.queues.is_empty()
        );
    }

    #[test]
    fn what_is_called_off_or_overdue_leaves_and_the_rest_keeps_its_order() {
        let mut queue = HeavyQueue::default();
        for ticket in 1..=6 {
            queue.push(waiting(1 + ticket % 2, ticket, 50));
        }
        assert!(queue.call_off(3) && !queue.call_off(3) && !queue.call_off(99));
        assert_eq!(queue.take_overdue(1_002), [1, 2]);
        assert_eq!(queue.len(), 3);
        let turns: Vec<Vec<Ticket>> = (0..3).map(|_| turn(&mut queue)).collect();
        assert_eq!(turns, [[5], [4], [6]]);
        assert!(queue.is_empty() && queue.key_of_ticket.is_empty() && queue.bytes == 0);
    }

    #[test]
    fn an_emptied_queue_costs_its_own_turn_alone() {
        let mut queue = HeavyQueue::default();
        queue.push(waiting(1, 1, 50));
        queue.push(waiting(2, 2, 50));
        assert!(queue.call_off(1));
        assert_eq!(turn(&mut queue), [0; 0]);
        assert_eq!(turn(&mut queue), [2]);
        assert!(queue.is_empty() && queue.queues.is_empty());
    }
}
