//! Replicated settings: one truth on all nodes, because they change only through the log.
//!
//! They begin as the flags of the founding node ([`SettingsCommand::Found`], proposed by the first leader; the first one in the
//! log counts) and change by `LOCK.CLUSTER SET`. Most take effect with their entry. A change of routes or of the default tier
//! does not: while one node still follows the old routes and another the new ones, a name would have two holders. It is
//! *pending* at first; names whose tier it changes are served by neither tier. When every member has said that it follows
//! ([`SettingsCommand::Seen`]), or has been silent for so long that it serves nothing by itself, the leader proposes
//! [`SettingsCommand::Settle`], and the change is in force. `docs/adr/` has the reasoning.

pub mod upstream_identity;

use crate::grammar::errors::shown;
use crate::grammar::words::decimal;
use crate::machine::log::bytes::{put_bytes, put_varint, Reader};
use crate::machine::Machine;
use crate::reply::{Refusal, Reply};
use crate::routes::{self, tier_word, Route, Routing};
use crate::types::Tier;
use std::collections::BTreeSet;
use upstream_identity::Behind;

/// `max-memory` when a cluster is founded.
pub const MAX_MEMORY_BYTES_DEFAULT: u64 = 1 << 30;
pub const MAX_MEMORY_BYTES_RANGE: (u64, u64) = (1 << 20, 1 << 40);
pub const IDLE_RETENTION_MS_DEFAULT: u64 = 600_000;
pub const IDLE_RETENTION_MS_RANGE: (u64, u64) = (1_000, 31_536_000_000);
/// 30 days.
pub const MARK_RETENTION_MS_DEFAULT: u64 = 30 * 24 * 3_600_000;
pub const MARK_RETENTION_MS_RANGE: (u64, u64) = (1_000, 315_360_000_000);
pub const SESSION_GRACE_MS_DEFAULT: u64 = 500;
pub const SESSION_GRACE_MS_RANGE: (u64, u64) = (0, 3_600_000);
/// Members whose word is waited for. There are never nearly as many.
const SEEN_MAX: usize = 1_024;

/// The names a client may set and ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    MaxMemory,
    Route,
    DefaultTier,
    IdleRetentionMs,
    MarkRetentionMs,
    SessionGraceMs,
}

impl Setting {
    pub const ALL: [Setting; 6] = [
        Setting::MaxMemory,
        Setting::Route,
        Setting::DefaultTier,
        Setting::IdleRetentionMs,
        Setting::MarkRetentionMs,
        Setting::SessionGraceMs,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Setting::MaxMemory => "max-memory",
            Setting::Route => "route",
            Setting::DefaultTier => "default-tier",
            Setting::IdleRetentionMs => "idle-retention-ms",
            Setting::MarkRetentionMs => "mark-retention-ms",
            Setting::SessionGraceMs => "session-grace-ms",
        }
    }

    pub fn parse(word: &[u8]) -> Result<Setting, Refusal> {
        Setting::ALL.into_iter().find(|name| name.as_str().as_bytes().eq_ignore_ascii_case(word)).ok_or_else(
            || {
                let names = Setting::ALL.map(Setting::as_str).join(", ");
                Refusal::new(format!("ERR unknown setting '{}': use one of {names}", shown(word)))
            },
        )
    }

    /// Whether a value could be set at all. The same check is made again when it is applied.
    pub fn check(self, value: &[u8]) -> Result<(), Refusal> {
        self.read(value).map(|_| ())
    }

    fn read(self, value: &[u8]) -> Result<Value, Refusal> {
        Ok(match self {
            Setting::MaxMemory => Value::Number(memory_bytes(value)?),
            Setting::Route => Value::Routes(routes::parse_list(value)?),
            Setting::DefaultTier => Value::Tier(Tier::parse(value).ok_or_else(|| {
                Refusal::new(format!(
                    "ERR default-tier must be correctness or efficiency, not '{}'",
                    shown(value)
                ))
            })?),
            Setting::IdleRetentionMs => Value::Number(self.number(value, IDLE_RETENTION_MS_RANGE)?),
            Setting::MarkRetentionMs => Value::Number(self.number(value, MARK_RETENTION_MS_RANGE)?),
            Setting::SessionGraceMs => Value::Number(self.number(value, SESSION_GRACE_MS_RANGE)?),
        })
    }

    fn number(self, value: &[u8], (least, most): (u64, u64)) -> Result<u64, Refusal> {
        decimal(value).filter(|number| (least..=most).contains(number)).ok_or_else(|| {
            Refusal::new(format!("ERR {} must be an integer from {least} to {most}", self.as_str()))
        })
    }
}

