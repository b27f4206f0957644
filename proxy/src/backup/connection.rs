//! The connection of `redfence backup`: that of the other programs, asked by a thread that waits.

use crate::cli::access::{Access, LoginArgs};
use crate::cli::connection::Connection;
use crate::cli::exit::Failure;
use crate::cli::reply::Reply;
use crate::cli::runtime;
use tokio::runtime::Runtime;

pub(crate) struct BackupConnection {
    runtime: Runtime,
    connection: Connection,
}

impl BackupConnection {
    pub(crate) fn open(address: &str, login: &LoginArgs) -> Result<BackupConnection, String> {
        let line = |failure: Failure| failure.line;
        let mut access = Access::of(&[address.to_owned()], login).map_err(line)?;
        let runtime = runtime().map_err(line)?;
        let connection = runtime.block_on(access.connect()).map_err(|error| line(error.into()))?;
        Ok(BackupConnection { runtime, connection })
    }

    pub(crate) fn ask(&mut self, words: &[&str]) -> Result<Reply, String> {
        let answer = self.runtime.block_on(self.connection.ask(words));
        answer.map_err(|error| format!("the connection is lost: {error}"))
    }
}
