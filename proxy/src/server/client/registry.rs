//! All clients of this node, as `CLIENT LIST` shows and `CLIENT KILL` ends them.

use crate::server::client::shown::ShownState;
use crate::server::client::unblock::UnblockSlot;
use crate::server::routing::waiting::Waiting;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// What others may know of a client. Its connection keeps it up to date.
#[derive(Debug)]
pub struct ClientInfo {
    pub id: u64,
    pub address: SocketAddr,
    pub local_address: SocketAddr,
    pub since_ms: u64,
    pub seen_ms: AtomicU64,
    pub db: AtomicU64,
    pub protocol: AtomicU64,
    /// All, and patterns and shard channels among them.
    pub subscriptions: AtomicUsize,
    pub patterns: AtomicUsize,
    pub shards: AtomicUsize,
    pub shown: ShownState,
    /// Its command waits: for a lock, or for an item of a list.
    pub blocked: AtomicBool,
    pub unblock: UnblockSlot,
    /// How the upstream Redis numbers its own connection there; 0 where it has none, or none that may wait.
    pub upstream_number: Arc<AtomicU64>,
    /// Whether it has said who it is, or need not. Never before its TLS handshake is done.
    pub logged_in: AtomicBool,
    pub texts: Mutex<ClientTexts>,
    task: OnceLock<AbortHandle>,
    is_killed: AtomicBool,
    /// When it must have logged in. `Some` while a task watches this; a later time is seen by the same task.
    login_until: Mutex<Option<Instant>>,
    /// By which router the commands in flight were decided; 0 where none are.
    routed_by: AtomicU64,
    /// What that is, where it is one command that may wait for long.
    waiting: Mutex<Option<Waiting>>,
    /// A reply is awaited or not yet read. Kept up to date where there is an idle time-out.
    pub busy: AtomicBool,
}

/// What the client says of itself.
#[derive(Clone, Debug, Default)]
pub struct ClientTexts {
    pub name: String,
    pub library: String,
    pub library_version: String,
    /// As which user it logged in; empty for the default user.
    pub user: String,
}

impl ClientInfo {
    /// The task that serves the client.
    pub fn set_task(&self, task: AbortHandle) {
        // Set once, by the listener that started it.
        let _ = self.task.set(task);
        if self.is_killed.load(Ordering::SeqCst) {
            self.kill();
        }
    }

    /// Commands are decided by this router from now on. Seen by whoever puts a newer router in force.
    pub fn set_routed_by(&self, generation: u64) {
        self.routed_by.store(generation, Ordering::SeqCst);
    }

    /// No command is in flight. Nothing is looked at afterwards, as it is above: all that was done before is seen with it,
    /// and that is enough.
    pub fn clear_routed_by(&self) {
        self.routed_by.store(0, Ordering::Release);
    }

    /// Whether something is in flight that an older router decided.
    #[must_use]
    pub fn is_behind(&self, generation: u64) -> bool {
        let by = self.routed_by.load(Ordering::SeqCst);
        by != 0 && by < generation
    }

    /// The command in flight. To be taken away before another is decided.
    pub fn set_waiting(&self, waiting: Option<Waiting>) {
        *self.waiting() = waiting;
    }

    pub fn waiting(&self) -> std::sync::MutexGuard<'_, Option<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the client's connection, soon.
    pub fn kill(&self) {
        // Its task may not be set yet.
        self.is_killed.store(true, Ordering::SeqCst);
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    pub fn texts(&self) -> std::sync::MutexGuard<'_, ClientTexts> {
        self.texts.lock().expect("mutex poisoned")
    }

    /// The name of its user.
    #[must_use]
    pub fn user(&self) -> Vec<u8> {
        let texts = self.texts();
        if texts.user.is_empty() {
            b"default".to_vec()
        } else {
            texts.user.clone().into_bytes()
        }
    }

