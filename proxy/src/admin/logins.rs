//! Who has logged in to the dashboard: random tokens in cookies, kept here as hashes, for twelve hours at most.
//!
//! A login ends with its time, with a logout, when its user is changed or deleted, and when the program stops. Streams of events that were opened
//! with it end then, too.

use super::{Admin, Peer};
use crate::acl::User;
use crate::server::ServerState;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Cookies know no ports: nodes of one machine, or at ports of one machine that lead to several, have names of their own. With TLS no
/// other host of the same domain can set it.
pub(super) fn cookie_name(admin: &Admin, peer: &Peer) -> String {
    let prefix = if admin.is_tls { "__Host-" } else { "" };
    format!("{prefix}redfence_session_{}_{}", admin.server.node, peer.local_address.port())
}

pub(super) const LASTS: Duration = Duration::from_secs(12 * 60 * 60);
/// Logins at one time, of all users and of one. One more ends the oldest.
const LOGINS_MAX: usize = 1_000;
const LOGINS_OF_USER_MAX: usize = 100;

/// Found by its hash, so that how long the search takes tells nothing about tokens.
type TokenHash = [u8; 32];

#[derive(Debug)]
struct Login {
    /// As it was when it logged in. A user that was changed is another one, also where it was changed back.
    user: Arc<User>,
    until: Instant,
    /// Dropped with the login.
    alive: watch::Sender<()>,
}

/// How long a login lasts, for what goes on after its request was answered.
#[derive(Clone, Debug)]
pub(super) struct LoginEnd {
    until: Instant,
    alive: watch::Receiver<()>,
}

impl LoginEnd {
    /// Returns when the login is over: by its time, or before.
    pub(super) async fn wait(mut self) {
        // Nothing is ever sent: it changes when the sender is gone.
        let _ = tokio::time::timeout_at(self.until, self.alive.changed()).await;
    }
}

#[derive(Debug, Default)]
pub(super) struct Logins(Mutex<HashMap<TokenHash, Login>>);

fn hash(token: &str) -> TokenHash {
    Sha256::digest(token.as_bytes()).into()
}

impl Logins {
    fn table(&self) -> MutexGuard<'_, HashMap<TokenHash, Login>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new token for this user; `None` where the system has no random bytes.
    pub(super) fn add(&self, user: Arc<User>) -> Option<String> {
        let mut bytes = [0; 32];
        getrandom::getrandom(&mut bytes).ok()?;
        let mut token = String::with_capacity(64);
        for byte in bytes {
            // Writing to a text cannot fail.
            let _ = write!(token, "{byte:02x}");
        }
        let now = Instant::now();
        let mut table = self.table();
        table.retain(|_, login| login.until > now);
        let of_user = table.values().filter(|login| login.user.name == user.name).count();
        if of_user >= LOGINS_OF_USER_MAX {
            end_oldest(&mut table, |login| login.user.name == user.name);
        } else if table.len() >= LOGINS_MAX {
            end_oldest(&mut table, |_| true);
        }
        table.insert(hash(&token), Login { user, until: now + LASTS, alive: watch::channel(()).0 });
        Some(token)
    }

    /// Whose token it is, while the login lasts, and how long that is.
    pub(super) fn user_of(&self, token: &str, server: &ServerState) -> Option<(Arc<User>, LoginEnd)> {
        let key = hash(token);
        let mut table = self.table();
        let login = table.get(&key)?;
        let as_it_is = server.access.user(&login.user.name).filter(|user| Arc::ptr_eq(user, &login.user));
        match as_it_is.filter(|user| user.is_on && login.until > Instant::now()) {
            Some(user) => Some((user, LoginEnd { until: login.until, alive: login.alive.subscribe() })),
            None => {
                table.remove(&key);
                None
            }
        }
    }

    pub(super) fn end(&self, token: &str) {
        self.table().remove(&hash(token));
    }
}

fn end_oldest(table: &mut HashMap<TokenHash, Login>, is_meant: impl Fn(&Login) -> bool) {
    let oldest = table.iter().filter(|(_, login)| is_meant(login)).min_by_key(|(_, login)| login.until);
    if let Some(key) = oldest.map(|(key, _)| *key) {
        table.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_are_limited_and_one_user_ends_only_its_own() {
        let logins = Logins::default();
        let other = logins.add(Arc::new(User::new(b"other"))).unwrap();
        let tokens: Vec<String> =
            (0..=LOGINS_OF_USER_MAX).map(|_| logins.add(Arc::new(User::new(b"one"))).unwrap()).collect();
        assert_eq!(tokens[0].len(), 64);
        let has = |token: &str| logins.table().contains_key(&hash(token));
        assert!(has(&other) && !has(&tokens[0]) && has(&tokens[LOGINS_OF_USER_MAX]));
        assert_eq!(logins.table().len(), LOGINS_OF_USER_MAX + 1);
        logins.end(&other);
        assert!(!has(&other));
    }
}