enum Value {
    Number(u64),
    Routes(Vec<Route>),
    Tier(Tier),
}

/// Bytes, with Redis's units: `1gb`, `512mb`, `1048576`.
fn memory_bytes(value: &[u8]) -> Result<u64, Refusal> {
    let (least, most) = MAX_MEMORY_BYTES_RANGE;
    let lower = value.to_ascii_lowercase();
    let units = [(&b"kb"[..], 10), (b"mb", 20), (b"gb", 30), (b"tb", 40), (b"", 0)];
    let bytes = units.iter().find_map(|(unit, shift)| {
        let number = decimal(lower.strip_suffix(*unit)?)?;
        number.checked_mul(1 << shift)
    });
    bytes.filter(|bytes| (least..=most).contains(bytes)).ok_or_else(|| {
        Refusal::new(format!(
            "ERR max-memory must be a number of bytes from {least} to {most}, with kb, mb or gb behind it if you like"
        ))
    })
}

/// What the founding node's flags say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Founding {
    pub routing: Routing,
    pub idle_retention_ms: u64,
    pub session_grace_ms: u64,
}

impl Default for Founding {
    fn default() -> Founding {
        Founding {
            routing: Routing::default(),
            idle_retention_ms: IDLE_RETENTION_MS_DEFAULT,
            session_grace_ms: SESSION_GRACE_MS_DEFAULT,
        }
    }
}

/// A change of the settings, as it is logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingsCommand<'a> {
    /// The flags of the first leader. Changes nothing where settings were founded before.
    Found(Founding),
    /// `LOCK.CLUSTER SET`.
    Set { name: &'a [u8], value: &'a [u8] },
    /// A member follows this version: nothing it still does was decided by older routes.
    Seen { node: u64, version: u64 },
    /// Every member follows this version or serves nothing: the pending routes are in force.
    Settle { version: u64 },
    /// What a member has behind it.
    Behind { node: u64, leads: bool, what: upstream_identity::Report<'a> },
}

/// Routes that wait until every member follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    pub routing: Routing,
    /// The version that every member must follow before they are in force.
    pub version: u64,
    /// Members that said so.
    pub seen: BTreeSet<u64>,
}

/// The settings of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Rises with every change a node must follow. 0: nobody has founded them yet.
    pub version: u64,
    pub founded: bool,
    pub max_memory_bytes: u64,
    /// In force.
    pub routing: Routing,
    /// The version of the change that brought them.
    pub routing_version: u64,
    pub pending: Option<Pending>,
    pub idle_retention_ms: u64,
    pub mark_retention_ms: u64,
    pub session_grace_ms: u64,
    /// The Redis that members have behind them.
    pub behind: Behind,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            version: 0,
            founded: false,
            max_memory_bytes: MAX_MEMORY_BYTES_DEFAULT,
            routing: Routing::default(),
            routing_version: 0,
            pending: None,
            idle_retention_ms: IDLE_RETENTION_MS_DEFAULT,
            mark_retention_ms: MARK_RETENTION_MS_DEFAULT,
            session_grace_ms: SESSION_GRACE_MS_DEFAULT,
            behind: Behind::default(),
        }
    }
}

impl Settings {
    /// A setting as text: what `LOCK.CLUSTER GET` answers. Of routes, the last that were set.
    #[must_use]
    pub fn get(&self, name: Setting) -> Vec<u8> {
        let routing = self.pending.as_ref().map_or(&self.routing, |pending| &pending.routing);
        match name {
            Setting::MaxMemory => self.max_memory_bytes.to_string().into_bytes(),
            Setting::Route => routes::list(&routing.routes),
            Setting::DefaultTier => tier_word(routing.default_tier).into(),
            Setting::IdleRetentionMs => self.idle_retention_ms.to_string().into_bytes(),
            Setting::MarkRetentionMs => self.mark_retention_ms.to_string().into_bytes(),
            Setting::SessionGraceMs => self.session_grace_ms.to_string().into_bytes(),
        }
    }

