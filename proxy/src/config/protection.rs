//! Reasons not to start: what would let strangers in. Each is one line that names the setting and the way out.
//!
//! `--protected-mode no` turns those of them that the operator may answer for into warnings. It never lifts an empty secret.

use super::{Config, Refused};
use crate::secret;
use std::net::SocketAddr;
use std::path::Path;

/// Something that protected mode refuses.
struct Danger {
    what: String,
    way_out: &'static str,
}

impl Config {
    /// Refuses what is dangerous, or answers the warnings in place of the refusals where protected mode is off.
    pub(super) fn check_protection(&self, protected: bool) -> Result<Vec<String>, Refused> {
        let dangers = self.dangers();
        if !protected {
            return Ok(dangers
                .into_iter()
                .map(|danger| format!("protected-mode no: {}", danger.what))
                .collect());
        }
        if dangers.is_empty() {
            return Ok(Vec::new());
        }
        let mut ways_out: Vec<&str> = dangers.iter().map(|danger| danger.way_out).collect();
        ways_out.dedup();
        let what: Vec<&str> = dangers.iter().map(|danger| danger.what.as_str()).collect();
        Err(format!(
            "{}: {}, or lift this with --protected-mode no if the network is yours alone",
            what.join("; "),
            ways_out.join(", ")
        ))
    }

    fn dangers(&self) -> Vec<Danger> {
        let mut dangers = Vec::new();
        dangers.extend(self.open_listeners());
        let beyond = self.listeners().into_iter().find(|(_, address)| !address.ip().is_loopback());
        if let Some((name, address)) = beyond {
            if !self.has_login() {
                dangers.push(Danger {
                    what: format!(
                        "{name} {address} is beyond loopback and anybody may use it without a password"
                    ),
                    way_out: "set --password-file",
                });
            }
            dangers.extend(self.readable_secrets());
        }
        if self.redis_password.is_some() && !self.has_login() {
            dangers.push(Danger {
                what: "redis-password without a password of its own: every client would use the upstream Redis with it"
                    .into(),
                way_out: "set --password-file",
            });
        }
        dangers
    }

    /// Clients must log in, or the ACL file says who must: [`Config::check_login`].
    fn has_login(&self) -> bool {
        self.password.is_some() || self.acl_file.is_some()
    }

    /// What the ACL file turned out to ask for, once it is read: a default user without a password lets everybody in, and so does a user
    /// with the empty one.
    pub fn check_login(&self, needs_login: bool, with_empty_password: Option<&str>) -> Result<(), Refused> {
        let open = match with_empty_password {
            _ if self.acl_file.is_none() => return Ok(()),
            Some(user) => format!(
                "user '{user}' of the ACL file has the empty password: whoever connects may have its rights"
            ),
            None if needs_login => return Ok(()),
            None => "the default user of the ACL file needs no password: whoever connects has its rights"
                .to_owned(),
        };
        let beyond = self.listeners().into_iter().find(|(_, address)| !address.ip().is_loopback());
        let danger = match (beyond, &self.redis_password) {
            (Some((name, address)), _) => format!("{open}, and {name} {address} is beyond loopback"),
            (None, Some(_)) => format!("{open}, and redis-password would serve every client"),
            (None, None) => {
                tracing::warn!("{open}");
                return Ok(());
            }
        };
        if !self.protected {
            tracing::warn!("protected-mode no: {danger}");
            return Ok(());
        }
        Err(format!(
            "{danger}: switch the user off or give it a password in the file, or lift this with --protected-mode no"
        ))
    }

    /// Addresses at which clients give commands, the admin API among them.
    fn listeners(&self) -> Vec<(&'static str, SocketAddr)> {
        let all = [
            ("listen", Some(self.listen)),
            ("plain-listen", self.plain_listen),
            ("correctness-listen", self.correctness_listen),
            ("redlock-listen", self.redlock_listen),
            ("admin", self.admin),
        ];
        all.into_iter().filter_map(|(name, address)| Some((name, address?))).collect()
    }

    /// Listeners beyond loopback whose traffic, passwords with it, crosses the network in clear.
    fn open_listeners(&self) -> Vec<Danger> {
        let listeners = self.listeners();
        // Peers have a rule of their own, which protected mode does not lift: see `peers.rs`.
        let is_plain = |name: &str| self.tls.is_none() || name == "plain-listen";
        listeners
            .into_iter()
            .filter(|(name, address)| is_plain(name) && !address.ip().is_loopback())
            .map(|(name, address)| Danger {
                what: format!("{name} {address} is beyond loopback and its traffic goes without TLS"),
                way_out: match name {
                    "plain-listen" => "use a loopback address",
                    _ => "set --tls-cert and --tls-key",
                },
            })
            .collect()
    }

    fn readable_secrets(&self) -> Vec<Danger> {
        let upstream_key = self.redis_tls.as_ref().and_then(|tls| tls.client.as_ref());
        let keys = [
            self.tls.as_ref().map(|tls| ("tls-key", tls.key.as_path())),
            upstream_key.map(|(_, key)| ("redis-tls-key", key.as_path())),
        ];
        let users = self.acl_file.as_deref().filter(|path| has_passwords(path));
        let users = users.map(|path| ("acl-file", path));
        let passwords = self.secret_files.iter().map(|(name, path)| (*name, path.as_path()));
        keys.into_iter()
            .flatten()
            .chain(passwords)
            .chain(users)
            .filter(|(_, path)| secret::is_open_to_others(path))
            .map(|(name, path)| Danger {
                what: format!("{name} {} may be read by every user of this machine", path.display()),
                way_out: "use chmod 600",
            })
            .collect()
    }
}

/// Whether passwords stand in an ACL file, not only their hashes. One that cannot be read is refused elsewhere.
fn has_passwords(path: &Path) -> bool {
    let text = std::fs::read(path).unwrap_or_default();
    text.split(u8::is_ascii_whitespace).any(|word| word.len() > 1 && word[0] == b'>')
}
