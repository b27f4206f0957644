//! The conformance suite: the contract written down once as cases, run against every backend in RESP2 and RESP3.
//!
//! A test is named `<backend>_<protocol>::<topic>::<case>`, e.g. `module_resp2::acquire_release::second_is_refused`,
//! so a filter picks a backend, a protocol, a topic or a case. Each backend is started once, at its first case, and
//! stopped at the end. How to run and repeat: `tests/README.md`.

mod topic;

mod acquire_release;
mod cluster_info;
mod command_info;
mod deadlock;
mod events;
mod expiry;
mod fence_commands;
mod fences;
mod forcerelease;
mod info_queue_scan;
mod kinds;
mod limits_and_errors;
mod losses;
mod multi;
mod owner_retry;
mod plain_clients;
mod reasons;
mod renew;
mod routes;
mod sessions;
mod tiers;
mod waiting;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use libtest_mimic::{Arguments, Failed, Trial};
use redfence_tests::backend::{Backend, Context};
use redfence_tests::backends;
use redfence_tests::resp::Protocol;
use topic::{Case, Topic};

/// Cases mostly wait for time to pass, so many run side by side whatever the number of cores.
const THREADS_DEFAULT: usize = 32;

const TOPICS: &[Topic] = &[
    ("acquire_release", acquire_release::CASES),
    ("renew", renew::CASES),
    ("reasons", reasons::CASES),
    ("owner_retry", owner_retry::CASES),
    ("waiting", waiting::CASES),
    ("expiry", expiry::CASES),
    ("multi", multi::CASES),
    ("info_queue_scan", info_queue_scan::CASES),
    ("fences", fences::CASES),
    ("limits_and_errors", limits_and_errors::CASES),
    ("tiers", tiers::CASES),
    ("sessions", sessions::CASES),
    ("deadlock", deadlock::CASES),
    ("kinds", kinds::CASES),
    ("forcerelease", forcerelease::CASES),
    ("events", events::CASES),
    ("losses", losses::CASES),
    ("fence_commands", fence_commands::CASES),
    ("command_info", command_info::CASES),
    ("plain_clients", plain_clients::CASES),
    ("routes", routes::CASES),
    ("cluster_info", cluster_info::CASES),
];

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS_DEFAULT);
    let backends = backends::all();
    let trials = backends.iter().flat_map(trials_of).collect();
    // The report of a failure carries its panic message; the default hook would print it a second time, unordered.
    std::panic::set_hook(Box::new(|_| {}));
    let conclusion = libtest_mimic::run(&arguments, trials);
    // Servers are stopped by the backends' drop, which `exit` would skip.
    drop(backends);
    conclusion.exit();
}

fn trials_of(backend: &Arc<dyn Backend>) -> Vec<Trial> {
    let missing = backend.missing();
    let mut trials = Vec::new();
    for protocol in Protocol::BOTH {
        for (topic, cases) in TOPICS {
            for case in cases.iter().filter(|case| backend.abilities().cover(case.needs)) {
                let name = format!("{}_{}::{topic}::{}", backend.name(), protocol.name(), case.name);
                trials.push(trial(name, backend, protocol, case).with_ignored_flag(missing.is_some()));
            }
        }
    }
    if let Some(missing) = missing {
        trials.push(report_missing(backend.name(), missing));
    }
    trials
}

/// One test that fails in place of all the cases that cannot run, unless the caller said that this is fine.
fn report_missing(backend: &str, missing: String) -> Trial {
    let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    let allowed = !in_ci && std::env::var("REDFENCE_SKIP_MISSING").is_ok_and(|value| value == "1");
    let line = format!("backend {backend} was not tested: {missing}");
    if allowed {
        redfence_tests::left_out::note(&line);
    }
    Trial::test(
        format!("{backend}::is_there"),
        move || if allowed { Ok(()) } else { Err(Failed::from(line)) },
    )
}

fn trial(name: String, backend: &Arc<dyn Backend>, protocol: Protocol, case: &'static Case) -> Trial {
    let backend = Arc::clone(backend);
    Trial::test(name.clone(), move || {
        let context = Context::new(Arc::clone(&backend), protocol, case.name);
        catch_unwind(AssertUnwindSafe(|| (case.run)(&context))).map_err(|panic| {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("a panic without a message");
            Failed::from(format!(
                "{text}\nrepeat: cargo test -p redfence-tests --test conformance -- --exact {name}\n{}",
                backend.log()
            ))
        })
    })
}
