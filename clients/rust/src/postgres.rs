//! Fences in `PostgreSQL`.
//!
//! **As a condition.** Keep the highest fence beside the row, and let the write say it:
//!
//! ```sql
//! UPDATE wallet SET balance = $1, fence = $2 WHERE id = $3 AND fence <= $2;   -- 0 rows: you are late; stop
//! ```
//!
//! `<=` for a holder that writes several times under one lock; `<` for one that writes once, where a second write with the same fence would be
//! a mistake (a retry of a payment, say).
//!
//! **By a trigger**, without changing a statement: the trigger that `redfence fence-sql TABLE` prints compares the setting
//! `redfence.fence` of the transaction with the fence of the row. [`SET_FENCE`] sets it, with any library:
//!
//! ```ignore
//! sqlx::query(redfence_client::postgres::SET_FENCE).bind(lock.fence().to_string()).execute(&mut *transaction).await?;
//! ```
//!
//! With the feature `tokio-postgres`, `bind` does.

#[cfg(feature = "tokio-postgres")]
use crate::lock::Lock;

/// Sets the fence for the rest of the transaction. `$1` is the fence as text.
pub const SET_FENCE: &str = "SELECT set_config('redfence.fence', $1, true)";

/// Sets the lock's fence for the rest of a transaction of tokio-postgres.
///
/// # Errors
///
/// Whatever the database says.
#[cfg(feature = "tokio-postgres")]
pub async fn bind(
    transaction: &tokio_postgres::Transaction<'_>,
    lock: &Lock,
) -> Result<(), tokio_postgres::Error> {
    transaction.execute(SET_FENCE, &[&lock.fence().to_string()]).await.map(drop)
}
