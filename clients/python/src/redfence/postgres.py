"""Fences in PostgreSQL: the table itself refuses the write of a stale holder.

Two ways, both in the transaction of the write:

*With a trigger*, no statement changes. Add a column and the trigger once (:func:`trigger_sql`, or ``redfence fence-sql TABLE``), then tell each
transaction its fence:

    with rf.lock("wallet:7") as lock, psycopg.connect(dsn) as conn:
        lock.bind(conn)                                   # this transaction writes under lock.fence()
        conn.execute("UPDATE wallets SET balance = balance - 5 WHERE id = 7")

*As an explicit condition*, without a trigger:

    cursor = conn.execute(
        "UPDATE wallets SET balance = %s, fence = %s WHERE id = 7 AND fence <= %s", (balance, lock.fence(), lock.fence()))
    if cursor.rowcount == 0:
        raise redfence.StaleFence("somebody with a newer fence was here")

**``<=`` or ``<``?** A holder that writes the row more than once under one lock needs ``fence <= mine``: its second write finds its own fence. ``fence < mine`` lets
a holder write once: it also refuses the repetition of a write whose reply was lost, which is what you want for a job that must run once.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from .errors import InvalidRequest

if TYPE_CHECKING:
    from ._handle import BaseLock

__all__ = ["SETTING", "bind", "bind_async", "trigger_sql"]

#: The setting that carries the fence of a transaction.
SETTING = "redfence.fence"
#: The SQLSTATE with which the trigger refuses: ``serialization_failure``'s class is for retries, this one is not.
STALE_STATE = "RF001"
#: The SQLSTATE for a fence that is more than an hour ahead of the database's clock: it would make every real one stale.
FUTURE_STATE = "RF002"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*(\.[A-Za-z_][A-Za-z0-9_$]*)?")


def trigger_sql(table: str, column: str = "fence") -> str:
    """The statements that make a table refuse stale fences: a column, a function and a trigger.

    Writes of a transaction without a fence are refused as well, once a row has one. ``DELETE`` is checked, too.

    It is one statement, done as a whole or not at all: it may be run again while others write. The function is in the schema of the table.

    >>> print(trigger_sql("wallets").splitlines()[1])
    ALTER TABLE wallets ADD COLUMN IF NOT EXISTS fence bigint NOT NULL DEFAULT 0;
    """
    for name in (table, column):
        # Two `$` would end the quoted text of the function; a longer name would be cut off, and be that of another table.
        if _NAME.fullmatch(name) is None or name.count("$") > 1 or len(name.rpartition(".")[2]) > 48:
            raise InvalidRequest(f"{name!r} is not a plain SQL name")
    schema, dot, name = table.rpartition(".")
    function = f"{schema}{dot}redfence_check_{name}"
    return f"""\
DO $redfence$ BEGIN
ALTER TABLE {table} ADD COLUMN IF NOT EXISTS {column} bigint NOT NULL DEFAULT 0;

CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    mine bigint := coalesce(nullif(current_setting('{SETTING}', true), ''), '0')::bigint;
BEGIN
    IF mine > extract(epoch FROM clock_timestamp()) * 1000000 + 3600000000 THEN
        RAISE EXCEPTION 'fence % is from the future: more than 1 hour ahead of the clock of this server', mine USING ERRCODE = '{FUTURE_STATE}';
    END IF;
    IF TG_OP <> 'INSERT' AND OLD.{column} > mine THEN
        RAISE EXCEPTION 'stale fence % is behind %', mine, OLD.{column} USING ERRCODE = '{STALE_STATE}';
    END IF;
    IF TG_OP = 'DELETE' THEN
        RETURN OLD;
    END IF;
    NEW.{column} := mine;
    RETURN NEW;
END $$;

DROP TRIGGER IF EXISTS redfence_fence ON {table};
CREATE TRIGGER redfence_fence BEFORE INSERT OR UPDATE OR DELETE ON {table}
    FOR EACH ROW EXECUTE FUNCTION {function}();
END $redfence$;
"""


def _statement(fence: int) -> str:
    # The fence is an int of ours. `set_config(…, true)` is `SET LOCAL`, which takes no parameters.
    return f"SELECT set_config('{SETTING}', '{int(fence)}', true)"


def _check_transaction(connection: Any) -> None:
    """`SET LOCAL` outside a transaction does nothing, and nobody says so."""
    if getattr(connection, "autocommit", False) is True:
        info = getattr(connection, "info", None)
        status = getattr(info, "transaction_status", None)
        if status is None or getattr(status, "name", "") == "IDLE":
            raise InvalidRequest(
                "bind() needs a transaction: this connection is in autocommit mode. Use `with connection.transaction():`"
            )


def _target(connection: Any) -> Any:
    """What executes: a connection of psycopg, or of SQLAlchemy, or a SQLAlchemy session."""
    module = type(connection).__module__.split(".")[0]
    if module == "sqlalchemy":
        return connection, True
    if hasattr(connection, "execute"):
        return connection, False
    if hasattr(connection, "cursor"):  # psycopg2 and other DB-API modules
        return connection.cursor(), False
    raise InvalidRequest(f"bind() takes a psycopg or SQLAlchemy connection, not {type(connection).__name__}")


def bind(lock: "BaseLock", connection: Any) -> None:
    """Tells the transaction of `connection` the fence of `lock`. Ends with the transaction, as ``SET LOCAL`` does.

    For psycopg 3, psycopg2, SQLAlchemy connections and sessions. Call it first in each transaction.
    """
    fence = lock.fence()
    lock.raise_if_lost()
    target, is_sqlalchemy = _target(connection)
    if is_sqlalchemy:
        from sqlalchemy import text

        target.execute(text(_statement(fence)))
    else:
        _check_transaction(connection)
        target.execute(_statement(fence))


async def bind_async(lock: "BaseLock", connection: Any) -> None:
    """:func:`bind` for asynchronous connections: psycopg, asyncpg, SQLAlchemy."""
    fence = lock.fence()
    lock.raise_if_lost()
    target, is_sqlalchemy = _target(connection)
    if is_sqlalchemy:
        from sqlalchemy import text

        done = target.execute(text(_statement(fence)))
    else:
        in_transaction = getattr(connection, "is_in_transaction", None)  # asyncpg
        if in_transaction is not None and not in_transaction():
            raise InvalidRequest("bind() needs a transaction: use `async with connection.transaction():`")
        _check_transaction(connection)
        done = target.execute(_statement(fence))
    if inspect.isawaitable(done):
        await done
