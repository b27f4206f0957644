//! Who answers a command.
//!
//! # Layout
//!
//! - [`dispatch`]: one command: authentication, then who answers it
//! - [`plan`]: the decision who answers, as a value; [`transaction_plan`]: the same for transactions and `WATCH`
//! - [`router`]: which tier serves a resource or a key; [`keys`]: where a command has its keys
//! - [`known_scripts`]: which scripts only read, and run on this node
//! - [`followed_routes`]: the routes one client follows
//! - [`routes`]: the routes in force and how long they are valid; [`settings_follower`]: keeps them equal to the replicated settings
//! - [`rerouting`]: `LOCK.CLUSTER SET route`; [`waiting`]: what blocked clients wait for, and whether new routes end it

pub mod dispatch;
pub mod followed_routes;
pub mod keys;
pub mod known_scripts;
pub mod plan;
pub mod rerouting;
pub mod router;
pub mod routes;
pub mod settings_follower;
pub mod transaction_plan;
pub mod waiting;
