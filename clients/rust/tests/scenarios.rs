//! `clients/scenarios.toml` against every backend: a node, a cluster of three, a Redis with the module, a Redis with the Lua library.
//!
//! `REDFENCE_BIN` and `REDFENCE_MODULE` name the programs; without, they are looked for beside the test.
//! `REDFENCE_SCENARIO=name` runs one.

mod support;

use std::sync::{Arc, Mutex};
use support::scenarios::{self, Scenario};
use support::servers::{Backend, Servers};

/// Scenarios at a time. They mostly wait.
const AT_ONCE: usize = 8;

fn run_all(backend: Backend) {
    let Some(servers) = Servers::start(backend) else { return };
    let abilities = scenarios::abilities(&servers);
    let only = std::env::var("REDFENCE_SCENARIO").ok();
    let is_wanted = |scenario: &Scenario| only.as_ref().is_none_or(|only| *only == scenario.name);
    let mut chosen = Vec::new();
    for scenario in scenarios::all().into_iter().filter(is_wanted) {
        match scenario.needs.iter().find(|need| !abilities.contains(*need)) {
            Some(need) => eprintln!("{backend:?}: {} is left out: no {need} here", scenario.name),
            None => chosen.push(scenario),
        }
    }
    let servers = Arc::new(Mutex::new(servers));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a runtime");
    let (alone, together): (Vec<_>, Vec<_>) = chosen.into_iter().partition(Scenario::is_alone);
    let failed = runtime.block_on(async {
        let permits = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
        let mut running = Vec::new();
        for scenario in together {
            let (servers, permits) = (Arc::clone(&servers), Arc::clone(&permits));
            running.push(tokio::spawn(async move {
                let _permit = permits.acquire().await;
                scenarios::run(&scenario, &servers).await;
            }));
        }
        let mut failed = 0;
        for task in running {
            failed += usize::from(task.await.is_err());
        }
        for scenario in alone {
            let (node, again) = (Arc::clone(&servers), Arc::clone(&servers));
            let task = tokio::spawn(async move { scenarios::run(&scenario, &node).await });
            failed += usize::from(task.await.is_err());
            tokio::task::spawn_blocking(move || again.lock().unwrap().restore())
                .await
                .expect("the nodes come back");
        }
        failed
    });
    assert_eq!(failed, 0, "scenarios failed against {backend:?}; what they said is above");
}

#[test]
fn a_single_node() {
    run_all(Backend::SingleNode);
}

#[test]
fn a_cluster_of_three() {
    run_all(Backend::ThreeNodes);
}

#[test]
fn a_redis_with_the_module() {
    run_all(Backend::Module);
}

#[test]
fn a_redis_with_the_lua_library() {
    run_all(Backend::Lua);
}
