//! `LOCK.CLUSTER INFO`, `NODES`, `ADD id addr`, `REMOVE id`, `TRANSFER id`, `SET name value`, `GET name`,
//! `VERSION`, `UPGRADE HOLD`, `UPGRADE FINISH`, `BACKUP BEGIN`, `BACKUP READ id offset`, `BACKUP END id`. Proxy only.

use super::errors;
use super::words;
use crate::machine::settings::Setting;
use crate::reply::Refusal;
use std::net::IpAddr;

pub const NAME: &str = "LOCK.CLUSTER";

const VERBS: [&str; 10] =
    ["INFO", "NODES", "ADD", "REMOVE", "TRANSFER", "SET", "GET", "VERSION", "UPGRADE", "BACKUP"];
const ADDRESS_BYTES_MAX: usize = 255;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cluster<'a> {
    Info,
    Nodes,
    Add {
        id: u64,
        address: &'a str,
    },
    Remove {
        id: u64,
    },
    Transfer {
        id: u64,
    },
    /// The value could be set: it was checked.
    Set {
        name: Setting,
        value: &'a [u8],
    },
    Get {
        name: Setting,
    },
    Version,
    /// The cluster version does not rise until [`Cluster::UpgradeFinish`].
    UpgradeHold,
    UpgradeFinish,
    Backup(Backup),
    /// Made up: plays the newer release in tests of mixed clusters.
    #[cfg(feature = "next-version")]
    Next,
}

/// Steps of a backup: what `redfence backup` sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backup {
    /// Fixes a state that is not older than this command, and answers the backup's id.
    Begin,
    /// Some bytes of the backup from `offset` on.
    Read { id: u64, offset: u64 },
    /// The backup is not needed any more.
    End { id: u64 },
}

pub(super) fn parse<A: AsRef<[u8]>>(argv: &[A]) -> Result<Cluster<'_>, Refusal> {
    let [_, verb, rest @ ..] = argv else {
        return Err(errors::wrong_arity(NAME));
    };
    let verb = verb.as_ref();
    let is = |word: &str| verb.eq_ignore_ascii_case(word.as_bytes());
    match rest {
        [] if is("INFO") => Ok(Cluster::Info),
        [] if is("NODES") => Ok(Cluster::Nodes),
        [] if is("VERSION") => Ok(Cluster::Version),
        [word] if is("UPGRADE") => match word.as_ref() {
            word if word.eq_ignore_ascii_case(b"HOLD") => Ok(Cluster::UpgradeHold),
            word if word.eq_ignore_ascii_case(b"FINISH") => Ok(Cluster::UpgradeFinish),
            word => Err(errors::unknown_subcommand("LOCK.CLUSTER UPGRADE", word)),
        },
        [step, rest @ ..] if is("BACKUP") => parse_backup(step.as_ref(), rest).map(Cluster::Backup),
        #[cfg(feature = "next-version")]
        [] if is("NEXT") => Ok(Cluster::Next),
        [id, address] if is("ADD") => {
            Ok(Cluster::Add { id: node_id(id.as_ref())?, address: self::address(address.as_ref())? })
        }
        [id] if is("REMOVE") => Ok(Cluster::Remove { id: node_id(id.as_ref())? }),
        [id] if is("TRANSFER") => Ok(Cluster::Transfer { id: node_id(id.as_ref())? }),
        [name, value] if is("SET") => {
            let (name, value) = (Setting::parse(name.as_ref())?, value.as_ref());
            name.check(value)?;
            Ok(Cluster::Set { name, value })
        }
        [name] if is("GET") => Ok(Cluster::Get { name: Setting::parse(name.as_ref())? }),
        _ if VERBS.into_iter().any(is) => Err(errors::wrong_arity(NAME)),
        _ => Err(errors::unknown_subcommand(NAME, verb)),
    }
}

fn parse_backup<A: AsRef<[u8]>>(step: &[u8], rest: &[A]) -> Result<Backup, Refusal> {
    const NAME: &str = "LOCK.CLUSTER BACKUP";
    let is = |word: &str| step.eq_ignore_ascii_case(word.as_bytes());
    let number = |word: &A| words::decimal(word.as_ref()).ok_or_else(errors::backup_number);
    match rest {
        [] if is("BEGIN") => Ok(Backup::Begin),
        [id, offset] if is("READ") => Ok(Backup::Read { id: number(id)?, offset: number(offset)? }),
        [id] if is("END") => Ok(Backup::End { id: number(id)? }),
        _ if ["BEGIN", "READ", "END"].into_iter().any(is) => Err(errors::wrong_arity(NAME)),
        _ => Err(errors::unknown_subcommand(NAME, step)),
    }
}

fn node_id(word: &[u8]) -> Result<u64, Refusal> {
    match words::decimal(word) {
        Some(id) if (1..=65535).contains(&id) => Ok(id),
        Some(_) | None => Err(errors::node_id()),
    }
}

fn address(word: &[u8]) -> Result<&str, Refusal> {
    let text = std::str::from_utf8(word).ok().filter(|text| is_address(text));
    text.ok_or_else(errors::node_address)
}

/// Whether other nodes could dial this: host:port, where the host is a name or an address, and not "any address".
#[must_use]
pub fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':').filter(|_| text.len() <= ADDRESS_BYTES_MAX) else {
        return false;
    };
    let is_host_byte = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]%".contains(&byte);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    !bare.is_empty()
        && host.bytes().all(is_host_byte)
        && !bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
        && words::decimal(port.as_bytes()).is_some_and(|port| (1..=65535).contains(&port))
}
