//! Commands that only the upstream Redis knows, such as those of its modules: its own `COMMAND` table
//! ([`crate::tier1::command_table`]) tells their categories and keys.

use crate::acl::commands::{self, UpstreamCommand, UpstreamCommands};
use crate::server::ServerState;
use crate::tier1::command_table::{CommandRow, CommandTable};
use std::sync::Arc;
use std::time::Duration;

/// How often it is looked at whether the table was read again.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const COMMANDS_MAX: usize = 10_000;

/// Follows the table of the upstream, for ever. While it is missing the one before holds.
pub async fn follow(server: Arc<ServerState>) {
    let Some(upstream) = server.upstream.clone() else { return };
    let mut seen: Option<Arc<CommandTable>> = None;
    loop {
        let table = upstream.command_table();
        if !table.is_missing() && !seen.as_ref().is_some_and(|seen| Arc::ptr_eq(seen, &table)) {
            server.access.set_upstream_commands(unknown_here(&table));
            seen = Some(table);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Only those no table of ours has.
fn unknown_here(table: &CommandTable) -> UpstreamCommands {
    let rows = table.rows().filter(|row| commands::named(row.name).is_none()).take(COMMANDS_MAX);
    rows.map(|row| (row.name.into(), command(&row))).collect()
}

/// Categories of its modules that we do not have count for nothing.
fn command(row: &CommandRow<'_>) -> UpstreamCommand {
    let bits = row.categories.iter().filter_map(|name| commands::category(name));
    UpstreamCommand { categories: bits.fold(0, |all, bit| all | bit), keys: row.keys }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redfence_core::keyspace::acl_table::{READ, SLOW};
    use redfence_core::keyspace::key_spec::KeySpec;

    #[test]
    fn a_row_of_command_is_read() {
        let keys = Some(KeySpec::Span { first: 1, last: -1, step: 2 });
        let categories: Vec<Box<[u8]>> =
            [&b"read"[..], b"slow", b"of_a_module"].iter().map(|name| Box::from(*name)).collect();
        let row = CommandRow { name: b"json.mset", keys, categories: &categories };
        assert_eq!(command(&row), UpstreamCommand { categories: READ | SLOW, keys });
    }
}