    /// It is not logged in from now on, and its connection is closed if that lasts for this time. One task a client, however often it is asked for.
    pub fn close_without_login(self: &Arc<ClientInfo>, within: Duration) {
        let mut until = Instant::now() + within;
        let mut slot = self.login_until();
        // With the lock held: the task that watches sees both or neither.
        self.logged_in.store(false, Ordering::Release);
        if slot.replace(until).is_some() {
            return;
        }
        drop(slot);
        let info = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep_until(until).await;
                let Some(info) = info.upgrade() else { return };
                match info.check_login(until) {
                    Some(later) => until = later,
                    None => return,
                }
            }
        });
    }

    /// At `until`: ends the watch or the connection, or says when to look again.
    fn check_login(&self, until: Instant) -> Option<Instant> {
        let mut slot = self.login_until();
        if self.logged_in.load(Ordering::Acquire) {
            *slot = None;
        } else if *slot == Some(until) {
            tracing::info!(client = %self.address, "closing client: it did not log in in time");
            self.kill();
            *slot = None;
        }
        *slot
    }

    fn login_until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.login_until.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
pub struct Registry {
    next_id: AtomicU64,
    table: Mutex<ClientTable>,
}

#[derive(Debug, Default)]
struct ClientTable {
    infos: BTreeMap<u64, Arc<ClientInfo>>,
    /// How many come from each address.
    addresses: BTreeMap<IpAddr, usize>,
    /// Who was not logged in at the start, oldest first. Those who are by now are taken out when they are met.
    newcomers: BTreeSet<u64>,
    /// The same by networks of IPv6.
    newcomers_of: BTreeMap<IpAddr, BTreeSet<u64>>,
}

impl ClientTable {
    fn remove(&mut self, id: u64) -> Option<Arc<ClientInfo>> {
        let info = self.infos.remove(&id)?;
        self.newcomers.remove(&id);
        let address = info.address.ip().to_canonical();
        if let Some(count) = self.addresses.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.addresses.remove(&address);
            }
        }
        let network = network(address);
        if let Some(newcomers) = self.newcomers_of.get_mut(&network) {
            newcomers.remove(&id);
            if newcomers.is_empty() {
                self.newcomers_of.remove(&network);
            }
        }
        Some(info)
    }

    fn is_newcomer(&self, id: u64) -> bool {
        self.infos.get(&id).is_some_and(|info| !info.logged_in.load(Ordering::Acquire))
    }

    /// How many of a network of IPv6 are not logged in; at least `max` where it is that many or more.
    fn newcomers_of(&mut self, network: IpAddr, max: usize) -> usize {
        let Some(mut newcomers) = self.newcomers_of.remove(&network) else { return 0 };
        if newcomers.len() >= max {
            newcomers.retain(|id| self.is_newcomer(*id));
        }
        let count = newcomers.len();
        if count > 0 {
            self.newcomers_of.insert(network, newcomers);
        }
        count
    }

    /// Takes out who has been here for longest without being logged in.
    fn take_oldest_newcomer(&mut self) -> Option<Arc<ClientInfo>> {
        while let Some(id) = self.newcomers.pop_first() {
            if self.is_newcomer(id) {
                return self.remove(id);
            }
        }
        None
    }
}

/// How many clients there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    pub clients_max: usize,
    /// From one address. `None`: [`PER_ADDRESS_DEFAULT`], and any number from loopback.
    pub per_address_max: Option<usize>,
}

/// A proxy or a NAT gateway in front of many clients is one address too.
pub const PER_ADDRESS_DEFAULT: usize = 1_000;

impl ClientLimits {
    fn of_address(&self, ip: IpAddr) -> usize {
        match self.per_address_max {
            Some(0) => usize::MAX,
            Some(max) => max,
            None if ip.to_canonical().is_loopback() => usize::MAX,
            None => PER_ADDRESS_DEFAULT,
        }
    }
}

/// What counts as one address: whoever has an IPv6 address usually has its whole /64 network.
#[must_use]
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) if address.is_loopback() => IpAddr::V6(address),
        IpAddr::V6(address) => {
            let bits = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(bits.into())
        }
    }
}

/// Why a client is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooMany {
    Clients,
    OfThisAddress,
}

