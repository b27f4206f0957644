//! Which commands a user may run: rules in the order they were given, and what they come to for every known command.

use super::commands::{self, CommandId, Known};

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

    /// `+name` or `-name`. `takes_any`: names that only an upstream Redis knows are taken too.
    pub fn add(&mut self, allow: bool, name: &str, takes_any: bool) -> Result<(), RuleError> {
        let name = name.to_ascii_lowercase();
        if name == "@all" {
            self.set_all(allow);
            return Ok(());
        }
        let is_known = match name.strip_prefix('@') {
            Some(category) => commands::category(category.as_bytes()).is_some(),
            None => is_known_command(&name, allow) || (takes_any && is_plausible(&name)),
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
            allowed[at / 64] |= u64::from(self.decides(&row.name, row.categories)) << (at % 64);
        }
        self.allowed = allowed.into();
        self.first_arguments = self.rules.iter().filter_map(first_argument).collect();
    }

    /// The last rule that matches decides.
    fn decides(&self, name: &str, categories: u32) -> bool {
        self.rules.iter().rfind(|rule| rule.matches(name, categories)).is_some_and(|rule| rule.allow)
    }

    #[must_use]
    pub fn allows(&self, command: &Known, argv: &[&[u8]]) -> bool {
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

/// Looks like the name of a command of some module.
fn is_plausible(name: &str) -> bool {
    let ok = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'|');
    let command = name.split('|').next().unwrap_or_default();
    commands::named(command.as_bytes()).is_none() && !command.is_empty() && name.bytes().all(ok)
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

    fn rules(words: &str) -> CommandRules {
        let mut rules = CommandRules::default();
        for word in words.split_ascii_whitespace() {
            rules
                .add(word.starts_with('+'), &word[1..], false)
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
        assert!(allows("+@lock", "LOCK.ACQUIRE a 1") && !allows("+@lock -@admin", "LOCK.FORCERELEASE a"));
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
        let add = |name: &str, takes_any| CommandRules::default().add(true, name, takes_any);
        for name in ["nosuch", "@nosuch", "config|nosuch", "", "get|", "json.get"] {
            assert_eq!(add(name, false), Err(RuleError::Unknown), "{name}");
        }
        assert_eq!(CommandRules::default().add(false, "select|0", false), Err(RuleError::Unknown));
        assert_eq!(add("json.get", true), Ok(()));
        assert_eq!(add("config|nosuch", true), Err(RuleError::Unknown));
    }

    #[test]
    fn what_nobody_knows_is_for_who_may_do_everything() {
        assert!(
            rules("+@all").allows_unknown("nosuch") && !rules("+@all -@dangerous").allows_unknown("nosuch")
        );
        let mut named = rules("+get");
        named.add(true, "json.get", true).unwrap();
        assert!(named.allows_unknown("json.get") && !named.allows_unknown("json.set"));
    }
}
