//! The docs against the program: every command, flag, error code and metric has its entry, and every link leads somewhere.
//!
//! What can be generated stands between `<!-- generated … -->` and `<!-- /generated -->`. A difference fails, and
//! `UPDATE_DOCS=1 cargo test -p redfence-tests --test docs` rewrites it.

mod commands_to_repeat;
mod links;
mod pages;
mod reference;
