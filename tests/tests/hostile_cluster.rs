//! The hostile suite: scripts and commands that are meant to stop, split, stall or brick the cluster, against three real
//! nodes, with background clients beside them. A selection in every test run; all of it with `REDFENCE_HOSTILE=all`
//! (`make nightly`), a part with `REDFENCE_HOSTILE=part-of-a-name`.

use redfence_tests::hostile::campaign::Campaign;
use redfence_tests::hostile::{self, Attack};
use redfence_tests::process::allow_open_files;

/// Attempts of the whole suite, at least.
const ATTACKS_MIN: usize = 40;

fn chosen() -> Vec<Attack> {
    let all = hostile::all();
    match std::env::var("REDFENCE_HOSTILE") {
        Ok(word) if word == "all" => all,
        Ok(parts) => {
            all.into_iter().filter(|attack| parts.split(',').any(|part| attack.name.contains(part))).collect()
        }
        Err(_) => all.into_iter().filter(|attack| attack.quick).collect(),
    }
}

#[test]
fn nothing_a_client_sends_stops_splits_or_bricks_the_cluster() {
    allow_open_files(8_192);
    let mut campaign = Campaign::start();
    let mut failures = campaign.run(&chosen(), &mut |line| println!("{line}"));
    if !campaign.dead {
        failures.extend(campaign.replace_a_member().err());
        failures.extend(campaign.compare_disks().map(|line| println!("{line}")).err());
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn the_suite_has_attacks_of_every_class() {
    let all = hostile::all();
    assert!(all.len() >= ATTACKS_MIN, "only {} attacks", all.len());
    for item in [1, 2, 3, 4, 5, 12] {
        assert!(
            all.iter().any(|attack| attack.item == item && attack.quick),
            "nothing about #{item} in every run"
        );
    }
    let mut names: Vec<&str> = all.iter().map(|attack| attack.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all.len(), "two attacks have one name");
}
