//! `redfence drill`: a fire drill. Takes a lock away from its holder, takes it itself, and tries whether the old fence still writes.
//!
//! The probe is a command that writes to the resource under `REDFENCE_FENCE`, and succeeds where the resource took the write. It runs seven times
//! ([`PROBES`]): with newer and newer fences, which must be taken and which the resource remembers, and in between with the old one, which must be
//! refused. So a resource that is down, or fails now and then, does not pass for one that checks fences.

use super::access::{Access, AccessArgs, Client};
use super::child::{command_under, ended_by, Child, Signals};
use super::exit::{self, Failure};
use super::guard::{guarded, Tie};
use super::hold::{now_ms, Hold, Wish};
use super::output::{tell, Output, Style};
use super::reply::Reply;
use super::times::parse_ms;
use clap::Args;
use serde_json::json;
use std::ffi::OsString;
use std::io;
use std::process::Stdio;
use std::time::Duration;
use tokio::time::{sleep, timeout};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    /// With a fence of its own: a resource may take each fence once alone.
    New,
    Old,
}

/// In an order that a resource which fails every second, third, fourth or fifth write does not follow, wherever it begins.
const PROBES: [Probe; 7] =
    [Probe::New, Probe::New, Probe::Old, Probe::New, Probe::Old, Probe::Old, Probe::New];
/// With one hold: a new fence, and the old one at most twice.
const PROBES_OF_HOLD: u64 = 3;
/// Beyond those, for the rest of the drill.
const SPARE_MS: u64 = 30_000;
const KILL_AFTER_MS: u64 = 1_000;
/// How long a probe is waited for that was killed.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

pub const EXAMPLES: &str = "\
Example:
  redfence drill wallet:7 --probe 'PGOPTIONS=\"-c redfence.fence=$REDFENCE_FENCE\" psql -d shop -c \"UPDATE wallets SET seen = now() WHERE id = 7\"'

THE HOLDER LOSES ITS LOCK. Where nobody holds it, the drill plays the old holder, too. The probe is run by a shell, gets REDFENCE_FENCE and
REDFENCE_RESOURCE, and must exit with 0 only where the resource took its write.

Exit codes: 0: the resource refuses the old fence; 1: the old fence still writes, and a paused holder would corrupt the resource;
2: the drill could not be carried out; 75: somebody else got the lock before the drill.";

#[derive(Debug, Args)]
pub struct DrillArgs {
    /// The lock
    #[arg(value_name = "NAME")]
    pub name: String,

    /// A command that writes to the resource with the fence in REDFENCE_FENCE
    #[arg(long, value_name = "CMD")]
    pub probe: OsString,

    /// How long the probe may take
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_ms)]
    pub probe_timeout: u64,

    /// How long to wait for whoever stands in line before the drill
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_ms)]
    pub wait: u64,

    /// correctness or efficiency [default: what the cluster says of this name]
    #[arg(long, value_name = "TIER")]
    pub tier: Option<String>,

    /// The result as a JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub access: AccessArgs,
}

pub(crate) async fn run(args: &DrillArgs) -> Result<(), Failure> {
    // A drill that failed must not look like a resource that failed it.
    carry_out(args).await.map_err(|failure| match failure.code {
        // A signal's code is the signal's, as a shell gives it.
        exit::BUSY | 129.. => failure,
        _ => failure.with_code(exit::NOT_DONE),
    })?
}

/// The outer error is about the drill, the inner one is its result.
async fn carry_out(args: &DrillArgs) -> Result<Result<(), Failure>, Failure> {
    let mut output = Output::new();
    let mut signals = Signals::new()?;
    let (old_fence, holder) = take_away(args, &mut signals).await?;
    let hold = acquire(args, &mut signals).await?;
    let new_fence = hold.fence();
    narrate(
        args,
        &format!("{holder} lost the lock; its fence {old_fence} is behind the new one, {new_fence}"),
    );
    let outcome = probe_all(args, hold, old_fence, &mut signals).await?;
    let (is_safe, word, text) = match outcome {
        Outcome::Refused => (true, "refused", format!("the resource refuses the old fence {old_fence}")),
        Outcome::Written => (
            false,
            "written",
            format!(
                "THE OLD FENCE STILL WRITES: a holder that was paused and lost {} corrupts the resource. \
                 Let the resource compare fences (redfence fence-sql, FENCE.CALL)",
                args.name.escape_debug()
            ),
        ),
    };
    if args.json {
        output.json(&json!({
            "resource": args.name, "old_fence": old_fence, "new_fence": new_fence, "holder": holder, "old_fence_was": word,
        }))?;
    } else {
        let style = if is_safe { Style::Good } else { Style::Bad };
        let text = output.paint(&text, style);
        output.line(&text)?;
    }
    Ok(if is_safe { Ok(()) } else { Err(Failure::new(exit::FAILED, "")) })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Refused,
    Written,
}

fn narrate(args: &DrillArgs, line: &str) {
    if !args.json {
        tell(&format!("drill: {line}"));
    }
}

