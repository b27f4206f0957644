//! What a fault run is told: how long, which seed, which clients, which faults.

use std::path::PathBuf;
use std::time::Duration;

use super::clients::ClientRole;
use super::faults::FaultKind;

pub const USAGE: &str = "\
chaos: faults on a cluster of real processes, under load, with every answer checked
  --duration S      seconds of faults [60]
  --seed N          draws faults and load [1]
  --nodes N         nodes of the cluster [3]
  --clients N       client tasks [96]
  --preset NAME     all, basic, mixed-fleet, power, tier1: which faults and which clients [all]
  --faults A,B,…    these kinds of faults alone; `--faults list` names them
  --pause-ms N      longest quiet time between two faults [1200]
  --out DIR         where report.json and timeline.svg go [target/chaos/<seed>]
  --bin FILE        the redfence program [target/release/redfence]
  --sabotage KIND   same-fence, two-holders, plain-twice: forges a few answers; the run must then fail";

/// A lie written into the history, to see the checker find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    SameFence,
    TwoHolders,
    PlainTwice,
}

/// How many of a thousand clients are of each kind; the rest are of `LOCK.*` alone.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    pub plain: u64,
    pub sessions: u64,
    pub multi: u64,
    pub values: u64,
    pub hostile: u64,
    pub kinds: u64,
}

impl Mix {
    pub fn roles(self, clients: usize) -> Vec<ClientRole> {
        let of = |share: u64| (clients as u64 * share / 1_000) as usize;
        let (plain, sessions, multi) = (of(self.plain), of(self.sessions), of(self.multi));
        let mut roles = vec![ClientRole::Plain; plain];
        roles.extend(vec![ClientRole::Sessions; sessions]);
        roles.extend(vec![ClientRole::Multi; multi]);
        roles.extend(vec![ClientRole::Values; of(self.values)]);
        roles.extend(vec![ClientRole::Hostile; of(self.hostile)]);
        roles.extend(vec![ClientRole::Kinds; of(self.kinds)]);
        roles.resize(clients, ClientRole::Locks);
        roles
    }
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub duration: Duration,
    pub seed: u64,
    pub nodes: usize,
    pub clients: usize,
    pub preset: String,
    pub mix: Mix,
    pub faults: Vec<FaultKind>,
    pub pause_ms_max: u64,
    pub hold_ms_max: u64,
    pub out: PathBuf,
    pub program: Option<PathBuf>,
    pub sabotage: Option<Sabotage>,
}

impl Settings {
    /// From the words after the program's name. An error is a line for the user.
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Settings, String> {
        let mut settings = Settings {
            duration: Duration::from_secs(60),
            seed: 1,
            nodes: 3,
            clients: 96,
            preset: "all".into(),
            mix: Mix { plain: 350, sessions: 100, multi: 150, values: 60, hostile: 25, kinds: 120 },
            faults: FaultKind::ALL.to_vec(),
            pause_ms_max: 1_200,
            hold_ms_max: 5,
            out: PathBuf::new(),
            program: None,
            sabotage: None,
        };
        let mut words = words;
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{word} needs a number, not {value}"));
            match word.as_str() {
                "--duration" => settings.duration = Duration::from_secs(number()?),
                "--seed" => settings.seed = number()?,
                "--nodes" => settings.nodes = number()?.clamp(1, 7) as usize,
                "--clients" => settings.clients = number()?.clamp(1, 2_000) as usize,
                "--preset" => settings.preset(&value)?,
                "--faults" => settings.faults = kinds(&value)?,
                "--pause-ms" => settings.pause_ms_max = number()?,
                "--out" => settings.out = PathBuf::from(&value),
                "--bin" => settings.program = Some(PathBuf::from(&value)),
                "--sabotage" => settings.sabotage = Some(sabotage(&value)?),
                _ => return Err(format!("unknown word {word}\n{USAGE}")),
            }
        }
        if settings.out.as_os_str().is_empty() {
            settings.out = PathBuf::from(format!("target/chaos/{}", settings.seed));
        }
        Ok(settings)
    }

    fn preset(&mut self, name: &str) -> Result<(), String> {
        self.preset = name.to_string();
        match name {
            "all" => {}
            "basic" => self.faults = FaultKind::BASIC.to_vec(),
            "power" => self.faults = vec![FaultKind::PowerCutOne, FaultKind::PowerCutAll],
            // A Redis with the module in place of the cluster: see tier1.rs.
            "tier1" => self.faults = Vec::new(),
            // Half unchanged Redlock clients, half LOCK.ACQUIRE, the leader killed every few seconds.
            "mixed-fleet" => {
                self.faults = vec![FaultKind::KillLeader];
                self.mix = Mix { plain: 500, sessions: 0, multi: 0, values: 0, hostile: 25, kinds: 0 };
                self.pause_ms_max = 2_500;
            }
            _ => return Err(format!("there is no preset {name}\n{USAGE}")),
        }
        Ok(())
    }

    /// The line that repeats this run.
    pub fn line(&self) -> String {
        let mut line = format!(
            "chaos --preset {} --seed {} --duration {}",
            self.preset,
            self.seed,
            self.duration.as_secs()
        );
        if self.nodes != 3 {
            line += &format!(" --nodes {}", self.nodes);
        }
        line
    }
}

fn kinds(text: &str) -> Result<Vec<FaultKind>, String> {
    let names = || FaultKind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
    text.split(',')
        .map(|name| {
            let kind = FaultKind::ALL.iter().find(|kind| kind.name() == name).copied();
            kind.ok_or_else(|| format!("there is no fault {name}; there are: {}", names()))
        })
        .collect()
}

fn sabotage(text: &str) -> Result<Sabotage, String> {
    match text {
        "same-fence" => Ok(Sabotage::SameFence),
        "two-holders" => Ok(Sabotage::TwoHolders),
        "plain-twice" => Ok(Sabotage::PlainTwice),
        _ => Err(format!("there is no sabotage {text}\n{USAGE}")),
    }
}
