//! Every command that rules may name: those of Redis (core's tables), `LOCK.*` and `FENCE.*`. Found by name and subcommand without
//! allocation.

use redfence_core::grammar::table as locks;
use redfence_core::keyspace::acl_table::{
    self as acl, ADMIN, BLOCKING, DANGEROUS, FAST, FENCE, LOCK, READ, SLOW, WRITE,
};
use redfence_core::keyspace::key_spec::{KeySpec, NOT_RUN_HERE};
use redfence_core::keyspace::table;
use rustc_hash::FxHashMap;
use std::sync::LazyLock;

/// Longer than any `container|subcommand`.
const NAME_BYTES_MAX: usize = 40;

/// `LOCK.CLUSTER` by subcommand: those that only look, and those that change something.
const CLUSTER_LOOKS: &[&str] = &["info", "nodes", "get", "version"];
const CLUSTER_CHANGES: &[&str] = &["add", "remove", "transfer", "set", "upgrade", "backup"];

/// What the upstream Redis says of a command that no table of ours has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpstreamCommand {
    pub categories: u32,
    /// `None`: its keys are not in fixed places.
    pub keys: Option<KeySpec>,
}

/// By name in lower case.
pub type UpstreamCommands = FxHashMap<Box<[u8]>, UpstreamCommand>;

/// Which commands rules may name besides those of our tables.
#[derive(Clone, Copy, Debug)]
pub enum OtherNames<'a> {
    /// None: there is no upstream Redis, or its commands are not known yet.
    None,
    /// Those of the upstream Redis.
    Upstream(&'a UpstreamCommands),
    /// All that look like one: they were checked elsewhere, or will be when the upstream Redis is reached.
    Any,
}

impl OtherNames<'_> {
    /// `name`: in lower case. Subcommands are none of them.
    #[must_use]
    pub fn has(self, name: &str) -> bool {
        let ok = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        match self {
            OtherNames::None => false,
            OtherNames::Upstream(known) => known.contains_key(name.as_bytes()),
            OtherNames::Any => !name.is_empty() && name.bytes().all(ok),
        }
    }
}

/// Where a command has its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyLocation {
    Plain(KeySpec),
    Lock(locks::KeyPlaces),
    /// It may have some, and we do not know where: only for who may use all keys.
    Unknown,
}

/// Its place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandId(pub u16);

#[derive(Clone, Debug)]
pub struct KnownCommand {
    pub id: CommandId,
    /// Lower case; `container|subcommand`.
    pub name: String,
    pub categories: u32,
    /// Rights on the first key and on the others, as bits of [`acl::R`] and [`acl::W`].
    pub first_key: u8,
    pub other_keys: u8,
    pub keys: KeyLocation,
    pub is_container: bool,
    has_admin_subcommands: bool,
}

impl KnownCommand {
    /// Its container's name, where it is a subcommand.
    #[must_use]
    pub fn container(&self) -> Option<&str> {
        self.name.split_once('|').map(|(container, _)| container)
    }

    /// What rules go by. A container stands for the subcommands that are not in the table: where some that are belong to
    /// `@admin`, so do these.
    #[must_use]
    pub fn ruled_categories(&self) -> u32 {
        self.categories | if self.has_admin_subcommands { ADMIN | DANGEROUS } else { 0 }
    }

    /// Whether running it is an administrative act.
    #[must_use]
    pub fn is_admin(&self) -> bool {
        self.ruled_categories() & ADMIN != 0 || self.name == "flushdb"
    }
}

struct Table {
    rows: Vec<KnownCommand>,
    by_name: FxHashMap<Box<[u8]>, u16>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut rows: Vec<KnownCommand> = acl::ROWS.iter().map(plain).collect();
    rows.extend(locks::ROWS.iter().map(ours));
    let cluster = rows.iter().find(|row| row.name == "lock.cluster").cloned();
    for (names, categories) in
        [(CLUSTER_LOOKS, READ | SLOW | LOCK), (CLUSTER_CHANGES, WRITE | ADMIN | SLOW | DANGEROUS)]
    {
        for (name, row) in names.iter().zip(std::iter::repeat(&cluster)) {
            rows.extend(row.iter().map(|row| KnownCommand {
                name: format!("lock.cluster|{name}"),
                categories,
                ..row.clone()
            }));
        }
    }
    let containers: Vec<String> = rows.iter().filter_map(|row| row.container().map(str::to_owned)).collect();
    let of_admins = rows.iter().filter(|row| row.categories & ADMIN != 0);
    let admin_containers: Vec<String> =
        of_admins.filter_map(|row| row.container().map(str::to_owned)).collect();
    let mut by_name = FxHashMap::default();
    for (at, row) in rows.iter_mut().enumerate() {
        let at = u16::try_from(at).expect("a few hundred commands");
        row.id = CommandId(at);
        row.is_container = containers.contains(&row.name);
        row.has_admin_subcommands = admin_containers.contains(&row.name);
        by_name.insert(row.name.as_bytes().into(), at);
    }
    Table { rows, by_name }
});

fn plain(row: &acl::AclRow) -> KnownCommand {
    let name = row.name.split('|').next().unwrap_or(row.name);
    let not_run = || {
        let mut found = NOT_RUN_HERE.iter().filter(|(_, names)| {
            names.split_ascii_whitespace().any(|known| known.eq_ignore_ascii_case(name))
        });
        found.next().map(|(keys, _)| *keys)
    };
    let keys = match table::find(name.as_bytes()).map(|row| row.keys).or_else(not_run) {
        Some(keys) => KeyLocation::Plain(keys),
        None => KeyLocation::Unknown,
    };
    KnownCommand {
        id: CommandId(0),
        name: row.name.to_owned(),
        categories: row.categories,
        first_key: row.first_key,
        other_keys: row.other_keys,
        keys,
        is_container: false,
        has_admin_subcommands: false,
    }
}

