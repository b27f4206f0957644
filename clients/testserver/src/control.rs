//! `TEST.*`: the clock and the faults, as `clients/TESTSERVER.md` lists them.

use crate::state::State;
use crate::{Fault, Partition};
use redfence_core::reply::{Refusal, Reply};

/// Faults one command may set.
const FAULTS_MAX: u64 = 10_000;

impl State {
    /// `command` is without its prefix, in upper case.
    pub(crate) fn control(&mut self, id: u64, command: &str, args: &[Vec<u8>]) -> Reply {
        self.tick();
        let words: Vec<String> =
            args.iter().map(|word| String::from_utf8_lossy(word).to_ascii_uppercase()).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match (command, words.as_slice()) {
            ("ADVANCE", [ms]) => match ms.parse() {
                Ok(ms) => {
                    self.advance(ms);
                    count(self.now_ms())
                }
                Err(_) => refuse("TEST.ADVANCE needs whole milliseconds"),
            },
            ("TIME", []) => count(self.now_ms()),
            ("LOSE", [_]) => Reply::Int(i64::from(self.lose(&args[0]))),
            ("PARTITION", ["ON"]) => self.partitioned(Partition::NoQuorum),
            ("PARTITION", ["SILENT"]) => self.partitioned(Partition::Silent),
            ("PARTITION", ["OFF"]) => self.partitioned(Partition::Off),
            ("FAIL", [kind]) => self.failing(kind, "1"),
            ("FAIL", [kind, times]) => self.failing(kind, times),
            ("DISCONNECT", []) => count(self.disconnect_all_but(Some(id)) as u64),
            ("RESET", []) => {
                self.reset(Some(id));
                Reply::OK
            }
            ("STATS", []) => {
                let stats = self.stats();
                Reply::Map(vec![
                    (Reply::Text("connections"), count(stats.connections as u64)),
                    (Reply::Text("locks"), count(stats.locks)),
                    (Reply::Text("waiters"), count(stats.waiters)),
                    (Reply::Text("sessions"), count(stats.sessions)),
                    (Reply::Text("subscriptions"), count(stats.subscriptions as u64)),
                    (Reply::Text("commands"), count(stats.commands)),
                ])
            }
            ("CALLS", [name]) => count(self.calls(name)),
            _ => refuse(
                "expected TEST.ADVANCE ms | TIME | LOSE resource | PARTITION ON|SILENT|OFF | \
                 FAIL UNAVAILABLE|INDETERMINATE|LOSTREPLY [n] | DISCONNECT | RESET | STATS | CALLS command",
            ),
        }
    }

    fn partitioned(&mut self, partition: Partition) -> Reply {
        self.set_partition(partition);
        Reply::OK
    }

    fn failing(&mut self, kind: &str, times: &str) -> Reply {
        let fault = match kind {
            "UNAVAILABLE" => Fault::Unavailable,
            "INDETERMINATE" => Fault::Indeterminate,
            "LOSTREPLY" => Fault::LostReply,
            _ => return refuse("TEST.FAIL knows UNAVAILABLE, INDETERMINATE and LOSTREPLY"),
        };
        match times.parse::<u64>() {
            Ok(times) if times <= FAULTS_MAX => {
                self.add_faults(fault, times as usize);
                Reply::OK
            }
            Ok(_) | Err(_) => refuse("TEST.FAIL takes a number up to 10000"),
        }
    }
}

fn count(value: u64) -> Reply {
    Reply::Int(i64::try_from(value).unwrap_or(i64::MAX))
}

fn refuse(text: &str) -> Reply {
    Refusal::new(format!("ERR {text}")).into()
}
