"""Fences in a real PostgreSQL: the write of a stale holder is refused, with the trigger and as a condition."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import Any, Iterator, List

import pytest

import redfence
from backends import Backend, poll
from redfence import postgres

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: runs in `make sdk`")


def programs() -> Path:
    folders: List[Path] = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    folders += [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    for folder in folders:
        if (folder / "initdb").is_file():
            return folder
    pytest.skip("PostgreSQL is not installed")


@pytest.fixture(scope="module")
def dsn() -> Iterator[str]:
    """A throw-away PostgreSQL: its own directory and socket, no port, as an unprivileged user."""
    tools = programs()
    folder = Path(tempfile.mkdtemp(prefix="redfence-pg-"))
    options: Any = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)

        def drop() -> None:
            os.setgid(nobody.pw_gid)
            os.setuid(nobody.pw_uid)

        options["preexec_fn"] = drop
    made = subprocess.run(
        [tools / "initdb", "-A", "trust", "-U", "redfence", "--no-sync", "-D", folder / "data"],
        cwd=folder, capture_output=True, text=True, **options,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [tools / "postgres", "-D", folder / "data", "-c", "listen_addresses=", "-c", "fsync=off", "-k", folder],
            cwd=folder, stdout=log, stderr=log, **options,
        )  # fmt: skip
    dsn = f"host={folder} user=redfence dbname=postgres"

    def answers() -> bool:
        try:
            psycopg.connect(dsn).close()
            return True
        except psycopg.OperationalError:
            return False

    try:
        poll(answers, 60, "PostgreSQL answers")
        yield dsn
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def table(dsn: str) -> str:
    table = f"wallets_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(dsn) as conn:
        conn.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, balance int NOT NULL)")
        conn.execute(postgres.trigger_sql(table))
        conn.execute(postgres.trigger_sql(table))  # may be run again
        conn.execute(f"INSERT INTO {table} (id, balance) VALUES (7, 100)")
    return table


def two_holders(rf: redfence.Client) -> Any:
    """A holder that was paused and lost its lock without noticing, and its successor."""
    resource = f"wallet-{uuid.uuid4().hex}"
    stale = rf.lock(resource, transferable=True).acquire()
    rf.force_release(resource)
    return stale, rf.lock(resource).acquire()


def test_trigger_refuses_the_stale_holder(single: Backend, dsn: str, table: str) -> None:
    with redfence.Client(single.urls()) as rf:
        stale, current = two_holders(rf)
        with psycopg.connect(dsn) as conn:
            current.bind(conn)
            conn.execute(f"UPDATE {table} SET balance = 90 WHERE id = 7")
            conn.execute(f"UPDATE {table} SET balance = 80 WHERE id = 7")  # a holder may write several times
        for statement in (f"UPDATE {table} SET balance = 1 WHERE id = 7", f"DELETE FROM {table}"):
            with pytest.raises(psycopg.Error) as refused:
                with psycopg.connect(dsn) as conn:
                    stale.bind(conn)
                    conn.execute(statement)
            assert refused.value.sqlstate == postgres.STALE_STATE
        with pytest.raises(psycopg.Error):  # and so is one who has no lock at all
            with psycopg.connect(dsn) as conn:
                conn.execute(f"UPDATE {table} SET balance = 2 WHERE id = 7")
        with psycopg.connect(dsn) as conn:
            assert conn.execute(f"SELECT balance, fence FROM {table}").fetchone() == (80, current.fence())
        current.release()


def test_fence_ends_with_its_transaction(single: Backend, dsn: str) -> None:
    with redfence.Client(single.urls()) as rf, rf.lock(f"w-{uuid.uuid4().hex}") as lock, psycopg.connect(dsn) as conn:
        lock.bind(conn)
        assert conn.execute("SELECT current_setting('redfence.fence')").fetchone() == (str(lock.fence()),)
        conn.commit()
        assert conn.execute("SELECT current_setting('redfence.fence', true)").fetchone() in [(None,), ("",)]


def test_autocommit_is_refused_because_set_local_would_do_nothing(single: Backend, dsn: str) -> None:
    with redfence.Client(single.urls()) as rf, rf.lock(f"w-{uuid.uuid4().hex}") as lock:
        with psycopg.connect(dsn, autocommit=True) as conn:
            with pytest.raises(redfence.InvalidRequest, match="transaction"):
                lock.bind(conn)
            with conn.transaction():
                lock.bind(conn)


def test_lost_lock_does_not_bind(single: Backend, dsn: str) -> None:
    with redfence.Client(single.urls()) as rf, psycopg.connect(dsn) as conn:
        lock = rf.lock(f"w-{uuid.uuid4().hex}").acquire()
        rf.close()
        with pytest.raises(redfence.Lost):
            lock.bind(conn)


def test_sqlalchemy_connection_and_session(single: Backend, dsn: str, table: str) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy.orm import Session

    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    with redfence.Client(single.urls()) as rf:
        stale, current = two_holders(rf)
        with engine.begin() as conn:
            current.bind(conn)
            conn.execute(sqlalchemy.text(f"UPDATE {table} SET balance = 70 WHERE id = 7"))
        with pytest.raises(sqlalchemy.exc.DBAPIError, match="stale fence"):
            with Session(engine) as session, session.begin():
                stale.bind(session)
                session.execute(sqlalchemy.text(f"UPDATE {table} SET balance = 1 WHERE id = 7"))
        current.release()
    engine.dispose()


def test_asynchronous_connection(single: Backend, dsn: str, table: str) -> None:
    async def work() -> None:
        async with redfence.AsyncClient(single.urls()) as rf:
            async with rf.lock(f"w-{uuid.uuid4().hex}") as lock:
                async with await psycopg.AsyncConnection.connect(dsn) as conn:
                    await lock.bind(conn)
                    await conn.execute(f"UPDATE {table} SET balance = 60 WHERE id = 7")
                    row = await (await conn.execute(f"SELECT fence FROM {table}")).fetchone()
                    assert row == (lock.fence(),)

    asyncio.run(work())


def test_explicit_condition_for_several_writes_and_for_one(single: Backend, dsn: str) -> None:
    """`<=`: a holder writes as often as it likes. `<`: once, and a repeated write changes nothing."""
    table = f"jobs_{uuid.uuid4().hex[:8]}"
    with redfence.Client(single.urls()) as rf, psycopg.connect(dsn) as conn:
        conn.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int NOT NULL, fence bigint NOT NULL DEFAULT 0)")
        conn.execute(f"INSERT INTO {table} VALUES (1, 0, 0)")
        stale, current = two_holders(rf)
        several = f"UPDATE {table} SET n = n + 1, fence = %s WHERE id = 1 AND fence <= %s"
        once = f"UPDATE {table} SET n = n + 1, fence = %s WHERE id = 1 AND fence < %s"

        def write(statement: str, lock: Any) -> int:
            return int(conn.execute(statement, (lock.fence(), lock.fence())).rowcount)

        assert [write(several, current), write(several, current), write(several, stale)] == [1, 1, 0]
        assert [write(once, current), write(once, stale)] == [0, 0]
        current.release()


def test_names_are_checked() -> None:
    for bad in ("wallets; DROP TABLE x", "", "a.b.c", 'x"y'):
        with pytest.raises(redfence.InvalidRequest):
            postgres.trigger_sql(bad)
