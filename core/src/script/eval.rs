//! The words of `EVAL`, `EVALSHA`, their read-only twins and `SCRIPT`.

use super::scripts::{parse_sha, sha1, sha_hex, SCRIPT_BYTES_MAX};
use super::{Call, Scripts};
use crate::keyspace::args::{int, is};
use crate::keyspace::{errors, Db, Keys};
use crate::reply::{Refusal, Reply};

/// Runs `EVAL`, `EVALSHA`, `EVAL_RO`, `EVALSHA_RO` or `SCRIPT`.
pub fn command(scripts: &mut Scripts, keys: &mut dyn Keys, db: Db, argv: &[&[u8]]) -> Reply {
    let answer = match argv {
        [name, rest @ ..] if is(name, "SCRIPT") => script(scripts, rest),
        [name, rest @ ..] => match form(name) {
            Some(form) => eval(scripts, keys, db, form, rest),
            None => Err(errors::unknown_command(argv)),
        },
        [] => Err(errors::unknown_command(argv)),
    };
    answer.unwrap_or_else(Reply::Error)
}

#[derive(Clone, Copy)]
struct Form {
    name: &'static str,
    by_sha: bool,
    read_only: bool,
}

fn form(name: &[u8]) -> Option<Form> {
    [
        Form { name: "eval", by_sha: false, read_only: false },
        Form { name: "evalsha", by_sha: true, read_only: false },
        Form { name: "eval_ro", by_sha: false, read_only: true },
        Form { name: "evalsha_ro", by_sha: true, read_only: true },
    ]
    .into_iter()
    .find(|form| is(name, form.name))
}

fn eval(
    scripts: &mut Scripts,
    keys: &mut dyn Keys,
    db: Db,
    form: Form,
    words: &[&[u8]],
) -> Result<Reply, Refusal> {
    let [script, numkeys, rest @ ..] = words else { return Err(errors::wrong_arity(form.name)) };
    let numkeys = int(numkeys)?;
    if numkeys > rest.len() as i64 {
        return Err(Refusal::new("ERR Number of keys can't be greater than number of args"));
    }
    let Ok(numkeys) = usize::try_from(numkeys) else {
        return Err(Refusal::new("ERR Number of keys can't be negative"));
    };
    let (key_words, arg_words) = rest.split_at(numkeys);
    let call = |sha, body| Call { sha, body, keys: key_words, args: arg_words, read_only: form.read_only };
    if form.by_sha {
        let sha = parse_sha(script).ok_or_else(no_script)?;
        // Shared bytes: the script itself may not change the cache, but the borrow checker cannot know.
        let body = scripts.get(&sha).ok_or_else(no_script)?.clone();
        return Ok(super::run(keys, db, &call(sha, &body)));
    }
    let sha = load(scripts, script)?;
    Ok(super::run(keys, db, &call(sha, script)))
}

fn no_script() -> Refusal {
    Refusal::new("NOSCRIPT No matching script. Please use EVAL.")
}

/// Compiles and keeps a script; one that does not compile is not kept.
fn load(scripts: &mut Scripts, body: &[u8]) -> Result<super::Sha, Refusal> {
    if body.len() > SCRIPT_BYTES_MAX {
        return Err(Refusal::new(format!("ERR a script may have {SCRIPT_BYTES_MAX} bytes at most")));
    }
    let sha = sha1(body);
    if scripts.get(&sha).is_none() {
        super::check(&sha, body)?;
        scripts.insert(sha, body);
    }
    Ok(sha)
}

fn script(scripts: &mut Scripts, words: &[&[u8]]) -> Result<Reply, Refusal> {
    match words {
        [word, body] if is(word, "LOAD") => Ok(Reply::bulk(sha_hex(&load(scripts, body)?))),
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
