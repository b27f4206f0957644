//! `redfence locks`: who holds what, and who waits for it.
//!
//! Several questions to a running cluster, so no snapshot of it: a lock may end between two of them.

use super::access::{AccessArgs, Client};
use super::exit::Failure;
use super::output::{shown_ms, tell, Cell, Output, Style, Table};
use super::reply::{key_of, Reply};
use clap::Args;
use serde_json::{json, Value};
use std::collections::BTreeSet;

const SCAN_COUNT: &str = "1000";
/// Questions that are sent at once.
const BATCH: usize = 100;
/// Of one lock in the table. JSON has what `LOCK.QUEUE` answers.
const WAITERS_SHOWN: usize = 20;

pub const EXAMPLES: &str = "\
Examples:
  redfence locks
  redfence locks 'wallet:*' --waiting
  redfence locks --json | jq -r 'select(.waiters > 0) | .resource'

A row for each holder, and below it one for each of the first 20 who wait, first in line first. --json prints one object for each lock:
the fields of LOCK.INFO, `queue`, and `key`: the name, percent-encoded, which tells names apart that are no UTF-8.";

#[derive(Debug, Args)]
pub struct LocksArgs {
    /// Only names that match this glob
    #[arg(value_name = "GLOB", default_value = "*")]
    pub glob: String,

    /// Only locks that somebody waits for
    #[arg(long)]
    pub waiting: bool,

    /// correctness or efficiency [default: the default tier of the node]
    #[arg(long, value_name = "TIER")]
    pub tier: Option<String>,

    /// At most this many locks
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,

    /// One JSON object for each lock, a line each
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub access: AccessArgs,
}

/// A lock that is held, as `LOCK.INFO` and `LOCK.QUEUE` show it.
struct Lock {
    info: Reply,
    queue: Vec<Reply>,
}

/// How many locks could not be shown.
#[derive(Default)]
struct Hidden {
    no_right: usize,
    other_route: usize,
}

pub(crate) async fn run(args: &LocksArgs) -> Result<(), Failure> {
    let mut client = Client::new(&args.access)?;
    let (names, mut is_cut) = names(&mut client, args).await?;
    let mut output = Output::new();
    let mut table = Table::new(&["RESOURCE", "STATE", "MODE", "OWNER", "FENCE", "TTL", "FOR", "VALUE"]);
    let mut hidden = Hidden::default();
    let mut shown = 0;
    'all: for batch in names.chunks(BATCH) {
        for lock in locks(&mut client, batch, args, &mut hidden).await? {
            if shown == args.limit {
                is_cut = true;
                break 'all;
            }
            shown += 1;
            if args.json {
                output.json(&lock.to_json())?;
            } else {
                lock.add_rows(&mut table);
            }
        }
    }
    if !args.json && !table.is_empty() {
        output.table(&table)?;
    } else if !args.json {
        let elsewhere = if args.tier.is_none() { " in the default tier of this node" } else { "" };
        tell(&format!("no lock is held that matches {}{elsewhere}", args.glob.escape_debug()));
    }
    if hidden.no_right > 0 {
        tell(&format!("{} locks are not shown: this user has no right to read their keys", hidden.no_right));
    }
    if hidden.other_route > 0 {
        tell(&format!(
            "{} locks are not shown: their names are routed to the other tier now",
            hidden.other_route
        ));
    }
    if is_cut {
        let limit = args.limit;
        tell(&format!("only the first {limit} locks are shown: give a narrower glob, or a larger --limit"));
    }
    Ok(())
}

/// The names of held locks, sorted, and whether there were more of them.
async fn names(client: &mut Client, args: &LocksArgs) -> Result<(Vec<Vec<u8>>, bool), Failure> {
    // Which of them are waited for is not known yet.
    let limit = if args.waiting { usize::MAX } else { args.limit as usize };
    let mut names = BTreeSet::new();
    let mut cursor = b"0".to_vec();
    loop {
        let mut words: Vec<&[u8]> = vec![b"LOCK.SCAN", &cursor, b"MATCH", args.glob.as_bytes()];
        words.extend([b"COUNT".as_slice(), SCAN_COUNT.as_bytes()]);
        if let Some(tier) = &args.tier {
            words.extend([b"TIER".as_slice(), tier.as_bytes()]);
        }
        let reply = client.read(&words).await?;
        let [next, found] = reply.items() else { return Err(strange_answer(client)) };
        names.extend(found.items().iter().filter_map(|name| name.bytes().map(<[u8]>::to_vec)));
        cursor = next.bytes().ok_or_else(|| strange_answer(client))?.to_vec();
        if cursor == b"0" || names.len() > limit {
            let is_cut = names.len() > limit;
            return Ok((names.into_iter().take(limit).collect(), is_cut));
        }
    }
}

