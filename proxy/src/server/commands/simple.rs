//! Commands that need nothing but their words: `PING`, `ECHO`, `TIME`, `CONFIG GET`, `CLUSTER`, and refusals.

use super::{help, is, unknown_subcommand, wrong_arity};
use crate::clock;
use crate::server::context::CommandContext;
use crate::server::net::connection::Progress;
use redfence_core::glob;
use redfence_core::keyspace::errors;
use redfence_core::reply::{Refusal, Reply, Sink};

impl CommandContext {
    /// `PING [message]`
    pub(in crate::server) fn ping(&mut self, argv: &[&[u8]]) -> Progress {
        let message = match argv {
            [_] => None,
            [_, message] => Some(*message),
            _ => return self.refuse(wrong_arity(argv[0])),
        };
        if self.client.is_listening_only() {
            self.reply_with(|encoder| {
                encoder.array(2);
                encoder.bulk(b"pong");
                encoder.bulk(message.unwrap_or(b""));
            });
            return Progress::Done;
        }
        match message {
            None => self.reply_with(|encoder| encoder.status("PONG")),
            Some(message) => self.reply_with(|encoder| encoder.bulk(message)),
        }
        Progress::Done
    }

    /// `ECHO message`: any bytes at all.
    pub(in crate::server) fn echo(&mut self, argv: &[&[u8]]) -> Progress {
        let [_, message] = argv else { return self.refuse(wrong_arity(argv[0])) };
        self.reply_with(|encoder| encoder.bulk(message));
        Progress::Done
    }

    pub(in crate::server) fn time(&mut self, argv: &[&[u8]]) -> Progress {
        if argv.len() != 1 {
            return self.refuse(wrong_arity(argv[0]));
        }
        let now_us = clock::wall_us();
        let parts = [now_us / 1_000_000, now_us % 1_000_000];
        self.reply(&Reply::Array(parts.iter().map(|part| Reply::bulk(part.to_string())).collect()));
        Progress::Done
    }

    /// `CONFIG GET pattern…`: what clients ask for when they connect. Nothing can be set.
    pub(in crate::server) fn config(&mut self, argv: &[&[u8]]) -> Progress {
        let [_, verb, patterns @ ..] = argv else { return self.refuse(wrong_arity(argv[0])) };
        if is(verb, "RESETSTAT") || is(verb, "SET") || is(verb, "REWRITE") {
            return self.refuse(Refusal::new(
                "ERR this node is configured by its flags and its file, not by CONFIG",
            ));
        }
        if is(verb, "HELP") && patterns.is_empty() {
            self.reply(&help::lines("CONFIG"));
            return Progress::Done;
        }
        if !is(verb, "GET") {
            return self.refuse(unknown_subcommand("CONFIG", verb));
        }
        if patterns.is_empty() {
            return self.refuse(wrong_arity(b"config|get"));
        }
        if let Err(refusal) = patterns.iter().try_for_each(|pattern| errors::check_pattern(pattern)) {
            return self.refuse(refusal);
        }
        let known: [(&'static str, String); 11] = [
            ("timeout", self.server.idle_timeout_ms.div_ceil(1_000).to_string()),
            ("databases", crate::server::client::session::DATABASES.to_string()),
            ("maxclients", self.server.clients_max.to_string()),
            ("replica-read-only", "yes".into()),
            ("slave-read-only", "yes".into()),
            ("save", String::new()),
            ("appendonly", "yes".into()),
            ("appendfsync", "always".into()),
            ("maxmemory", "0".into()),
            ("maxmemory-policy", "noeviction".into()),
            ("notify-keyspace-events", String::new()),
        ];
        let matching = known.into_iter().filter(|(name, _)| {
            patterns.iter().any(|pattern| glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
        });
        let pairs = matching.map(|(name, value)| (Reply::Text(name), Reply::bulk(value))).collect();
        self.reply(&Reply::Map(pairs));
        Progress::Done
    }
}