    /// Whether these routes have what a `SET` of this name and value asks for. False for settings that are no part of them.
    #[must_use]
    pub fn is_set(routing: &Routing, name: Setting, value: &[u8]) -> bool {
        match name.read(value) {
            Ok(Value::Routes(routes)) => routing.routes == routes,
            Ok(Value::Tier(tier)) => routing.default_tier == tier,
            Ok(Value::Number(_)) | Err(_) => false,
        }
    }

    fn found(&mut self, founding: Founding) {
        if self.founded {
            return;
        }
        self.founded = true;
        self.version += 1;
        self.routing = founding.routing;
        self.routing_version = self.version;
        self.idle_retention_ms = founding.idle_retention_ms;
        self.session_grace_ms = founding.session_grace_ms;
    }

    fn set(&mut self, name: Setting, value: &[u8]) -> Result<(), Refusal> {
        if crate::mutant!(SettingNotStored) {
            return Ok(());
        }
        match (name, name.read(value)?) {
            (Setting::Route, Value::Routes(routes)) => {
                self.reroute(Routing { routes, default_tier: self.routing.default_tier })?;
            }
            (Setting::DefaultTier, Value::Tier(default_tier)) => {
                self.reroute(Routing { routes: self.routing.routes.clone(), default_tier })?;
            }
            (Setting::MaxMemory, Value::Number(number)) => self.max_memory_bytes = number,
            (Setting::IdleRetentionMs, Value::Number(number)) => self.idle_retention_ms = number,
            (Setting::MarkRetentionMs, Value::Number(number)) => self.mark_retention_ms = number,
            (Setting::SessionGraceMs, Value::Number(number)) => self.session_grace_ms = number,
            (_, Value::Number(_) | Value::Routes(_) | Value::Tier(_)) => {
                unreachable!("a setting reads values of its own kind")
            }
        }
        self.version += 1;
        Ok(())
    }

    fn reroute(&mut self, routing: Routing) -> Result<(), Refusal> {
        if !self.founded {
            return Err(Refusal::new(
                "UNAVAILABLE the settings of this cluster are being founded; nothing was done; retry",
            ));
        }
        if self.pending.is_some() {
            return Err(Refusal::new(
                "UNAVAILABLE the last change of routes has not reached every node; nothing was done; retry in a moment",
            ));
        }
        if routing != self.routing {
            self.pending = Some(Pending { routing, version: self.version + 1, seen: BTreeSet::new() });
        }
        Ok(())
    }

    fn seen(&mut self, node: u64, version: u64) {
        if let Some(pending) = self.pending.as_mut().filter(|pending| version >= pending.version) {
            if pending.seen.len() < SEEN_MAX {
                pending.seen.insert(node);
            }
        }
    }

    fn settle(&mut self, version: u64) {
        if let Some(pending) = self.pending.take_if(|pending| pending.version == version) {
            self.routing = pending.routing;
            self.routing_version = pending.version;
            self.version += 1;
        }
    }

    /// The settings as bytes: for snapshots, and for a node's front, which follows them.
    pub fn write(&self, out: &mut Vec<u8>) {
        let Settings {
            version,
            founded,
            max_memory_bytes,
            routing,
            routing_version,
            pending,
            idle_retention_ms,
            mark_retention_ms,
            session_grace_ms,
            behind,
        } = self;
        put_varint(out, *version);
        out.push(u8::from(*founded));
        for number in [max_memory_bytes, idle_retention_ms, mark_retention_ms, session_grace_ms] {
            put_varint(out, *number);
        }
        put_routing(out, routing);
        put_varint(out, *routing_version);
        out.push(u8::from(pending.is_some()));
        if let Some(pending) = pending {
            put_routing(out, &pending.routing);
            put_varint(out, pending.version);
            put_varint(out, pending.seen.len() as u64);
            pending.seen.iter().for_each(|node| put_varint(out, *node));
        }
        behind.write(out);
    }

