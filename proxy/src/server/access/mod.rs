//! Who may do what on this node: users as they are now, failed logins, refusals, and where they are written down.
//!
//! Connections hold their user ([`crate::acl::User`]) and the generation it was taken in. A change of any user raises the
//! generation; a connection that finds another one looks its user up again before it runs the next command or delivers the
//! next message. So the usual case, a user who may do everything, costs one load and one branch.
//!
//! # Layout
//!
//! - [`checks`]: what a connection asks before it runs a command
//! - [`compare`]: whether other nodes have the same users
//! - [`file`]: the ACL file: read, written, and read again when it changes
//! - [`login`]: `AUTH`, and the delay of those who guess
//! - [`admin_acts`]: which commands are administrative acts
//! - [`audit`]: the audit log; [`audit_repeats`]: refusals that repeat
//! - [`upstream_table`]: commands that only the upstream Redis knows

pub mod admin_acts;
pub mod audit;
pub mod audit_repeats;
pub mod checks;
pub mod compare;
pub mod file;
pub mod login;
pub mod upstream_table;

use crate::acl::check::Denial;
use crate::acl::commands::{OtherNames, UpstreamCommands};
use crate::acl::log::{AclLog, Refused};
use crate::acl::{User, Users};
use audit::AuditLog;
use file::{AclFile, FileMark};
use login::LoginThrottle;
use redfence_core::grammar::errors::shown;
use redfence_core::reply::Refusal;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Rules about which a log line is written, at most, whenever they are looked at.
const WARNINGS_MAX: usize = 16;

/// What the flags say.
#[derive(Clone, Debug, Default)]
pub struct AccessSettings {
    pub password: Option<String>,
    pub acl_file: Option<PathBuf>,
    pub audit_log: Option<PathBuf>,
    /// Rules may name commands that only an upstream Redis knows.
    pub has_upstream: bool,
}

/// Refusals since the start, as `INFO` shows them.
#[derive(Debug, Default)]
pub struct Denied {
    pub auth: AtomicU64,
    pub command: AtomicU64,
    pub key: AtomicU64,
    pub channel: AtomicU64,
}

#[derive(Debug)]
pub struct AccessControl {
    settings: AccessSettings,
    users: RwLock<Users>,
    generation: AtomicU64,
    /// New connections must log in.
    needs_login: AtomicBool,
    log: Mutex<AclLog>,
    file_mark: Mutex<Option<FileMark>>,
    upstream_commands: RwLock<Option<Arc<UpstreamCommands>>>,
    pub denied: Denied,
    /// Nodes that are up and have other users than this one.
    pub users_differ: AtomicU64,
    pub throttle: LoginThrottle,
    pub audit: Option<AuditLog>,
}

impl AccessControl {
    /// Reads the file, if there is one. The error is one line.
    pub fn open(settings: AccessSettings) -> Result<AccessControl, String> {
        let password = settings.password.as_deref().map(str::as_bytes);
        let (users, mark) = match &settings.acl_file {
            Some(path) => {
                // The upstream Redis is not reached yet: what only it could know is checked when it is.
                let others = if settings.has_upstream { OtherNames::Any } else { OtherNames::None };
                let AclFile { users, mark, .. } = file::read(path, password, others)?;
                warn_of_unchecked(&users);
                (users, Some(mark))
            }
            None => (Users::new(password), None),
        };
        let audit = settings.audit_log.clone().map(AuditLog::open).transpose()?;
        let needs_login = AtomicBool::new(!is_open(&users));
        Ok(AccessControl {
            settings,
            users: RwLock::new(users),
            generation: AtomicU64::new(1),
            needs_login,
            log: Mutex::default(),
            file_mark: Mutex::new(mark),
            upstream_commands: RwLock::default(),
            denied: Denied::default(),
            users_differ: AtomicU64::new(0),
            throttle: LoginThrottle::default(),
            audit,
        })
    }

    /// Raised by every change of users.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Whether a new connection must say who it is.
    #[must_use]
    pub fn needs_login(&self) -> bool {
        self.needs_login.load(Ordering::Acquire)
    }

    /// The name of a user that is on and that the empty password lets in.
    #[must_use]
    pub fn user_with_empty_password(&self) -> Option<String> {
        let users = self.users();
        let open = users.iter().find(|user| !user.nopass && user.takes_password(b""))?;
        Some(shown(&open.name))
    }

    #[must_use]
    pub fn users(&self) -> Users {
        self.users.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    #[must_use]
    pub fn user(&self, name: &[u8]) -> Option<Arc<User>> {
        self.users.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    #[must_use]
    pub fn default_user(&self) -> Arc<User> {
        Arc::clone(self.users.read().unwrap_or_else(PoisonError::into_inner).default_user())
    }

    /// Changes users: all of `change`, or nothing where it is refused. Answers the names that are gone.
    pub fn change(
        &self,
        change: impl FnOnce(&mut Users) -> Result<(), Refusal>,
    ) -> Result<Vec<Vec<u8>>, Refusal> {
        let mut users = self.users.write().unwrap_or_else(PoisonError::into_inner);
        let mut next = users.clone();
        change(&mut next)?;
        next.keep_unchanged(&users);
        let gone =
            users.iter().map(|user| user.name.clone()).filter(|name| next.get(name).is_none()).collect();
        self.needs_login.store(!is_open(&next), Ordering::Release);
        *users = next;
        self.generation.fetch_add(1, Ordering::AcqRel);
        Ok(gone)
    }

    #[must_use]
    pub fn upstream_commands(&self) -> Option<Arc<UpstreamCommands>> {
        self.upstream_commands.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_upstream_commands(&self, commands: UpstreamCommands) {
        for (user, command) in
            self.users().unknown_names(OtherNames::Upstream(&commands)).iter().take(WARNINGS_MAX)
        {
            tracing::error!(
                user,
                command,
                "ACL rule without effect: neither this node nor the upstream Redis has such a command; correct the rule"
            );
        }
        *self.upstream_commands.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(commands));
    }

    pub fn log(&self) -> MutexGuard<'_, AclLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a refusal and writes it down for `ACL LOG`.
    pub fn note_refusal(&self, refused: Refused<'_>, client: impl FnOnce() -> String) {
        let counter = match refused.reason {
            "auth" => &self.denied.auth,
            "key" => &self.denied.key,
            "channel" => &self.denied.channel,
            _ => &self.denied.command,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.log().add(refused, crate::clock::wall_us() / 1_000, client);
    }

    /// The same for what a check refused.
    pub fn note_denial(
        &self,
        denial: &Denial,
        context: &'static str,
        user: &[u8],
        client: impl FnOnce() -> String,
    ) {
        let (reason, object) = denial.reason();
        self.note_refusal(Refused { reason, context, object, user }, client);
    }
}

/// The file was read before the upstream Redis reported its commands.
pub(super) fn warn_of_unchecked(users: &Users) {
    for (user, command) in users.unknown_names(OtherNames::None).iter().take(WARNINGS_MAX) {
        tracing::warn!(
            user,
            command,
            "ACL rule taken unchecked: it names a command that only the upstream Redis may have, and its command table is not known yet"
        );
    }
}

/// Whether whoever connects is the default user at once.
fn is_open(users: &Users) -> bool {
    let default = users.default_user();
    default.is_on && default.nopass
}
