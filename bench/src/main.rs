//! The same lock work against Redfence and what a user would pick instead, in one run.
//!
//! `redfence-bench SUBCOMMAND`: one file a subcommand. Each prints what it measured, one figure a line.

mod machine;
mod tier1;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("machine") => machine::run(),
        Some("tier1") => tier1::run(&arguments[1..]),
        Some("all") => {
            machine::run();
            tier1::run(&[]);
        }
        Some(_) | None => {
            eprintln!("usage: redfence-bench all | machine | tier1 [MODULE]");
            std::process::exit(2);
        }
    }
}