    /// Reads what [`Settings::write`] wrote.
    #[must_use]
    pub fn read_bytes(bytes: &[u8]) -> Option<Settings> {
        let mut reader = Reader::new(bytes);
        let settings = Settings::read(&mut reader)?;
        reader.is_empty().then_some(settings)
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Settings> {
        let within =
            |number: u64, (least, most): (u64, u64)| (least..=most).contains(&number).then_some(number);
        let (version, founded) = (crate::machine::stats::count(reader)?, reader.flag()?);
        let max_memory_bytes = within(reader.varint()?, MAX_MEMORY_BYTES_RANGE)?;
        let idle_retention_ms = within(reader.varint()?, IDLE_RETENTION_MS_RANGE)?;
        let mark_retention_ms = within(reader.varint()?, MARK_RETENTION_MS_RANGE)?;
        let session_grace_ms = within(reader.varint()?, SESSION_GRACE_MS_RANGE)?;
        let (routing, routing_version) = (read_routing(reader)?, super::stats::count(reader)?);
        let pending = match reader.flag()? {
            false => None,
            true => {
                let (routing, version) = (read_routing(reader)?, crate::machine::stats::count(reader)?);
                let mut seen = BTreeSet::new();
                for _ in 0..within(reader.varint()?, (0, SEEN_MAX as u64))? {
                    seen.insert(reader.varint()?);
                }
                Some(Pending { routing, version, seen })
            }
        };
        Some(Settings {
            version,
            founded,
            max_memory_bytes,
            routing,
            routing_version,
            pending,
            idle_retention_ms,
            mark_retention_ms,
            session_grace_ms,
            behind: Behind::read(reader)?,
        })
    }
}

pub(crate) fn put_routing(out: &mut Vec<u8>, routing: &Routing) {
    put_bytes(out, &routes::list(&routing.routes));
    out.push(u8::from(routing.default_tier == Tier::Correctness));
}

pub(crate) fn read_routing(reader: &mut Reader<'_>) -> Option<Routing> {
    let routes = routes::parse_list(reader.bytes()?).ok()?;
    let default_tier = if reader.flag()? { Tier::Correctness } else { Tier::Efficiency };
    Some(Routing { routes, default_tier })
}

impl<'a> SettingsCommand<'a> {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            SettingsCommand::Found(Founding { routing, idle_retention_ms, session_grace_ms }) => {
                out.push(1);
                put_routing(out, routing);
                put_varint(out, *idle_retention_ms);
                put_varint(out, *session_grace_ms);
            }
            SettingsCommand::Set { name, value } => {
                out.push(2);
                put_bytes(out, name);
                put_bytes(out, value);
            }
            SettingsCommand::Seen { node, version } => {
                out.push(3);
                put_varint(out, *node);
                put_varint(out, *version);
            }
            SettingsCommand::Settle { version } => {
                out.push(4);
                put_varint(out, *version);
            }
            SettingsCommand::Behind { node, leads, what } => {
                out.push(5);
                put_varint(out, *node);
                out.push(u8::from(*leads));
                what.encode(out);
            }
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'a>) -> Option<SettingsCommand<'a>> {
        Some(match reader.u8()? {
            1 => SettingsCommand::Found(Founding {
                routing: read_routing(reader)?,
                idle_retention_ms: reader.varint()?,
                session_grace_ms: reader.varint()?,
            }),
            2 => SettingsCommand::Set { name: reader.bytes()?, value: reader.bytes()? },
            3 => SettingsCommand::Seen { node: reader.varint()?, version: reader.varint()? },
            4 => SettingsCommand::Settle { version: reader.varint()? },
            5 => SettingsCommand::Behind {
                node: reader.varint()?,
                leads: reader.flag()?,
                what: upstream_identity::Report::decode(reader)?,
            },
            _ => return None,
        })
    }
}

impl Machine {
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// How many bytes the replicated state may have.
    #[must_use]
    pub fn max_memory_bytes(&self) -> u64 {
        self.settings.max_memory_bytes
    }

    pub(crate) fn change_settings(&mut self, command: &SettingsCommand<'_>) -> Reply {
        let settings = &mut self.settings;
        match command {
            SettingsCommand::Found(founding) => {
                let mut founding = founding.clone();
                let clamp = |number: u64, (least, most): (u64, u64)| number.clamp(least, most);
                founding.idle_retention_ms = clamp(founding.idle_retention_ms, IDLE_RETENTION_MS_RANGE);
                founding.session_grace_ms = clamp(founding.session_grace_ms, SESSION_GRACE_MS_RANGE);
                settings.found(founding);
            }
            SettingsCommand::Set { name, value } => {
                let set = Setting::parse(name).and_then(|name| settings.set(name, value));
                if let Err(refusal) = set {
                    return refusal.into();
                }
            }
            SettingsCommand::Seen { node, version } => settings.seen(*node, *version),
            SettingsCommand::Settle { version } => settings.settle(*version),
            SettingsCommand::Behind { node, leads, what } => {
                if settings.behind.report(*node, *leads, what) {
                    settings.version += 1;
                }
            }
        }
        Reply::OK
    }
}
