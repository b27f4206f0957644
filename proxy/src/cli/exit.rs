//! How a program ends: one line on standard error and an exit code. `docs/programs.md` lists the codes.

use std::fmt;

/// A program that could not do what it was asked for.
pub const FAILED: u8 = 1;
/// A drill that could not be carried out; also what clap answers to a wrong command line.
pub const NOT_DONE: u8 = 2;
/// No node could be reached, or the request was refused (`EX_UNAVAILABLE`).
pub const UNAVAILABLE: u8 = 69;
/// Somebody else holds the lock (`EX_TEMPFAIL`).
pub const BUSY: u8 = 75;
/// The lock was lost while the command ran, and the command was ended.
pub const LOST: u8 = 76;
/// The command was found but could not be started, as a shell says it.
pub const CANNOT_EXECUTE: u8 = 126;
/// There is no such command, as a shell says it.
pub const NOT_FOUND: u8 = 127;

/// Why a program ends without success.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    pub code: u8,
    /// One line, for people. Empty where everything has been said.
    pub line: String,
}

impl Failure {
    pub(crate) fn new(code: u8, line: impl Into<String>) -> Failure {
        Failure { code, line: line.into() }
    }

    /// The same reason with another code.
    pub(crate) fn with_code(self, code: u8) -> Failure {
        Failure { code, ..self }
    }
}

impl From<String> for Failure {
    fn from(line: String) -> Failure {
        Failure { code: FAILED, line }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}
