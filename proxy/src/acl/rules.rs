//! Which commands a user may run: rules in the order they were given, and what they come to for every known command.

use super::commands::{self, CommandId, KnownCommand, OtherNames};

/// Rules of one user.
pub const RULES_MAX: usize = 1024;

/// One rule. `name` is `@all`, `@category`, `command`, `container|subcommand` or `command|first-argument`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    allow: bool,
    name: Box<str>,
}

impl Rule {
    fn matches(&self, name: &str, categories: u32) -> bool {
        match self.name.strip_prefix('@') {
            Some("all") => true,
            Some(category) => {
                commands::category(category.as_bytes()).is_some_and(|bit| categories & bit != 0)
            }
            None => {
                let container = name.split_once('|').map(|(container, _)| container);
                *self.name == *name || container == Some(&*self.name)
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandRules {
    rules: Vec<Rule>,
    /// By id of the command.
    allowed: Box<[u64]>,
    /// Commands allowed with one first argument, as `+select|0`.
    first_arguments: Vec<(CommandId, Box<str>)>,
}

/// Why a rule was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleError {
    Unknown,
    TooMany,
}

impl Default for CommandRules {
    fn default() -> CommandRules {
        let mut rules =
            CommandRules { rules: Vec::new(), allowed: Box::default(), first_arguments: Vec::new() };
        rules.set_all(false);
        rules
    }
}

impl CommandRules {
    /// `allcommands` or `nocommands`.
    pub fn set_all(&mut self, allow: bool) {
        self.rules = vec![Rule { allow, name: "@all".into() }];
        self.compile();
    }

    /// `+name` or `-name`. `others`: names that only an upstream Redis knows.
    pub fn add(&mut self, allow: bool, name: &str, others: OtherNames<'_>) -> Result<(), RuleError> {
        let name = name.to_ascii_lowercase();
        if name == "@all" {
            self.set_all(allow);
            return Ok(());
        }
        let is_known = match name.strip_prefix('@') {
            Some(category) => commands::category(category.as_bytes()).is_some(),
            None => is_known_command(&name, allow) || is_known_elsewhere(&name, others),
        };
        if !is_known {
            return Err(RuleError::Unknown);
        }
        let below = format!("{name}|");
        self.rules.retain(|rule| *rule.name != *name && !rule.name.starts_with(&below));
        if self.rules.len() >= RULES_MAX {
            return Err(RuleError::TooMany);
        }
        self.rules.push(Rule { allow, name: name.into() });
        self.compile();
        Ok(())
    }

    fn compile(&mut self) {
        let all = commands::all();
        let mut allowed = vec![0_u64; all.len().div_ceil(64)];
        for (at, row) in all.iter().enumerate() {
            allowed[at / 64] |= u64::from(self.decides(&row.name, row.ruled_categories())) << (at % 64);
        }
        self.allowed = allowed.into();
        self.first_arguments = self.rules.iter().filter_map(first_argument).collect();
    }

    /// The last rule that matches decides.
    fn decides(&self, name: &str, categories: u32) -> bool {
        self.rules.iter().rfind(|rule| rule.matches(name, categories)).is_some_and(|rule| rule.allow)
    }

    #[must_use]
    pub fn allows(&self, command: &KnownCommand, argv: &[&[u8]]) -> bool {
        let CommandId(id) = command.id;
        let (word, bit) = (usize::from(id) / 64, usize::from(id) % 64);
        (self.allowed[word] >> bit) & 1 == 1
            || self.first_arguments.iter().any(|(id, argument)| {
                *id == command.id
                    && argv.get(1).is_some_and(|word| word.eq_ignore_ascii_case(argument.as_bytes()))
            })
    }

    /// A command that only the upstream Redis knows, with its categories there.
    #[must_use]
    pub fn allows_upstream(&self, name: &str, categories: u32) -> bool {
        self.decides(name, categories)
    }

    /// A command nobody knows: for who may run every command, or was given this one by name.
    #[must_use]
    pub fn allows_unknown(&self, name: &str) -> bool {
        let by_name = self.rules.iter().rfind(|rule| !rule.name.starts_with('@') && rule.matches(name, 0));
        by_name.map_or_else(|| self.is_all(), |rule| rule.allow)
    }

    /// Every command, without exception.
    #[must_use]
    pub fn is_all(&self) -> bool {
        matches!(&*self.rules, [Rule { allow: true, name }] if &**name == "@all")
    }

    /// Commands that rules name and that neither our tables nor `others` have.
    pub fn unknown_names<'a>(&'a self, others: OtherNames<'a>) -> impl Iterator<Item = &'a str> {
        let names = self.rules.iter().filter(|rule| !rule.name.starts_with('@'));
        let is_known = move |rule: &&Rule| {
            is_known_command(&rule.name, rule.allow) || is_known_elsewhere(&rule.name, others)
        };
        names.filter(move |rule| !is_known(rule)).map(|rule| &*rule.name)
    }

    /// As `ACL LIST` shows them.
    #[must_use]
    pub fn describe(&self) -> String {
        let shown = |rule: &Rule| format!("{}{}", if rule.allow { '+' } else { '-' }, rule.name);
        self.rules.iter().map(shown).collect::<Vec<_>>().join(" ")
    }
}

fn is_known_command(name: &str, allow: bool) -> bool {
    if commands::named(name.as_bytes()).is_some() {
        return true;
    }
    // A first argument can be allowed, not taken away.
    let Some((command, argument)) = name.split_once('|') else { return false };
    let command = commands::named(command.as_bytes());
    allow
        && !argument.is_empty()
        && !argument.contains('|')
        && command.is_some_and(|row| !row.is_container && row.container().is_none())
}

/// A command of the upstream Redis that is in none of our tables. Without its subcommands: only the whole command can be checked.
fn is_known_elsewhere(name: &str, others: OtherNames<'_>) -> bool {
    commands::named(name.as_bytes()).is_none() && others.has(name)
}

fn first_argument(rule: &Rule) -> Option<(CommandId, Box<str>)> {
    if !rule.allow || commands::named(rule.name.as_bytes()).is_some() {
        return None;
    }
    let (command, argument) = rule.name.split_once('|')?;
    Some((commands::named(command.as_bytes())?.id, argument.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acl::commands::{UpstreamCommand, UpstreamCommands};

    fn rules(words: &str) -> CommandRules {
        let mut rules = CommandRules::default();
        for word in words.split_ascii_whitespace() {
            rules
                .add(word.starts_with('+'), &word[1..], OtherNames::None)
                .unwrap_or_else(|error| panic!("{word}: {error:?}"));
        }
        rules
    }

    fn allows(words: &str, line: &str) -> bool {
        let argv: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        rules(words).allows(commands::find(&argv).unwrap(), &argv)
    }

    #[test]
    fn the_last_rule_that_matches_decides() {
        assert!(!allows("", "GET a"));
        assert!(allows("+@read", "GET a") && !allows("+@read", "SET a b"));
        assert!(allows("+@all -@dangerous", "SET a b") && !allows("+@all -@dangerous", "KEYS *"));
        assert!(!allows("+get -@all", "GET a"));
        assert!(allows("-@all +config|get", "CONFIG GET x") && !allows("+config|get", "CONFIG SET x y"));
        assert!(
            !allows("+config -config|set", "CONFIG SET x y") && allows("+config -config|set", "CONFIG GET x")
        );
        assert!(
            allows("-config|set +config", "CONFIG SET x y"),
            "a rule for the container replaces those below it"
        );
        assert!(allows("+select|0", "SELECT 0") && !allows("+select|0", "SELECT 1"));
        assert!(!allows("+select|0 -select", "SELECT 0"));
        assert!(allows("+@lock", "LOCK.ACQUIRE a 1") && !allows("+@lock", "LOCK.FORCERELEASE a"));
        assert!(allows("+@lock", "LOCK.CLUSTER INFO") && !allows("+@lock", "LOCK.CLUSTER SET a b"));
        assert!(!allows("+@lock", "LOCK.CLUSTER BACKUP BEGIN") && !allows("+@lock", "LOCK.CLUSTER NEWVERB"));
        assert!(!allows("+@all -@admin", "CONFIG NEWVERB") && allows("+config", "CONFIG NEWVERB"));
        assert!(allows("+@fence", "FENCE.GET a") && !allows("+@fence", "LOCK.INFO a"));
    }

    #[test]
    fn rules_are_shown_as_they_were_given() {
        assert_eq!(rules("+@all -@dangerous +config|get").describe(), "+@all -@dangerous +config|get");
        assert_eq!(rules("+get +set -get").describe(), "-@all +set -get");
        assert_eq!(rules("+get -@all").describe(), "-@all");
        assert!(rules("+@all").is_all() && !rules("+@all -get").is_all());
    }

    #[test]
    fn unknown_names_are_refused_unless_a_redis_may_know_them() {
        let add = |name: &str, others: OtherNames<'_>| CommandRules::default().add(true, name, others);
        for name in ["nosuch", "@nosuch", "config|nosuch", "", "get|", "json.get"] {
            assert_eq!(add(name, OtherNames::None), Err(RuleError::Unknown), "{name}");
        }
        let first_argument = CommandRules::default().add(false, "select|0", OtherNames::None);
        assert_eq!(first_argument, Err(RuleError::Unknown));
        assert_eq!(add("json.get", OtherNames::Any), Ok(()));
        assert_eq!(add("config|nosuch", OtherNames::Any), Err(RuleError::Unknown));
        let json = UpstreamCommand { categories: 0, keys: None };
        let table: UpstreamCommands = [(Box::from(&b"json.get"[..]), json)].into_iter().collect();
        let upstream = OtherNames::Upstream(&table);
        assert_eq!(add("JSON.GET", upstream), Ok(()));
        for name in ["flushal", "flushall|x|y", "config|sett", "json.gett", "nosuch|sub", "json.get|sub"] {
            assert_eq!(CommandRules::default().add(false, name, upstream), Err(RuleError::Unknown), "{name}");
        }
        let mut rules = CommandRules::default();
        for name in ["get", "flushal", "json.get"] {
            rules.add(true, name, OtherNames::Any).unwrap();
        }
        assert_eq!(rules.unknown_names(upstream).collect::<Vec<_>>(), ["flushal"]);
    }

    #[test]
    fn what_nobody_knows_is_for_who_may_do_everything() {
        assert!(
            rules("+@all").allows_unknown("nosuch") && !rules("+@all -@dangerous").allows_unknown("nosuch")
        );
        let mut named = rules("+get");
        named.add(true, "json.get", OtherNames::Any).unwrap();
        assert!(named.allows_unknown("json.get") && !named.allows_unknown("json.set"));
    }
}
