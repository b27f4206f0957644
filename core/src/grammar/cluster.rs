//! `LOCK.CLUSTER INFO`, `NODES`, `ADD id addr`, `REMOVE id`, `TRANSFER id`, `SET name value`, `GET name`. Proxy only.

use super::errors;
use super::words;
use crate::machine::settings::Setting;
use crate::reply::Refusal;

pub const NAME: &str = "LOCK.CLUSTER";

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
        _ if ["INFO", "NODES", "ADD", "REMOVE", "TRANSFER", "SET", "GET"].into_iter().any(is) => {
            Err(errors::wrong_arity(NAME))
        }
        _ => Err(errors::unknown_subcommand(NAME, verb)),
    }
}

fn node_id(word: &[u8]) -> Result<u64, Refusal> {
    match words::decimal(word) {
        Some(id) if (1..=65535).contains(&id) => Ok(id),
        Some(_) | None => Err(errors::node_id()),
    }
}

fn address(word: &[u8]) -> Result<&str, Refusal> {
    let text = std::str::from_utf8(word).ok().filter(|text| text.len() <= ADDRESS_BYTES_MAX);
    let port = text.and_then(|text| text.rsplit_once(':')).and_then(|(host, port)| {
        let port = words::decimal(port.as_bytes())?;
        (!host.is_empty() && (1..=65535).contains(&port)).then_some(port)
    });
    match (text, port) {
        (Some(text), Some(_)) => Ok(text),
        _ => Err(errors::node_address()),
    }
}
