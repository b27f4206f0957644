//! `SCRIPT EXISTS`, `FLUSH` and `KILL`, applied to the cache. `SCRIPT LOAD` compiles, so the leader does it before the log:
//! what is logged of it is the body for the cache.

use super::scripts::parse_sha;
use super::Scripts;
use crate::keyspace::args::is;
use crate::keyspace::errors;
use crate::reply::{Refusal, Reply};

/// Runs `SCRIPT …`; `words` are those behind the name.
pub(crate) fn command(scripts: &mut Scripts, words: &[&[u8]]) -> Reply {
    answer(scripts, words).unwrap_or_else(Reply::Error)
}

fn answer(scripts: &mut Scripts, words: &[&[u8]]) -> Result<Reply, Refusal> {
    match words {
        [word, shas @ ..] if is(word, "EXISTS") && !shas.is_empty() => {
            let known = |sha: &&[u8]| parse_sha(sha).is_some_and(|sha| scripts.get(&sha).is_some());
            Ok(Reply::Array(shas.iter().map(|sha| Reply::Int(i64::from(known(sha)))).collect()))
        }
        [word, rest @ ..] if is(word, "FLUSH") => match rest {
            [] => {
                scripts.flush();
                Ok(Reply::OK)
            }
            [mode] if is(mode, "ASYNC") || is(mode, "SYNC") => {
                scripts.flush();
                Ok(Reply::OK)
            }
            _ => Err(Refusal::new("ERR SCRIPT FLUSH only support SYNC|ASYNC option")),
        },
        // A script ends by itself: there is never one to kill.
        [word] if is(word, "KILL") => Err(Refusal::new("NOTBUSY No scripts in execution right now.")),
        [word, ..] if is(word, "LOAD") || is(word, "EXISTS") || is(word, "KILL") => {
            let word = String::from_utf8_lossy(word).to_ascii_lowercase();
            Err(errors::wrong_arity(&format!("script|{word}")))
        }
        [word, ..] => {
            let word = String::from_utf8_lossy(word);
            Err(Refusal::new(format!("ERR unknown subcommand '{word}'. Try SCRIPT HELP.")))
        }
        [] => Err(errors::wrong_arity("script")),
    }
}
