//! `ACL …`: users and their rights, answered by this node also where there is an upstream Redis.

use super::{is, unknown_subcommand, wrong_arity};
use crate::acl::check::Denial;
use crate::acl::commands::OtherNames;
use crate::acl::users::{check_name, DEFAULT};
use crate::acl::{commands, selector, user, User};
use crate::clock;
use crate::server::access::file::NO_FILE;
use crate::server::context::CommandContext;
use crate::server::net::connection::Progress;
use redfence_core::grammar::errors::shown;
use redfence_core::grammar::words::decimal;
use redfence_core::keyspace::acl_table::CATEGORIES;
use redfence_core::reply::{Refusal, Reply};

const LOG_SHOWN: u64 = 10;
const GENPASS: &str = "ERR ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096";

const HELP: &[&str] = &[
    "ACL <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "CAT [<category>]",
    "    List all commands that belong to <category>, or all command categories",
    "    when no category is specified.",
    "DELUSER <username> [<username> ...]",
    "    Delete a list of users.",
    "DRYRUN <username> <command> [<arg> ...]",
    "    Returns whether the user can execute the given command without executing the command.",
    "GETUSER <username>",
    "    Get the user's details.",
    "GENPASS [<bits>]",
    "    Generate a secure 256-bit user password. The optional `bits` argument can",
    "    be used to specify a different size.",
    "LIST",
    "    Show users details in config file format.",
    "LOAD",
    "    Reload users from the ACL file.",
    "LOG [<count> | RESET]",
    "    Show the ACL log entries.",
    "SAVE",
    "    Save the current config to the ACL file.",
    "SETUSER <username> <attribute> [<attribute> ...]",
    "    Create or modify a user with the specified attributes.",
    "USERS",
    "    List all the registered usernames.",
    "WHOAMI",
    "    Return the current connection username.",
    "HELP",
    "    Prints this help.",
];

impl CommandContext {
    pub(in crate::server) fn acl(&mut self, argv: &[&[u8]]) -> Progress {
        let [_, verb, rest @ ..] = argv else { return self.refuse(wrong_arity(argv[0])) };
        let answer = self.acl_inner(verb, rest);
        self.reply(&answer.unwrap_or_else(Reply::Error));
        // Deleted by itself: as in Redis it still gets the answer.
        match self.server.access.user(&self.client.user.name) {
            Some(_) => Progress::Done,
            None => Progress::CloseAfterReply,
        }
    }

    fn acl_inner(&mut self, verb: &[u8], rest: &[&[u8]]) -> Result<Reply, Refusal> {
        let access = &self.server.access;
        match rest {
            [] if is(verb, "WHOAMI") => Ok(Reply::bulk(&self.client.user.name)),
            [] if is(verb, "USERS") => {
                Ok(Reply::Array(access.users().iter().map(|user| Reply::bulk(&user.name)).collect()))
            }
            [] if is(verb, "LIST") => {
                Ok(Reply::Array(access.users().iter().map(|user| Reply::bulk(user.describe())).collect()))
            }
            [] if is(verb, "HELP") => {
                Ok(Reply::Array(HELP.iter().map(|line| Reply::Status((*line).into())).collect()))
            }
            [] if is(verb, "LOAD") => self.acl_load(),
            [] if is(verb, "SAVE") => self.acl_save(),
            [] | [_] if is(verb, "CAT") => category(rest.first().copied()),
            [] | [_] if is(verb, "GENPASS") => generate_password(rest.first().copied()),
            [] | [_] if is(verb, "LOG") => self.acl_log(rest.first().copied()),
            [name] if is(verb, "GETUSER") => {
                Ok(access.user(name).map_or(Reply::Nil, |user| described(&user)))
            }
            [name, words @ ..] if is(verb, "SETUSER") => self.set_user(name, words),
            [_, ..] if is(verb, "DELUSER") => self.delete_users(rest),
            [name, command @ ..] if is(verb, "DRYRUN") && !command.is_empty() => self.dry_run(name, command),
            _ => {
                let verbs = "CAT DELUSER DRYRUN GENPASS GETUSER HELP LIST LOAD LOG SAVE SETUSER USERS WHOAMI";
                match verbs.split(' ').find(|known| is(verb, known)) {
                    Some(known) => Err(wrong_arity(format!("acl|{known}").as_bytes())),
                    None => Err(unknown_subcommand("ACL", verb)),
                }
            }
        }
    }

