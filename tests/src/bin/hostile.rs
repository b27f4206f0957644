//! `hostile`: every attack of the hostile suite against three nodes. `hostile --help` lists its words.

use std::process::ExitCode;

use redfence_tests::hostile::campaign::Campaign;
use redfence_tests::hostile::{self, Attack};
use redfence_tests::process::allow_open_files;

const USAGE: &str = "hostile [--each] [--only PART,PART] [--quick] [--bin PROGRAM] [--list]
  --each   a fresh cluster for each attack, with a restart after it: shows which of them bite an old program
  --only   attacks whose names have one of these parts
  --quick  those of every test run
  --bin    the program under test";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| words.iter().any(|given| given == word);
    let value = |word: &str| words.iter().skip_while(|given| *given != word).nth(1).cloned();
    if has("--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    if let Some(program) = value("--bin") {
        std::env::set_var("REDFENCE_BIN", program);
    }
    let only = value("--only").unwrap_or_default();
    let chosen: Vec<Attack> = hostile::all()
        .into_iter()
        .filter(|attack| only.split(',').any(|part| attack.name.contains(part)))
        .filter(|attack| attack.quick || !has("--quick"))
        .collect();
    if has("--list") {
        chosen.iter().for_each(|attack| println!("#{:<2} {}", attack.item, attack.name));
        println!("{} attacks", chosen.len());
        return ExitCode::SUCCESS;
    }
    allow_open_files(8_192);
    let bitten = if has("--each") { each(&chosen) } else { together(&chosen) };
    println!("{} attacks, {bitten} failures", chosen.len());
    match bitten {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// One after the other on one cluster, as the test does it.
fn together(attacks: &[Attack]) -> usize {
    let mut campaign = Campaign::start();
    let failures = campaign.run(attacks, &mut |line| println!("{line}"));
    failures.iter().for_each(|failure| println!("FAILED: {failure}"));
    failures.len()
}

fn each(attacks: &[Attack]) -> usize {
    let mut bitten = 0;
    for attack in attacks {
        let mut campaign = Campaign::start();
        let mut row = campaign.attack(*attack);
        if !campaign.dead {
            let after = campaign.restart_all().and_then(|()| campaign.compare_what_nodes_show());
            row.failures.extend(after.err());
        } else {
            row.failures.extend(campaign.restart_all().err().map(|error| format!("and {error}")));
        }
        bitten += usize::from(!row.failures.is_empty());
        println!("{}", row.line());
    }
    bitten
}
