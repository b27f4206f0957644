//! Users and their rights: Redis 7's access control lists. Pure: no files, no clock, no sockets.
//!
//! # Layout
//!
//! - [`commands`]: every known command, its categories and where its keys are
//! - [`rules`]: which commands a user may run
//! - [`user`]: one user: passwords, patterns, rules, and the words that change them
//! - [`selector`]: further sets of rights of a user
//! - [`check`]: whether a user may run a command on its keys and channels
//! - [`users`]: all users, and the text of an ACL file
//! - [`script`]: rights that travel to the leader with a script
//! - [`log`]: what `ACL LOG` shows
//! - [`matrix`]: example users, and what each may do
//!
//! # Caveats
//!
//! - `ACL LIST` shows the command rules as they were given, as Redis 7.2 does.

pub mod check;
pub mod commands;
pub mod log;
pub mod matrix;
pub mod rules;
pub mod script;
pub mod selector;
pub mod user;
pub mod users;

pub use check::Denial;
pub use user::User;
pub use users::Users;
