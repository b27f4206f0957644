//! Two builds of Redfence side by side, three nodes each, in turns: what a change has cost or gained.

use super::systems::{addresses_of, fenced, on_cluster, pairs, set_nx, NodeSelection};
use crate::load_generator::Client;
use crate::options::Options;
use crate::report::{table, Findings};
use crate::servers::redfence::Cluster;
use crate::target::{add, alternate};
use crate::work::hot::{HotLockClient, LastRelease};
use crate::work::pairs::LockCommands;
use std::rc::Rc;
use std::time::Duration;

const CLIENTS: [usize; 3] = [1, 64, 256];
const HOT_CLIENTS: usize = 64;
const SCRIPT_CLIENTS: usize = 64;
/// Many and short: most of them fall between the moments at which the disk stands still.
const TURNS: (usize, Duration) = (20, Duration::from_millis(200));
const THIS: &str = "tier 2, this build";
const OTHER: &str = "tier 2, the other build";

/// Both clusters, and what has been measured on them.
struct Versus<'a> {
    options: &'a Options,
    this: Result<Cluster, String>,
    other: Result<Cluster, String>,
    findings: Findings,
}

pub(crate) fn run(options: &Options) -> Result<Findings, String> {
    let other = options.other.as_deref().ok_or("name the other redfence program with --other")?;
    let this = Cluster::start(&options.redfence()?, 3, &[]);
    let other = Cluster::start(other, 3, &[]);
    let mut versus = Versus { options, this, other, findings: Findings::default() };
    for clients in CLIENTS.into_iter().filter(|clients| options.clients.is_none_or(|only| only == *clients)) {
        for through in [NodeSelection::Leader, NodeSelection::All] {
            versus.compare(&format!("pairs, {through:?}"), clients, through, |_| {
                Ok(pairs(LockCommands::Lock, clients))
            });
        }
    }
    versus.compare("SET NX and compare-and-delete", SCRIPT_CLIENTS, NodeSelection::Leader, |cluster| {
        Ok(pairs(set_nx(addresses_of(cluster, NodeSelection::Leader)?[0])?, SCRIPT_CLIENTS))
    });
    versus.compare("fenced scripts", SCRIPT_CLIENTS, NodeSelection::Leader, |cluster| {
        Ok(pairs(fenced(addresses_of(cluster, NodeSelection::Leader)?[0])?, SCRIPT_CLIENTS))
    });
    versus.compare("hot", HOT_CLIENTS, NodeSelection::Leader, |_| {
        let (name, last_release) =
            (Rc::new(crate::work::name(crate::work::HOT_NAME)), LastRelease::default());
        Ok((0..HOT_CLIENTS).map(|number| HotLockClient::new(&name, &last_release, number)).collect())
    });
    Ok(versus.findings)
}

impl Versus<'_> {
    fn compare<C: Client + 'static>(
        &mut self,
        part: &str,
        clients: usize,
        nodes: NodeSelection,
        make: impl Fn(&Cluster) -> Result<Vec<C>, String>,
    ) {
        let mut targets = Vec::new();
        for (name, cluster) in [(OTHER, &self.other), (THIS, &self.this)] {
            let made = cluster.as_ref().map_err(Clone::clone).and_then(&make);
            let target = made.and_then(|clients| on_cluster(name, cluster, nodes, clients));
            add(&mut targets, name, target);
        }
        let rows = alternate(part, clients, targets, self.options, TURNS);
        print!("\n{part}\n{}", table(&rows));
        self.findings.rows.extend(rows);
        let ratio = self.findings.ratio(part, clients, THIS, OTHER).unwrap_or(f64::NAN);
        self.findings.figure(part, &format!("this build / the other, {clients} clients"), ratio, "x");
        let ratio = self.findings.median_ratio(part, clients, THIS, OTHER).unwrap_or(f64::NAN);
        let name = format!("the same by the median of the turns, {clients} clients");
        self.findings.figure(part, &name, ratio, "x");
    }
}