    /// All words, or none of them.
    fn set_user(&self, name: &[u8], words: &[&[u8]]) -> Result<Reply, Refusal> {
        check_name(name).map_err(|text| Refusal::new(format!("ERR {text}")))?;
        let upstream = self.server.access.upstream_commands();
        let others = upstream.as_deref().map_or(OtherNames::None, OtherNames::Upstream);
        let words = selector::join_words(words)
            .map_err(|word| Refusal::new(format!("ERR {}", selector::unmatched(&word))))?;
        self.server.access.change(|users| {
            let mut user = match users.get(name) {
                Some(user) => User::clone(user),
                None if users.has_room() => User::new(name),
                None => return Err(Refusal::new("ERR a node has 10000 users at most; delete some")),
            };
            for word in &words {
                user.apply(word, others).map_err(|problem| {
                    // Never the secret itself.
                    let word = match word.first() {
                        Some(b'>' | b'<') => format!("{}…", char::from(word[0])),
                        Some(b'(') if word.contains(&b'>') => "(…)".to_owned(),
                        _ => shown(word),
                    };
                    Refusal::new(format!("ERR Error in ACL SETUSER modifier '{word}': {}", problem.text()))
                })?;
            }
            users.put(user);
            Ok(())
        })?;
        Ok(Reply::OK)
    }

    fn delete_users(&self, names: &[&[u8]]) -> Result<Reply, Refusal> {
        if names.contains(&DEFAULT) {
            return Err(Refusal::new("ERR The 'default' user cannot be removed"));
        }
        let gone = self.server.access.change(|users| {
            names.iter().for_each(|name| {
                users.remove(name);
            });
            Ok(())
        })?;
        self.server.close_clients_of(&gone, Some(self.client.info.id));
        Ok(Reply::Int(gone.len() as i64))
    }

    fn acl_load(&self) -> Result<Reply, Refusal> {
        if !self.server.access.has_file() {
            return Err(Refusal::new(NO_FILE));
        }
        let loaded = self.server.access.load();
        let gone = loaded.map_err(|error| {
            Refusal::new(format!("ERR {error} WARNING: ACL errors detected, no change to the previously active ACL rules was performed"))
        })?;
        self.server.close_clients_of(&gone, Some(self.client.info.id));
        Ok(Reply::OK)
    }

    fn acl_save(&self) -> Result<Reply, Refusal> {
        if !self.server.access.has_file() {
            return Err(Refusal::new(NO_FILE));
        }
        self.server.access.save().map_err(|error| {
            tracing::error!(error, "ACL SAVE failed");
            Refusal::new("ERR There was an error trying to save the ACLs. Please check the server logs for more information")
        })?;
        Ok(Reply::OK)
    }

    fn acl_log(&self, word: Option<&[u8]>) -> Result<Reply, Refusal> {
        let mut log = self.server.access.log();
        let count = match word {
            None => LOG_SHOWN,
            Some(word) if is(word, "RESET") => {
                log.reset();
                return Ok(Reply::OK);
            }
            Some(word) => decimal(word).ok_or(Refusal::new("ERR value is out of range, must be positive"))?,
        };
        let now_ms = clock::wall_us() / 1_000;
        let pair = |key: &'static str, value: Reply| (Reply::Text(key), value);
        let entries = log.entries().take(usize::try_from(count).unwrap_or(usize::MAX)).map(|entry| {
            let age_ms = now_ms.saturating_sub(entry.created_ms);
            Reply::Map(vec![
                pair("count", Reply::Int(entry.count as i64)),
                pair("reason", Reply::Text(entry.reason)),
                pair("context", Reply::Text(entry.context)),
                pair("object", Reply::bulk(&entry.object)),
                pair("username", Reply::bulk(&entry.user)),
                pair("age-seconds", Reply::Double(age_ms as f64 / 1_000.0)),
                pair("client-info", Reply::bulk(&entry.client)),
                pair("entry-id", Reply::Int(entry.id as i64)),
                pair("timestamp-created", Reply::Int(entry.created_ms as i64)),
                pair("timestamp-last-updated", Reply::Int(entry.updated_ms as i64)),
            ])
        });
        Ok(Reply::Array(entries.collect()))
    }

