//! What the tests that cross crates stand on: an exact RESP client, real processes, and the backends.
//!
//! # Layout
//!
//! - [`resp`]: RESP2 and RESP3 values told apart to the byte, and a blocking connection.
//! - [`process`]: one child process: free port, logs, killed when its owner goes away.
//! - [`artifacts`]: where the built module and the `redfence` program are, and what to say when they are not.
//! - [`redis`]: a redis-server in a directory of its own.
//! - [`postgres`], [`mariadb`]: throw-away databases, spoken to through their own command-line programs ([`sql_shell`]).
//! - [`cluster`]: `redfence serve` processes: one or several nodes, killed, paused, restarted.
//! - [`inject`]: failing and slow system calls, by strace; [`left_out`]: what this machine cannot do.
//! - [`client`]: what a case holds: `ask`, `send`, `receive`, over any backend.
//! - [`backend`]: what a backend must offer to be tested; [`backends`] has one file for each.
//! - [`tier1`]: Tier 1 on one Redis, for tests that restart it and swap module and Lua.
//! - [`expect`]: the shapes of replies.
//! - [`checker`]: decides whether what clients saw could have happened; [`sim`]: the seeded simulator; [`chaos`]: fault runs.
//! - [`hostile`]: whatever a client may send, against three real nodes.
//!
//! # Caveats
//!
//! Linux only: children are tied to the test process with `PR_SET_PDEATHSIG`.

pub mod artifacts;
pub mod backend;
pub mod backends;
pub mod chaos;
pub mod checker;
pub mod client;
pub mod cluster;
pub mod expect;
pub mod hostile;
pub mod inject;
pub mod left_out;
pub mod mariadb;
pub mod postgres;
pub mod process;
pub mod redis;
pub mod relay;
pub mod resp;
pub mod rng;
pub mod sim;
pub mod soak;
pub mod sql_shell;
pub mod tier1;
