//! `redfence watch`: the events of locks as they happen.
//!
//! Delivery is at most once, as of every subscription: what happens while the connection is lost is missed, and that is said.

use super::access::{Access, AccessArgs, ConnectError};
use super::connection::{Connection, GREETING_WITHIN};
use super::exit::{self, Failure};
use super::output::{json_line, tell, Output, Style};
use super::reply::{shown_bytes, Reply};
use crate::{calendar, clock};
use clap::Args;
use serde_json::Value;
use std::io;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const CHANNELS: &str = "__lock__:";
/// A connection that is silent for this long is asked whether it lives.
const PING_EVERY: Duration = Duration::from_secs(5);
const RECONNECT_EVERY: Duration = Duration::from_millis(500);

pub const EXAMPLES: &str = "\
Examples:
  redfence watch
  redfence watch 'wallet:*' --json
  redfence watch deploy --count 1        ends after the first event

For dashboards and logs, not for control flow: what happens while the connection is lost is missed.";

#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Only names that match this glob
    #[arg(value_name = "GLOB", default_value = "*")]
    pub glob: String,

    /// End after this many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// The events as they come: one JSON object a line
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub access: AccessArgs,
}

pub(crate) async fn run(args: &WatchArgs) -> Result<(), Failure> {
    if args.access.db.is_some_and(|db| db > 0) {
        return Err(Failure::new(
            exit::NOT_DONE,
            "events of all databases come together and do not name theirs: --db is of no use here",
        ));
    }
    let mut access = Access::new(&args.access)?;
    let mut watch = Watch { output: Output::new(), is_json: args.json, left: args.count.unwrap_or(u64::MAX) };
    let mut is_first = true;
    loop {
        match subscribed(&mut access, &args.glob).await {
            Ok(mut connection) => {
                // A program that reads our output may wait for this.
                tell(&format!("watching {} at {}", args.glob.escape_debug(), access.address()));
                is_first = false;
                let lost = watch.follow(&mut connection).await?;
                let Some(error) = lost else { return Ok(()) };
                let address = access.address();
                tell(&format!("{address}: {error}; events may be missed until another node answers"));
                access.advance();
            }
            Err(ConnectError::Unreachable(_)) if !is_first => {}
            Err(error @ (ConnectError::Unreachable(_) | ConnectError::Refused(_))) => {
                return Err(error.into())
            }
        }
        sleep(RECONNECT_EVERY).await;
    }
}

async fn subscribed(access: &mut Access, glob: &str) -> Result<Connection, ConnectError> {
    let mut connection = access.connect().await?;
    let pattern = format!("{CHANNELS}{glob}");
    match connection.send_for_push(&["PSUBSCRIBE", &pattern]).await {
        Ok(Reply::Error(line)) => Err(ConnectError::Refused(line)),
        Ok(_) => Ok(connection),
        Err(error) => Err(ConnectError::Unreachable(format!("{}: {error}", access.address()))),
    }
}

struct Watch {
    output: Output,
    is_json: bool,
    /// Events still to print.
    left: u64,
}

impl Watch {
    /// Prints events until all are printed (`None`), or until the connection is lost.
    async fn follow(&mut self, connection: &mut Connection) -> Result<Option<io::Error>, Failure> {
        while self.left > 0 && !self.output.is_closed() {
            let push = match timeout(PING_EVERY, connection.push()).await {
                Ok(Ok(push)) => push,
                Ok(Err(error)) => return Ok(Some(error)),
                Err(_) => match connection.ask_within(&["PING"], GREETING_WITHIN).await {
                    Ok(_) => continue,
                    Err(error) => return Ok(Some(error)),
                },
            };
            if let [kind, _, _, Reply::Text(event)] = &push[..] {
                if kind.bytes() == Some(b"pmessage") && self.print(event)? {
                    self.left -= 1;
                }
            }
        }
        Ok(None)
    }

    /// Anybody who may publish at an upstream Redis can send a message there that is no event: `false`, and nothing is printed.
    fn print(&mut self, event: &[u8]) -> Result<bool, Failure> {
        let text = String::from_utf8_lossy(event);
        let Some(event) = serde_json::from_str(&text).ok().filter(Value::is_object) else {
            tell("a message on a channel of events is no event, and was passed over");
            return Ok(false);
        };
        let line = if self.is_json { json_line(&text) } else { self.line(&event) };
        self.output.line(&line)?;
        Ok(true)
    }

    fn line(&self, event: &Value) -> String {
        let text = |name: &str| match &event[name] {
            Value::String(text) => shown_bytes(text.as_bytes()),
            Value::Null => "-".to_owned(),
            other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                other.to_string()
            }
        };
        let style = match event["event"].as_str() {
            Some("acquired") => Style::Good,
            Some("expired" | "session_ended") => Style::Bad,
            Some("renewed" | "queued" | "abandoned") => Style::Faint,
            _ => Style::Plain,
        };
        let name = self.output.paint(&format!("{:<13}", text("event")), style);
        let mut line = format!(
            "{}  {name}  {}  fence {}  owner {}",
            calendar::utc_ms(clock::wall_us() / 1_000),
            text("resource"),
            text("fence"),
            text("owner")
        );
        for name in ["mode", "cause", "value"] {
            if !event[name].is_null() {
                line.push_str(&format!("  {name} {}", text(name)));
            }
        }
        line
    }
}
