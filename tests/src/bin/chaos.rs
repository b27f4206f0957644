//! `chaos`: faults on a cluster of real processes, under load, with every answer checked. `chaos --help` lists its words.

use std::process::ExitCode;

use redfence_tests::chaos::{run, settings, tier1};
use redfence_tests::process::allow_open_files;

fn main() -> ExitCode {
    if std::env::args().any(|word| word == "--help") {
        println!("{}", settings::USAGE);
        return ExitCode::SUCCESS;
    }
    let settings = match settings::Settings::parse(std::env::args().skip(1)) {
        Ok(settings) => settings,
        Err(text) => {
            eprintln!("chaos: {text}");
            return ExitCode::from(2);
        }
    };
    if let Some(program) = &settings.program {
        std::env::set_var("REDFENCE_BIN", program);
    }
    allow_open_files(4_096);
    if settings.preset == "tier1" {
        return match tier1::run(&settings) {
            Ok(line) => {
                println!("{line}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                println!("FAILED: {error}\nrepeat: {}", settings.line());
                ExitCode::FAILURE
            }
        };
    }
    let report = run(&settings);
    report.print();
    if let Err(error) = report.write() {
        eprintln!("chaos: the report could not be written: {error}");
        return ExitCode::from(2);
    }
    match report.failures.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
