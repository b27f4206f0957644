//! Two builds of Redfence side by side, three nodes each, in turns: what a change has bought.

use super::field::{on_cluster, pairs, Through};
use crate::options::Options;
use crate::report::{table, Findings};
use crate::servers::redfence::Cluster;
use crate::target::{add, alternate};
use crate::work::hot::{GivenUp, Hot};
use crate::work::pairs::Words;
use std::rc::Rc;
use std::time::Duration;

const CLIENTS: [usize; 3] = [1, 64, 256];
const HOT_CLIENTS: usize = 64;
const TURNS: (usize, Duration) = (8, Duration::from_millis(400));
const THIS: &str = "tier 2, this build";
const OTHER: &str = "tier 2, the other build";

pub(crate) fn run(options: &Options) -> Result<Findings, String> {
    let other = options.other.as_deref().ok_or("name the other redfence program with --other")?;
    let this = Cluster::start(&options.redfence()?, 3, &[]);
    let other = Cluster::start(other, 3, &[]);
    let mut findings = Findings::default();
    for clients in CLIENTS.into_iter().filter(|clients| options.clients.is_none_or(|only| only == *clients)) {
        for through in [Through::Leader, Through::All] {
            let mut targets = Vec::new();
            for (name, cluster) in [(OTHER, &other), (THIS, &this)] {
                add(&mut targets, name, on_cluster(name, cluster, through, pairs(Words::Lock, clients)));
            }
            let part = format!("pairs, {through:?}");
            let rows = alternate(&part, clients, targets, options, TURNS);
            print!("\n{part}\n{}", table(&rows));
            findings.rows.extend(rows);
            let ratio = findings.ratio(&part, clients, THIS, OTHER).unwrap_or(f64::NAN);
            findings.figure(&part, &format!("this build / the other, {clients} clients"), ratio, "x");
        }
    }
    let hot = || {
        let (name, given_up) = (Rc::new(crate::work::name(1_000_000)), GivenUp::default());
        (0..HOT_CLIENTS).map(|number| Hot::new(&name, &given_up, number)).collect::<Vec<_>>()
    };
    let mut targets = Vec::new();
    for (name, cluster) in [(OTHER, &other), (THIS, &this)] {
        add(&mut targets, name, on_cluster(name, cluster, Through::Leader, hot()));
    }
    let rows = alternate("hot", HOT_CLIENTS, targets, options, TURNS);
    print!("\nhot\n{}", table(&rows));
    findings.rows.extend(rows);
    let ratio = findings.ratio("hot", HOT_CLIENTS, THIS, OTHER).unwrap_or(f64::NAN);
    findings.figure("hot", "this build / the other, hand-overs", ratio, "x");
    Ok(findings)
}