/// `hidden` counts what cannot be shown.
async fn locks(
    client: &mut Client,
    names: &[Vec<u8>],
    args: &LocksArgs,
    hidden: &mut Hidden,
) -> Result<Vec<Lock>, Failure> {
    let ask = |command: &str, name: &[u8]| {
        let mut words = vec![command.as_bytes().to_vec(), name.to_vec()];
        if let Some(tier) = &args.tier {
            words.extend([b"TIER".to_vec(), tier.as_bytes().to_vec()]);
        }
        words
    };
    let questions: Vec<_> = names.iter().map(|name| ask("LOCK.INFO", name)).collect();
    let mut locks = Vec::new();
    for info in client.read_all(&questions).await? {
        if let Reply::Error(line) = info {
            // Names of other users' locks are known to all, but not who holds them.
            match line.split(' ').next() {
                Some("NOPERM") => hidden.no_right += 1,
                Some("TIER") => hidden.other_route += 1,
                Some(_) | None => return Err(line.into()),
            }
            continue;
        }
        let is_held = info.field("state").and_then(Reply::bytes) == Some(b"held");
        if is_held && (waiters(&info) > 0 || !args.waiting) {
            locks.push(Lock { info, queue: Vec::new() });
        }
    }
    let mut waited_for: Vec<&mut Lock> = locks.iter_mut().filter(|lock| waiters(&lock.info) > 0).collect();
    let resource =
        |lock: &Lock| lock.info.field("resource").and_then(Reply::bytes).unwrap_or_default().to_vec();
    let questions: Vec<_> = waited_for.iter().map(|lock| ask("LOCK.QUEUE", &resource(lock))).collect();
    for (lock, queue) in waited_for.iter_mut().zip(client.read_all(&questions).await?) {
        lock.queue = queue.items().to_vec();
    }
    Ok(locks)
}

fn waiters(info: &Reply) -> i64 {
    info.field("waiters").and_then(Reply::int).unwrap_or(0)
}

fn strange_answer(client: &Client) -> Failure {
    format!("{}: what answers is no Redfence node", client.address()).into()
}

impl Lock {
    fn to_json(&self) -> Value {
        let mut lock = self.info.to_json();
        let queue: Value = self
            .queue
            .iter()
            .map(|waiter| match waiter.items() {
                [owner, waited_ms] => json!({"owner": owner.to_json(), "waited_ms": waited_ms.to_json()}),
                _ => Value::Null,
            })
            .collect();
        if let Value::Object(fields) = &mut lock {
            fields.insert("queue".to_owned(), queue);
            let name = self.info.field("resource").and_then(Reply::bytes).unwrap_or_default();
            fields.insert("key".to_owned(), key_of(name).into());
        }
        lock
    }

    fn add_rows(&self, table: &mut Table) {
        let shown = |reply: Option<&Reply>| reply.map_or_else(|| "-".to_owned(), Reply::shown);
        let time =
            |reply: Option<&Reply>| reply.and_then(Reply::int).map_or_else(|| "-".to_owned(), shown_ms);
        let resource = shown(self.info.field("resource"));
        // Tier 1 shows one holder, in the fields of the lock itself.
        let one = std::slice::from_ref(&self.info);
        let holders = self.info.field("holders").map(Reply::items).filter(|holders| !holders.is_empty());
        for holder in holders.unwrap_or(one) {
            let permits = holder.field("permits").and_then(Reply::int);
            let mode = match permits {
                Some(permits) => format!("{permits} of {}", shown(self.info.field("max"))),
                None => shown(self.info.field("mode")),
            };
            table.row(vec![
                Cell::new(&resource),
                Cell::styled("held", Style::Good),
                Cell::new(mode),
                Cell::new(shown(holder.field("owner"))),
                Cell::new(shown(holder.field("fence"))),
                Cell::new(time(holder.field("ttl"))),
                Cell::new(time(holder.field("held_ms"))),
                Cell::new(shown(holder.field("value"))),
            ]);
        }
        for waiter in self.queue.iter().take(WAITERS_SHOWN) {
            let row = [resource.clone(), "waits".to_owned(), "-".to_owned(), shown(waiter.items().first())];
            let cells = row.into_iter().chain([
                "-".to_owned(),
                "-".to_owned(),
                time(waiter.items().get(1)),
                "-".to_owned(),
            ]);
            table.row(cells.map(|text| Cell::styled(text, Style::Faint)).collect());
        }
        if let Some(more @ 1..) = self.queue.len().checked_sub(WAITERS_SHOWN) {
            let cells = [resource, format!("and {more} more wait")];
            table.row(cells.map(|text| Cell::styled(text, Style::Faint)).into());
        }
    }
}
