//! The Redis commands the proxy answers by itself, one file a family. `LOCK.*` and `FENCE.*` are in [`lock`].
//!
//! Each is a method on `CommandContext`: it reads the words, changes the client's state and replies. None of them waits.

pub mod acl;
pub mod client;
pub mod command;
pub mod explain;
pub mod fence_kind;
pub mod hello;
pub mod help;
pub mod info;
pub mod lock;
pub mod notify;
pub mod plain;
pub mod pubsub;
pub mod scripts;
pub mod server;
pub mod simple;
pub mod tracking;
pub mod transaction;
pub mod version_wait;

pub use redfence_core::keyspace::errors::unknown_command;
use redfence_core::reply::Refusal;

/// A command of this family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    Acl,
    Auth,
    Client,
    Cluster,
    Command,
    Config,
    Discard,
    Echo,
    Exec,
    Hello,
    Info,
    Monitor,
    Multi,
    Ping,
    PSubscribe,
    Publish,
    PubSub,
    PUnsubscribe,
    Quit,
    Reset,
    Select,
    ShardSubscribe,
    Subscribe,
    Time,
    Unsubscribe,
    Unwatch,
    Watch,
}

impl Local {
    /// Looks a name up, whatever its case.
    #[must_use]
    pub fn find(name: &[u8]) -> Option<Local> {
        if let [_, _, _, _, b'.', ..] = name {
            // `LOCK.*`: none of these, and seen most often.
            return None;
        }
        let mut upper = [0; 12];
        let upper = upper.get_mut(..name.len())?;
        upper.copy_from_slice(name);
        upper.make_ascii_uppercase();
        Some(match &*upper {
            b"ACL" => Local::Acl,
            b"AUTH" => Local::Auth,
            b"CLIENT" => Local::Client,
            b"CLUSTER" => Local::Cluster,
            b"COMMAND" => Local::Command,
            b"CONFIG" => Local::Config,
            b"DISCARD" => Local::Discard,
            b"ECHO" => Local::Echo,
            b"EXEC" => Local::Exec,
            b"HELLO" => Local::Hello,
            b"INFO" => Local::Info,
            b"MONITOR" | b"SYNC" | b"PSYNC" => Local::Monitor,
            b"MULTI" => Local::Multi,
            b"PING" => Local::Ping,
            b"PSUBSCRIBE" => Local::PSubscribe,
            b"PUBLISH" => Local::Publish,
            b"PUBSUB" => Local::PubSub,
            b"PUNSUBSCRIBE" => Local::PUnsubscribe,
            b"QUIT" => Local::Quit,
            b"RESET" => Local::Reset,
            b"SELECT" => Local::Select,
            b"SSUBSCRIBE" | b"SUNSUBSCRIBE" => Local::ShardSubscribe,
            b"SUBSCRIBE" => Local::Subscribe,
            b"TIME" => Local::Time,
            b"UNSUBSCRIBE" => Local::Unsubscribe,
            b"UNWATCH" => Local::Unwatch,
            b"WATCH" => Local::Watch,
            _ => return None,
        })
    }

    /// Whether the upstream Redis, if there is one, answers instead of us.
    #[must_use]
    pub fn yields_to_upstream(self) -> bool {
        matches!(self, Local::Config | Local::Publish | Local::PubSub | Local::Time)
    }

    /// Carried out at once even between `MULTI` and `EXEC`.
    #[must_use]
    pub fn is_never_queued(self) -> bool {
        matches!(
            self,
            Local::Multi | Local::Exec | Local::Discard | Local::Watch | Local::Quit | Local::Reset
        )
    }

    /// Changes or shows the connection itself, which neither the upstream Redis nor the Raft keyspace knows.
    #[must_use]
    pub fn is_about_the_connection(self) -> bool {
        matches!(
            self,
            Local::Acl
                | Local::Auth
                | Local::Client
                | Local::Cluster
                | Local::Hello
                | Local::Monitor
                | Local::Subscribe
                | Local::PSubscribe
                | Local::Unsubscribe
                | Local::PUnsubscribe
                | Local::ShardSubscribe
        )
    }

    /// Allowed before the client has said who it is.
    #[must_use]
    pub fn needs_no_authentication(self) -> bool {
        matches!(self, Local::Auth | Local::Hello | Local::Quit | Local::Reset)
    }

    /// Allowed to a RESP2 client that listens to channels.
    #[must_use]
    pub fn is_allowed_while_listening(self) -> bool {
        matches!(
            self,
            Local::Subscribe
                | Local::PSubscribe
                | Local::Unsubscribe
                | Local::PUnsubscribe
                | Local::ShardSubscribe
                | Local::Ping
                | Local::Quit
                | Local::Reset
        )
    }
}

/// Redis's own text.
#[must_use]
pub fn wrong_arity(name: &[u8]) -> Refusal {
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    Refusal::new(format!(
        "ERR wrong number of arguments for '{}' command",
        redfence_core::grammar::errors::shown(name.as_bytes())
    ))
}

/// Redis's own text for a subcommand it does not know.
#[must_use]
pub fn unknown_subcommand(command: &str, word: &[u8]) -> Refusal {
    let shown = redfence_core::grammar::errors::shown(word);
    Refusal::new(format!("ERR unknown subcommand '{shown}'. Try {command} HELP."))
}

/// Compares without regard to case.
#[must_use]
pub fn is(word: &[u8], expected: &str) -> bool {
    word.eq_ignore_ascii_case(expected.as_bytes())
}

/// A command Redis has, on keys of the correctness tier.
#[must_use]
pub fn not_supported_yet(name: &[u8]) -> Refusal {
    let name = redfence_core::grammar::errors::shown(&name.to_ascii_lowercase());
    Refusal::new(format!("ERR '{name}' on keys of the correctness tier is not supported yet"))
}