    fn dry_run(&self, name: &[u8], command: &[&[u8]]) -> Result<Reply, Refusal> {
        let access = &self.server.access;
        let user =
            access.user(name).ok_or_else(|| Refusal::new(format!("ERR User '{}' not found", shown(name))))?;
        let upstream = access.upstream_commands();
        let is_known = commands::find(command).is_some()
            || upstream.as_ref().is_some_and(|known| known.contains_key(&*command[0].to_ascii_lowercase()));
        if !is_known {
            return Err(Refusal::new(format!("ERR Command '{}' not found", shown(command[0]))));
        }
        Ok(match user.check(command, upstream.as_deref()) {
            Ok(()) => Reply::OK,
            Err(denial) => Reply::bulk(match &denial {
                Denial::Command(name) => format!("This user has no permissions to run the '{name}' command"),
                Denial::Key(key) => {
                    format!("This user has no permissions to access the '{}' key", shown(key))
                }
                Denial::Channel(channel) => {
                    format!("This user has no permissions to access the '{}' channel", shown(channel))
                }
            }),
        })
    }
}

fn described(user: &User) -> Reply {
    let pair = |key: &'static str, value: Reply| (Reply::Text(key), value);
    let rights = |user: &User| {
        vec![
            pair("commands", Reply::bulk(user.commands.describe())),
            pair("keys", Reply::bulk(user.describe_keys())),
            pair("channels", Reply::bulk(user.describe_channels())),
        ]
    };
    let selectors = user.selectors.iter().map(|selector| Reply::Map(rights(selector))).collect();
    let mut shown = vec![
        pair("flags", Reply::Set(user.flags().into_iter().map(Reply::Text).collect())),
        pair(
            "passwords",
            Reply::Array(user.passwords.iter().map(|hash| Reply::bulk(user::hex(hash))).collect()),
        ),
    ];
    shown.extend(rights(user));
    shown.push(pair("selectors", Reply::Array(selectors)));
    Reply::Map(shown)
}

fn category(name: Option<&[u8]>) -> Result<Reply, Refusal> {
    let Some(name) = name else {
        return Ok(Reply::Array(CATEGORIES.iter().map(|(name, _)| Reply::Text(name)).collect()));
    };
    let bit = commands::category(name)
        .ok_or_else(|| Refusal::new(format!("ERR Unknown category '{}'", shown(name))))?;
    let members = commands::all().iter().filter(|row| row.categories & bit != 0);
    Ok(Reply::Array(members.map(|row| Reply::bulk(&row.name)).collect()))
}

fn generate_password(bits: Option<&[u8]>) -> Result<Reply, Refusal> {
    let bits = match bits {
        None => 256,
        Some(word) => decimal(word).filter(|bits| (1..=4096).contains(bits)).ok_or(Refusal::new(GENPASS))?,
    };
    let digits = bits.div_ceil(4) as usize;
    let mut bytes = vec![0; digits.div_ceil(2)];
    getrandom::getrandom(&mut bytes)
        .map_err(|_| Refusal::new("ERR the system gave no random bytes; retry"))?;
    let mut text = user::hex(&bytes);
    text.truncate(digits);
    Ok(Reply::bulk(text))
}
