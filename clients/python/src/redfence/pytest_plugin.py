"""Fixtures for pytest, loaded by themselves where this package is installed.

``redfence_server``
    A :class:`redfence.testing.TestServer`, reset for each test. One process serves the whole run.
``redfence_client``
    A :class:`redfence.Client` of it, whose deadlines run on the server's clock.

A test that uses them is skipped where there is no ``redfence`` program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator

import pytest

if TYPE_CHECKING:
    from .client import Client
    from .testing import TestServer


@pytest.fixture(scope="session")
def _redfence_process() -> "Iterator[TestServer]":
    from .testing import TestServer, TestServerMissing

    try:
        server = TestServer()
    except TestServerMissing as missing:
        pytest.skip(f"no redfence testserver: {missing}")
    with server:
        yield server


@pytest.fixture
def redfence_server(_redfence_process: "TestServer") -> "Iterator[TestServer]":
    """A lock server with a clock that the test turns."""
    _redfence_process.reset()
    yield _redfence_process
    _redfence_process.reset()


@pytest.fixture
def redfence_client(redfence_server: "TestServer") -> "Client":
    """A client of ``redfence_server``."""
    return redfence_server.client()
