//! Fences for data that lives in the same server: `FENCE.*`.

use crate::client::Handle;
use crate::error::{Error, Failure};
use crate::protocol::integer;
use redis::{Cmd, FromRedisValue, Value};
use std::sync::Arc;

/// Writes under a fence. A write with a fence lower than the highest one seen for the resource does not happen.
///
/// ```no_run
/// # async fn example(lock: redfence_client::Lock) -> Result<(), redfence_client::Error> {
/// lock.fenced().call::<()>(redis::cmd("SET").arg("balance").arg(100)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Fenced {
    handle: Arc<Handle>,
    resource: Vec<u8>,
    fence: i64,
}

impl std::fmt::Debug for Fenced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let resource = String::from_utf8_lossy(&self.resource);
        f.debug_struct("Fenced")
            .field("resource", &resource)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}

impl Fenced {
    pub(crate) fn new(handle: Arc<Handle>, resource: Vec<u8>, fence: i64) -> Fenced {
        Fenced { handle, resource, fence }
    }

    /// Runs a command if the fence is not stale; check and command are one step (`FENCE.CALL`). It is sent once: only the caller
    /// knows whether the command may be repeated.
    ///
    /// # Errors
    ///
    /// [`Error::Stale`] where somebody with a newer fence was here: stop working. [`Error::Indeterminate`] where the answer was lost.
    pub async fn call<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Error> {
        let mut cmd = self.command("FENCE.CALL");
        cmd.arg(self.fence);
        for word in command.args_iter() {
            match word {
                redis::Arg::Simple(word) => cmd.arg(word),
                _ => return Err(Error::invalid("a command with a cursor cannot be guarded")),
            };
        }
        let core = &self.handle.core;
        core.admit()?;
        let value = core.attempt(&cmd, core.settings.attempt_timeout).await.map_err(Failure::into_error)?;
        T::from_redis_value(value)
            .map_err(|error| Error::Server { code: "ERR".into(), text: error.to_string() })
    }

    /// Whether the fence is not stale; raises the high-water mark to it (`FENCE.CHECK`). A pause between this and the write lets a late
    /// write through: where the data is in the same server, use [`Fenced::call`].
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where no server answers.
    pub async fn check(&self) -> Result<bool, Error> {
        let mut cmd = self.command("FENCE.CHECK");
        cmd.arg(self.fence);
        Ok(self.ask(&cmd).await? == 1)
    }

    /// The high-water mark, 0 if there is none (`FENCE.GET`).
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] where no server answers.
    pub async fn mark(&self) -> Result<i64, Error> {
        self.ask(&self.command("FENCE.GET")).await
    }

    fn command(&self, name: &str) -> Cmd {
        self.handle.core.links.dialect().fence(name, &self.resource)
    }

    async fn ask(&self, cmd: &Cmd) -> Result<i64, Error> {
        let core = &self.handle.core;
        core.admit()?;
        let value: Value = core.ask(cmd).await.map_err(Failure::into_error)?;
        integer(&value).ok_or_else(|| crate::protocol::unexpected("FENCE", &value))
    }
}
