//! Commands that only the upstream Redis knows, such as those of its modules: its own `COMMAND` table tells their categories and keys.

use crate::acl::check::{UpstreamCommand, UpstreamCommands};
use crate::acl::commands;
use crate::server::ServerState;
use crate::tier1::upstream::Upstream;
use redfence_core::keyspace::key_spec::KeySpec;
use redfence_core::reply::Reply;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A module may be loaded at any time.
const ASK_EVERY: Duration = Duration::from_secs(30);
const RETRY_AFTER: Duration = Duration::from_millis(500);
const COMMANDS_MAX: usize = 10_000;

/// Asks for ever.
pub async fn follow(server: Arc<ServerState>) {
    let Some(upstream) = server.upstream.clone() else { return };
    loop {
        let pause = match ask(&upstream).await {
            Ok(reply) => {
                server.access.set_upstream_commands(read(&reply));
                ASK_EVERY
            }
            Err(_) => RETRY_AFTER,
        };
        tokio::time::sleep(pause).await;
    }
}

async fn ask(upstream: &Upstream) -> io::Result<Reply> {
    let mut client = upstream.take_client().await?;
    let reply = client.call_ok(&["COMMAND"]).await?;
    upstream.return_client(client);
    Ok(reply)
}

/// Only those no table of ours has.
fn read(reply: &Reply) -> UpstreamCommands {
    let Reply::Array(rows) = reply else { return UpstreamCommands::default() };
    let rows = rows.iter().take(COMMANDS_MAX).filter_map(row);
    rows.filter(|(name, _)| commands::named(name).is_none()).collect()
}

fn row(reply: &Reply) -> Option<(Box<[u8]>, UpstreamCommand)> {
    let Reply::Array(fields) = reply else { return None };
    let [name, _arity, flags, first, last, step, categories, ..] = fields.as_slice() else { return None };
    let name = word(name)?.to_ascii_lowercase().into_boxed_slice();
    let words = |reply: &Reply| -> Vec<Vec<u8>> {
        let Reply::Array(items) = reply else { return Vec::new() };
        items.iter().filter_map(|item| word(item).map(<[u8]>::to_vec)).collect()
    };
    let categories = words(categories)
        .iter()
        .fold(0, |bits, name| bits | name.strip_prefix(b"@").and_then(commands::category).unwrap_or(0));
    let is_movable = words(flags).iter().any(|flag| flag == b"movablekeys");
    let keys = match (first, last, step) {
        _ if is_movable => None,
        (Reply::Int(0), _, _) => Some(KeySpec::None),
        (Reply::Int(first), Reply::Int(last), Reply::Int(step)) => Some(KeySpec::Span {
            first: usize::try_from(*first).ok()?,
            last: i32::try_from(*last).ok()?,
            step: usize::try_from(*step).ok().filter(|step| *step > 0)?,
        }),
        _ => None,
    };
    Some((name, UpstreamCommand { categories, keys }))
}

#[allow(clippy::wildcard_enum_match_arm, reason = "a name is one of these two, or it is none")]
fn word(reply: &Reply) -> Option<&[u8]> {
    match reply {
        Reply::Bulk(text) => Some(text),
        Reply::Status(text) => Some(text.as_bytes()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redfence_core::keyspace::acl_table::{READ, SLOW};

    #[test]
    fn a_row_of_command_is_read() {
        let status = |text: &'static str| Reply::Status(text.into());
        let make = |name: &str, flag: &'static str| {
            Reply::Array(vec![
                Reply::bulk(name),
                Reply::Int(-2),
                Reply::Array(vec![status(flag)]),
                Reply::Int(1),
                Reply::Int(-1),
                Reply::Int(2),
                Reply::Array(vec![status("@read"), status("@slow"), status("@of_a_module")]),
            ])
        };
        let rows = Reply::Array(vec![
            make("JSON.MSET", "readonly"),
            make("odd", "movablekeys"),
            make("get", "readonly"),
            Reply::Nil,
        ]);
        let known = read(&rows);
        assert_eq!(known.len(), 2);
        let keys = Some(KeySpec::Span { first: 1, last: -1, step: 2 });
        assert_eq!(known[&b"json.mset"[..]], UpstreamCommand { categories: READ | SLOW, keys });
        assert_eq!(known[&b"odd"[..]].keys, None);
    }
}
