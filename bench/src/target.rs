//! What is measured side by side: a load against servers, asked for one turn at a time.
//!
//! Turns alternate between the targets, so that all see the same conditions on a shared machine. A target that fails is left out, aloud.

use crate::etcd::EtcdLoad;
use crate::load_generator::{Client, LoadGenerator, Tally};
use crate::options::Options;
use crate::report::Row;
use crate::servers::{cpu_of, cpu_of_self};
use std::time::Duration;

trait Load {
    fn turn(&mut self, length: Duration) -> Result<Tally, String>;
}

impl<C: Client> Load for LoadGenerator<C> {
    fn turn(&mut self, length: Duration) -> Result<Tally, String> {
        LoadGenerator::turn(self, length)
    }
}

impl Load for EtcdLoad {
    fn turn(&mut self, length: Duration) -> Result<Tally, String> {
        EtcdLoad::turn(self, length)
    }
}

pub(crate) struct Target {
    pub(crate) name: String,
    load: Box<dyn Load>,
    /// The servers' processes, whose time is counted.
    process_ids: Vec<u32>,
    tally: Tally,
    turns_per_s: Vec<f64>,
    server_cpu: Duration,
    load_cpu: Duration,
    failure: Option<String>,
}

impl Target {
    pub(crate) fn of_generator<C: Client + 'static>(
        name: &str,
        generator: LoadGenerator<C>,
        process_ids: Vec<u32>,
    ) -> Target {
        Target::new(name, Box::new(generator), process_ids)
    }

    pub(crate) fn of_etcd(name: &str, load: EtcdLoad, process_ids: Vec<u32>) -> Target {
        Target::new(name, Box::new(load), process_ids)
    }

    fn new(name: &str, load: Box<dyn Load>, process_ids: Vec<u32>) -> Target {
        Target {
            name: name.to_string(),
            load,
            process_ids,
            tally: Tally::default(),
            turns_per_s: Vec::new(),
            server_cpu: Duration::ZERO,
            load_cpu: Duration::ZERO,
            failure: None,
        }
    }

    fn servers_cpu(&self) -> Duration {
        self.process_ids.iter().map(|id| cpu_of(*id)).sum()
    }

    fn turn(&mut self, length: Duration, counts: bool) {
        let before = (self.servers_cpu(), cpu_of_self());
        match self.load.turn(length) {
            Ok(tally) if counts => {
                self.tally.absorb(&tally);
                self.turns_per_s.push(tally.per_s());
                self.server_cpu += self.servers_cpu().saturating_sub(before.0);
                self.load_cpu += cpu_of_self().saturating_sub(before.1);
            }
            Ok(_) => {}
            Err(reason) => {
                eprintln!("  {} is left out: {reason}", self.name);
                self.failure = Some(reason);
            }
        }
    }

    fn row(&self, part: &str, clients: usize) -> Row {
        let each_us = |cpu: Duration| cpu.as_secs_f64() * 1e6 / self.tally.done.max(1) as f64;
        Row {
            part: part.to_string(),
            target: self.name.clone(),
            clients,
            per_s: self.tally.per_s(),
            median_per_s: median(&self.turns_per_s),
            p50_us: self.tally.latencies.quantile_us(0.5),
            p99_us: self.tally.latencies.quantile_us(0.99),
            longest_us: self.tally.latencies.longest_us(),
            second_p50_us: self.tally.second.quantile_us(0.5),
            second_p99_us: self.tally.second.quantile_us(0.99),
            server_cpu_us: each_us(self.server_cpu),
            load_cpu_us: each_us(self.load_cpu),
            counted: self.tally.done,
            left_out: self.failure.clone(),
        }
    }
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        count if count.is_multiple_of(2) => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    }
}

/// Collects targets; one that cannot be had is said aloud and left out.
pub(crate) fn add(targets: &mut Vec<Target>, name: &str, made: Result<Target, String>) {
    match made {
        Ok(target) => targets.push(target),
        Err(reason) => eprintln!("  {name} is left out: {reason}"),
    }
}

/// Every target in turn, `turns` times, after one turn each that does not count.
///
/// Every other turn goes through them backwards: whoever comes second in a turn is slower, by 5 % on a small machine.
pub(crate) fn alternate(
    part: &str,
    clients: usize,
    mut targets: Vec<Target>,
    options: &Options,
    (turns, length): (usize, Duration),
) -> Vec<Row> {
    let length = options.turn_length(length);
    let mut order: Vec<usize> = (0..targets.len()).collect();
    for turn in 0..=options.turns(turns) {
        for at in order.iter().copied() {
            let target = &mut targets[at];
            if target.failure.is_some() {
                continue;
            }
            crate::report::progress(&format!(
                "{part}, {clients} clients: turn {turn} of {}, {}",
                options.turns(turns),
                target.name
            ));
            target.turn(length, turn > 0);
        }
        order.reverse();
    }
    crate::report::progress("");
    targets.iter().map(|target| target.row(part, clients)).collect()
}
