//! `redfence-next`: the same program with the made-up cluster version 2, for tests of mixed clusters. Never shipped: it is built
//! with the feature `next-version` alone.

#[path = "../main.rs"]
mod program;

fn main() -> std::process::ExitCode {
    program::main()
}