impl Registry {
    /// Writes an entry for a new client. Where there is no room for it, the oldest that is not logged in makes room: a crowd of silent
    /// strangers keeps nobody out. `logged_in`: whether it is from the start.
    pub fn enter(
        &self,
        address: SocketAddr,
        local_address: SocketAddr,
        now_ms: u64,
        limits: ClientLimits,
        logged_in: bool,
    ) -> Result<Arc<ClientInfo>, TooMany> {
        let mut table = self.table();
        let ip = address.ip().to_canonical();
        let (network, max) = (network(ip), limits.of_address(ip));
        let of_address = table.addresses.get(&ip).copied().unwrap_or(0);
        // Whoever has one address of IPv6 has its whole network: it counts until somebody has said who it is.
        let by_network = !logged_in && network != ip;
        if of_address >= max || (by_network && table.newcomers_of(network, max) >= max) {
            return Err(TooMany::OfThisAddress);
        }
        if table.infos.len() >= limits.clients_max {
            let oldest = table.take_oldest_newcomer().ok_or(TooMany::Clients)?;
            tracing::debug!(client = %oldest.address, "closing client: it has not logged in, and there is no room for another");
            oldest.kill();
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        let info = Arc::new(ClientInfo {
            id,
            address,
            local_address,
            since_ms: now_ms,
            seen_ms: AtomicU64::new(now_ms),
            db: AtomicU64::new(0),
            protocol: AtomicU64::new(2),
            subscriptions: AtomicUsize::new(0),
            patterns: AtomicUsize::new(0),
            shards: AtomicUsize::new(0),
            shown: ShownState::default(),
            blocked: AtomicBool::new(false),
            unblock: UnblockSlot::default(),
            upstream_number: Arc::default(),
            logged_in: AtomicBool::new(logged_in),
            texts: Mutex::default(),
            login_until: Mutex::default(),
            task: OnceLock::new(),
            is_killed: AtomicBool::new(false),
            routed_by: AtomicU64::new(0),
            waiting: Mutex::default(),
            busy: AtomicBool::new(false),
        });
        *table.addresses.entry(ip).or_default() += 1;
        table.infos.insert(id, Arc::clone(&info));
        if !logged_in {
            table.newcomers.insert(id);
        }
        if by_network {
            table.newcomers_of.entry(network).or_default().insert(id);
        }
        Ok(info)
    }

    pub fn leave(&self, id: u64) {
        self.table().remove(id);
    }

    /// Ends clients that have sent no command for this long, wait for no reply and have subscribed to nothing. Answers how many.
    pub fn end_idle(&self, now_ms: u64, idle_ms: u64) -> usize {
        let is_idle = |info: &&Arc<ClientInfo>| {
            let silent_ms = now_ms.saturating_sub(info.seen_ms.load(Ordering::Relaxed));
            let listens = info.subscriptions.load(Ordering::Relaxed) > 0 || info.shown.is_monitor();
            silent_ms >= idle_ms && !listens && !info.busy.load(Ordering::Relaxed)
        };
        let idle: Vec<Arc<ClientInfo>> = self.table().infos.values().filter(is_idle).cloned().collect();
        for info in &idle {
            // It is counted once, however long its end takes.
            info.busy.store(true, Ordering::Relaxed);
            info.kill();
        }
        idle.len()
    }

    fn table(&self) -> MutexGuard<'_, ClientTable> {
        self.table.lock().expect("mutex poisoned")
    }

    #[must_use]
    pub fn has(&self, id: u64) -> bool {
        self.table().infos.contains_key(&id)
    }