fn ours(row: &locks::Row) -> KnownCommand {
    let mut categories = if row.write { WRITE } else { READ } | if row.fast { FAST } else { SLOW };
    // What operators do is not part of @lock: who may use locks does not rule over those of others.
    categories |= match (row.name.starts_with("FENCE."), row.dangerous) {
        (_, true) => ADMIN | DANGEROUS,
        (true, false) => FENCE,
        (false, false) => LOCK,
    };
    categories |= if row.blocking { BLOCKING } else { 0 };
    let right = if row.write { acl::W } else { acl::R };
    KnownCommand {
        id: CommandId(0),
        name: row.name.to_ascii_lowercase(),
        categories,
        first_key: right,
        other_keys: right,
        keys: KeyLocation::Lock(row.keys),
        is_container: false,
        has_admin_subcommands: false,
    }
}

/// All of them. A row's place is its id.
#[must_use]
pub fn all() -> &'static [KnownCommand] {
    &TABLE.rows
}

#[must_use]
pub fn by_id(id: CommandId) -> &'static KnownCommand {
    &TABLE.rows[usize::from(id.0)]
}

/// By its whole name, `container|subcommand` included, whatever its case.
#[must_use]
pub fn named(name: &[u8]) -> Option<&'static KnownCommand> {
    let mut lower = [0; NAME_BYTES_MAX];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    TABLE.by_name.get(&*lower).map(|at| &TABLE.rows[usize::from(*at)])
}

/// The words behind the command's name, and behind its subcommand's. None of a command that is not known.
#[must_use]
pub fn arguments_of<'a>(argv: &'a [&'a [u8]]) -> &'a [&'a [u8]] {
    let Some(known) = find(argv) else { return &[] };
    let words = if known.container().is_some() { 2 } else { 1 };
    argv.get(words..).unwrap_or_default()
}

/// What a client's words name: the subcommand where there is one of that name, else the command.
#[must_use]
pub fn find(argv: &[&[u8]]) -> Option<&'static KnownCommand> {
    let command = named(argv.first()?)?;
    let subcommand = || {
        let word = argv.get(1)?;
        let mut whole = [0; NAME_BYTES_MAX];
        let len = command.name.len() + 1 + word.len();
        let whole = whole.get_mut(..len)?;
        whole[..command.name.len()].copy_from_slice(command.name.as_bytes());
        whole[command.name.len()] = b'|';
        whole[command.name.len() + 1..].copy_from_slice(word);
        named(whole)
    };
    match command.is_container {
        true => subcommand().or(Some(command)),
        false => Some(command),
    }
}

/// The category of this name.
#[must_use]
pub fn category(name: &[u8]) -> Option<u32> {
    acl::CATEGORIES.iter().find(|(known, _)| known.as_bytes().eq_ignore_ascii_case(name)).map(|(_, bit)| *bit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_subcommands_are_found() {
        let name = |line: &str| {
            let argv: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            find(&argv).map(|known| known.name.as_str())
        };
        assert_eq!(name("GET k"), Some("get"));
        assert_eq!(name("config GET x"), Some("config|get"));
        assert_eq!(name("CONFIG nosuch"), Some("config"));
        assert_eq!(name("LOCK.ACQUIRE a 1"), Some("lock.acquire"));
        assert_eq!(name("lock.cluster add 4 x:1"), Some("lock.cluster|add"));
        assert_eq!(name("NOSUCH"), None);
        assert_eq!(name(&"x".repeat(100)), None);
        assert_eq!(name(&format!("config {}", "x".repeat(100))), Some("config"));
    }

    #[test]
    fn what_operators_do_is_admin_and_dangerous() {
        for name in [
            "lock.forcerelease",
            "lock.cluster|set",
            "lock.cluster|add",
            "lock.cluster|backup",
            "flushall",
            "acl|setuser",
            "acl",
        ] {
            let found = named(name.as_bytes()).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(found.categories & (ADMIN | DANGEROUS), ADMIN | DANGEROUS, "{name}");
        }
        assert_eq!(named(b"lock.cluster|info").unwrap().categories & ADMIN, 0);
    }

    #[test]
    fn what_operators_do_is_not_part_of_lock() {
        for row in all().iter().filter(|row| row.name.starts_with("lock.")) {
            let is_for_operators = row.categories & ADMIN != 0;
            assert_eq!(row.categories & LOCK == 0, is_for_operators, "{}", row.name);
        }
    }

    #[test]
    fn unknown_subcommands_of_admin_containers_are_admin() {
        for (line, expected) in [
            ("CONFIG NEWVERB", true),
            ("MODULE NEWVERB", true),
            ("CLIENT", true),
            ("CONFIG HELP", false),
            ("CLIENT ID", false),
            ("XGROUP NEWVERB", false),
            ("FLUSHDB", true),
            ("GET", false),
        ] {
            let argv: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            assert_eq!(find(&argv).unwrap().is_admin(), expected, "{line}");
        }
    }

    #[test]
    fn keys_are_known_of_all_but_a_few() {
        let unknown: Vec<&str> = all()
            .iter()
            .filter(|row| row.keys == KeyLocation::Unknown)
            .map(|row| row.name.as_str())
            .collect();
        assert!(unknown.len() < 12, "{unknown:?}");
    }
}