/// Answers the fence of the holder that lost its lock, and who it was.
async fn take_away(args: &DrillArgs, signals: &mut Signals) -> Result<(i64, String), Failure> {
    let mut client = Client::new(&args.access)?;
    let words = |command: &str| {
        let mut words = vec![command.to_owned(), args.name.clone()];
        words.extend(args.tier.iter().flat_map(|tier| ["TIER".to_owned(), tier.clone()]));
        words
    };
    let info = client.read(&words("LOCK.INFO")).await?;
    let shown = |field: &str| info.field(field).map_or_else(|| "-".to_owned(), Reply::shown);
    if shown("state") != "held" {
        narrate(args, "nobody holds the lock: the drill plays the old holder");
        let hold = acquire(args, signals).await?;
        let fence = hold.fence();
        client.change(&words("LOCK.FORCERELEASE")).await?;
        return Ok((fence, "the drill's own holder".to_owned()));
    }
    if matches!(shown("mode").as_str(), "shared" | "permits") {
        let line = format!(
            "{} is held in mode {}: fences order exclusive grants alone, so there is nothing to try",
            args.name.escape_debug(),
            shown("mode")
        );
        return Err(line.into());
    }
    let fence = info.field("fence").and_then(Reply::int).filter(|fence| *fence > 0);
    let fence = fence.ok_or_else(|| Failure::from("the lock has no fence".to_owned()))?;
    client.change(&words("LOCK.FORCERELEASE")).await?;
    Ok((fence, shown("owner")))
}

/// A signal ends the wait.
async fn acquire(args: &DrillArgs, signals: &mut Signals) -> Result<Hold, Failure> {
    let wish = Wish {
        name: args.name.clone(),
        // No renewals: it is held for as long as the probes may take.
        ttl_ms: args.probe_timeout.saturating_mul(PROBES_OF_HOLD).saturating_add(SPARE_MS),
        wait_ms: Some(args.wait),
        value: None,
        tier: args.tier.clone(),
    };
    let hold = tokio::select! {
        hold = Hold::acquire(Access::new(&args.access)?, wish) => hold?,
        signal = signals.next() => return Err(ended_by(signal)),
    };
    hold.ok_or_else(|| {
        let line = format!(
            "{}: somebody else got the lock and did not release it in time",
            args.name.escape_debug()
        );
        Failure::new(exit::BUSY, line)
    })
}

/// Gives the lock back however it ends.
async fn probe_all(
    args: &DrillArgs,
    hold: Hold,
    old_fence: i64,
    signals: &mut Signals,
) -> Result<Outcome, Failure> {
    let first_fence = hold.fence();
    let mut unused = Some(hold);
    let mut current: Option<Hold> = None;
    let outcome = async {
        for turn in PROBES {
            if turn == Probe::Old {
                if probe(args, old_fence, signals).await? {
                    return Ok(Outcome::Written);
                }
                continue;
            }
            if let Some(before) = current.take() {
                before.release().await;
            }
            let hold = match unused.take() {
                Some(hold) => hold,
                None => acquire(args, signals).await?,
            };
            let fence = current.insert(hold).fence();
            if !probe(args, fence, signals).await? {
                return Err(not_taken(fence, fence == first_fence));
            }
        }
        Ok(Outcome::Refused)
    };
    let outcome = outcome.await;
    if let Some(hold) = current {
        hold.release().await;
    }
    outcome
}

fn not_taken(fence: i64, is_first: bool) -> Failure {
    let line = match is_first {
        true => {
            format!("the probe fails with the new fence {fence}: it must succeed where the write is taken")
        }
        false => format!(
            "the probe fails with a newer fence, {fence}, too: the resource is down, fails now and then, or refuses everybody"
        ),
    };
    line.into()
}

/// Whether the write was taken. A signal ends the probe.
async fn probe(args: &DrillArgs, fence: i64, signals: &mut Signals) -> Result<bool, Failure> {
    let words = [OsString::from("sh"), OsString::from("-c"), args.probe.clone()];
    let mut command = command_under(&guarded(&words, Tie::Guard), &args.name, fence)?;
    // Our own standard output is the result.
    command.stdin(Stdio::null()).stdout(io::stderr());
    let mut child = Child::start(command, true)?;
    let failure = tokio::select! {
        code = child.wait() => {
            let code = code?;
            let _ = timeout(ENDS_WITHIN, child.end(now_ms() + KILL_AFTER_MS)).await;
            // Not found, not to be run, ended by a signal: that is no resource that refuses.
            return match code {
                0 => Ok(true),
                exit::CANNOT_EXECUTE.. => Err(format!("the probe could not be run, or was killed (exit code {code})").into()),
                _ => Ok(false),
            };
        }
        signal = signals.next() => ended_by(signal),
        () = sleep(Duration::from_millis(args.probe_timeout)) => {
            format!("the probe took longer than {} ms (--probe-timeout)", args.probe_timeout).into()
        }
    };
    // Where it cannot be killed, the drill has failed all the same.
    let _ = timeout(ENDS_WITHIN, child.end(now_ms() + KILL_AFTER_MS)).await;
    Err(failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A resource that looks at no fence, and takes the writes of some places in a period.
    #[test]
    fn no_resource_that_fails_periodically_follows_the_order_of_the_probes() {
        for period in 1..=5_usize {
            for taken in 0..1_u32 << period {
                let takes = |at: usize| taken >> (at % period) & 1 == 1;
                let follows = PROBES.iter().enumerate().all(|(at, turn)| takes(at) == (*turn == Probe::New));
                assert!(!follows, "period {period}, taken {taken:b}");
            }
        }
    }
}