    #[must_use]
    pub fn get(&self, id: u64) -> Option<Arc<ClientInfo>> {
        self.table().infos.get(&id).cloned()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.table().infos.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy of the table, oldest first.
    #[must_use]
    pub fn infos(&self) -> Vec<Arc<ClientInfo>> {
        self.table().infos.values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(registry: &Registry, from: &str, limits: ClientLimits) -> Result<Arc<ClientInfo>, TooMany> {
        registry.enter(from.parse().unwrap(), "127.0.0.1:6380".parse().unwrap(), 0, limits, true)
    }

    #[test]
    fn one_address_cannot_take_every_place() {
        let registry = Registry::default();
        let limits = ClientLimits { clients_max: 10, per_address_max: Some(2) };
        let first = enter(&registry, "10.0.0.1:1", limits).unwrap();
        enter(&registry, "10.0.0.1:2", limits).unwrap();
        assert_eq!(enter(&registry, "10.0.0.1:3", limits).unwrap_err(), TooMany::OfThisAddress);
        enter(&registry, "10.0.0.2:1", limits).unwrap();
        registry.leave(first.id);
        registry.leave(first.id);
        enter(&registry, "10.0.0.1:4", limits).unwrap();
        let few = ClientLimits { clients_max: 3, ..limits };
        assert_eq!(enter(&registry, "10.0.0.3:1", few).unwrap_err(), TooMany::Clients);
    }

    #[test]
    fn who_is_not_logged_in_makes_room_the_oldest_first() {
        let registry = Registry::default();
        let limits = ClientLimits { clients_max: 3, per_address_max: Some(0) };
        let server = "127.0.0.1:6380".parse().unwrap();
        let stranger = |port: u16| registry.enter(([10, 0, 0, 1], port).into(), server, 0, limits, false);
        let first = stranger(1).unwrap();
        let ids = || registry.infos().iter().map(|info| info.id).collect::<Vec<_>>();
        let (second, third) = (stranger(2).unwrap(), stranger(3).unwrap());
        // It has logged in by now.
        first.logged_in.store(true, Ordering::Release);
        let fourth = stranger(4).unwrap();
        assert_eq!(ids(), [first.id, third.id, fourth.id]);
        assert!(second.is_killed.load(Ordering::SeqCst) && !third.is_killed.load(Ordering::SeqCst));
        // Its connection ends later, and is not counted twice.
        registry.leave(second.id);
        assert_eq!(registry.len(), 3);
        let known = enter(&registry, "10.0.0.2:1", limits).unwrap();
        fourth.logged_in.store(true, Ordering::Release);
        assert_eq!(ids(), [first.id, fourth.id, known.id]);
        assert_eq!(stranger(5).unwrap_err(), TooMany::Clients, "all are logged in");
        registry.leave(first.id);
        stranger(6).unwrap();
    }

    #[test]
    fn an_ipv6_network_is_one_address_for_who_is_not_logged_in() {
        let registry = Registry::default();
        let limits = ClientLimits { clients_max: 20, per_address_max: Some(2) };
        let server = "127.0.0.1:6380".parse().unwrap();
        let stranger = |from: &str| registry.enter(from.parse().unwrap(), server, 0, limits, false);
        let first = stranger("[2001:db8::1]:1").unwrap();
        let second = stranger("[2001:db8::2]:1").unwrap();
        assert_eq!(stranger("[2001:db8::3]:1").unwrap_err(), TooMany::OfThisAddress);
        stranger("[2001:db8:0:1::3]:1").unwrap();
        registry.leave(first.id);
        stranger("[2001:db8::3]:1").unwrap();
        // Who has logged in counts by the whole address.
        second.logged_in.store(true, Ordering::Release);
        stranger("[2001:db8::4]:1").unwrap();
        assert_eq!(stranger("[2001:db8::5]:1").unwrap_err(), TooMany::OfThisAddress);
        for number in 10..15 {
            enter(&registry, &format!("[2001:db8::{number}]:1"), limits).unwrap();
        }
        enter(&registry, "[2001:db8::2]:2", limits).unwrap();
        assert_eq!(enter(&registry, "[2001:db8::2]:3", limits).unwrap_err(), TooMany::OfThisAddress);
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert!(of("::1").is_loopback());
    }

    #[test]
    fn by_default_only_loopback_may_take_any_number() {
        let limits = ClientLimits { clients_max: 10_000, per_address_max: None };
        assert_eq!(limits.of_address("127.0.0.1".parse().unwrap()), usize::MAX);
        assert_eq!(limits.of_address("::ffff:127.0.0.1".parse().unwrap()), usize::MAX);
        assert_eq!(limits.of_address("10.0.0.1".parse().unwrap()), PER_ADDRESS_DEFAULT);
        let unlimited = ClientLimits { per_address_max: Some(0), ..limits };
        assert_eq!(unlimited.of_address("10.0.0.1".parse().unwrap()), usize::MAX);
    }

    #[test]
    fn only_idle_clients_are_ended() {
        let registry = Registry::default();
        let limits = ClientLimits { clients_max: 10, per_address_max: None };
        let infos: Vec<_> =
            (1..=4).map(|port| enter(&registry, &format!("10.0.0.1:{port}"), limits).unwrap()).collect();
        infos[1].busy.store(true, Ordering::Relaxed);
        infos[2].subscriptions.store(1, Ordering::Relaxed);
        infos[3].seen_ms.store(900, Ordering::Relaxed);
        assert_eq!(registry.end_idle(1_000, 1_000), 1);
        assert_eq!(registry.end_idle(999, 1_000), 0);
    }
}
