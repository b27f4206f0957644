//! `redfence cluster replace`: one node takes the place of another.
//!
//! The new node is added first and the old one removed when the new one is a voter, so that the cluster is never smaller than it was. Only
//! where both have the same id, the usual case of a lost disk, the old one has to go first. Each step is asked of `LOCK.CLUSTER NODES` before
//! it is done: the program may be run again after it was interrupted.

use super::{change, lag, nodes, number, text};
use crate::cli::access::Client;
use crate::cli::exit::Failure;
use crate::cli::output::tell;
use crate::cli::reply::Reply;
use crate::cli::times::parse_ms;
use clap::Args;
use std::time::Duration;
use tokio::time::{sleep, Instant};

const LOOK_EVERY: Duration = Duration::from_millis(200);
const TELL_EVERY: Duration = Duration::from_secs(1);
/// A change whose outcome is not known is looked for this long.
const SETTLE_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub struct ReplaceArgs {
    /// The node that goes
    #[arg(value_name = "OLD")]
    pub old: u64,

    /// The node that takes its place. It runs, started with --join and an empty data directory
    #[arg(value_name = "NEW")]
    pub new: u64,

    /// The new node's address for other nodes
    #[arg(value_name = "ADDR")]
    pub new_addr: String,

    /// Give up where the new node makes no progress for this long
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_ms)]
    pub stalled_after: u64,
}

pub(super) async fn run(client: &mut Client, args: &ReplaceArgs) -> Result<(), Failure> {
    let members = nodes(client).await?;
    let old = find(&members, args.old);
    let new = find(&members, args.new);
    // Under one id, an earlier run may have ended between the removal and the addition.
    if old.is_none() && new.is_none() && args.old != args.new {
        return Err(format!("node {} is no member: nothing to replace", args.old).into());
    }
    // A node that an earlier run has added is where that run was told. Any other is a slip: OLD would go, and nobody take its place.
    if let Some(addr) = new.map(|node| text(node, "addr")).filter(|_| args.old != args.new) {
        if addr != args.new_addr {
            return Err(format!(
                "node {} is a member already, at {addr} and not at {}: nothing was done",
                args.new,
                args.new_addr.escape_debug()
            )
            .into());
        }
    }
    if args.old == args.new {
        // A learner is one that an earlier run has added.
        let is_added = new.is_some_and(|node| text(node, "role") == "learner");
        if !is_added {
            remove(client, args.old).await?;
        }
        add(client, args).await?;
        return until_voter(client, args).await;
    }
    if new.is_none() {
        add(client, args).await?;
    }
    until_voter(client, args).await?;
    remove(client, args.old).await
}

fn find(members: &[Reply], id: u64) -> Option<&Reply> {
    members.iter().find(|node| u64::try_from(number(node, "id")) == Ok(id))
}

async fn add(client: &mut Client, args: &ReplaceArgs) -> Result<(), Failure> {
    tell(&format!("adding node {} at {}", args.new, args.new_addr.escape_debug()));
    let words = ["ADD", &args.new.to_string(), &args.new_addr];
    settle(client, &words, args.new, true).await
}

async fn remove(client: &mut Client, id: u64) -> Result<(), Failure> {
    if find(&nodes(client).await?, id).is_none() {
        return Ok(());
    }
    tell(&format!("removing node {id}"));
    settle(client, &["REMOVE", &id.to_string()], id, false).await
}

/// Asks for a change; where its outcome is not known, looks whether it has come about.
async fn settle(client: &mut Client, words: &[&str], id: u64, is_member: bool) -> Result<(), Failure> {
    let Err(failure) = change(client, words).await else { return Ok(()) };
    // A refusal is certain.
    if ["ERR", "NOPERM", "NOAUTH"].iter().any(|code| failure.line.starts_with(code)) {
        return Err(failure);
    }
    let give_up = Instant::now() + SETTLE_WITHIN;
    while Instant::now() < give_up {
        // A node that was removed does not know it by itself.
        client.move_on();
        if find(&nodes(client).await?, id).is_some() == is_member {
            return Ok(());
        }
        sleep(LOOK_EVERY).await;
    }
    Err(failure)
}

async fn until_voter(client: &mut Client, args: &ReplaceArgs) -> Result<(), Failure> {
    let stalled_after = Duration::from_millis(args.stalled_after);
    let (mut best, mut moved, mut told) = (0, Instant::now(), None::<Instant>);
    loop {
        let members = nodes(client).await?;
        let Some(node) = find(&members, args.new) else {
            return Err(format!("node {} is no member any more: was it removed?", args.new).into());
        };
        let role = text(node, "role");
        if matches!(role.as_str(), "follower" | "leader") {
            tell(&format!("node {} is a voter", args.new));
            return Ok(());
        }
        let (matched, behind) = (number(node, "match"), lag(&members, node));
        let now = Instant::now();
        if matched > best {
            (best, moved) = (matched, now);
        }
        let is_up = number(node, "up") == 1;
        if told.is_none_or(|told| now - told >= TELL_EVERY) {
            told = Some(now);
            let state = if is_up { "up" } else { "not reached yet" };
            tell(&format!("node {}: {role}, {state}, at entry {matched}, {behind} entries behind", args.new));
        }
        if now - moved >= stalled_after {
            return Err(format!(
                "node {} has made no progress for {} s: is it running with --join, and does {} reach it? \
                 It stays a learner; run this again, or remove it with: redfence cluster remove {}",
                args.new,
                stalled_after.as_secs(),
                args.new_addr.escape_debug(),
                args.new
            )
            .into());
        }
        sleep(LOOK_EVERY).await;
    }
}
