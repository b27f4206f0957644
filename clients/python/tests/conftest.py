from __future__ import annotations

import os
from typing import Any, Dict, Iterator, Union

import pytest

from backends import BACKENDS, Backend, Missing

pytest_plugins = ["pytester"]
_STARTED: Dict[str, Union[Backend, Missing]] = {}


def _wanted() -> "list[str]":
    return os.environ.get("REDFENCE_SDK_BACKENDS", "single,cluster,module,lua").split(",")


def start(name: str) -> Backend:
    """The backend of that name, started once for the whole run. Skips aloud where the machine does not have it."""
    if name not in _wanted():
        pytest.skip(f"backend {name}: not in REDFENCE_SDK_BACKENDS")
    if name not in _STARTED:
        try:
            _STARTED[name] = BACKENDS[name]()
        except Missing as missing:
            _STARTED[name] = missing
    backend = _STARTED[name]
    if isinstance(backend, Missing):
        pytest.skip(f"backend {name}: missing is {backend}")
    return backend


def pytest_sessionfinish(session: Any, exitstatus: int) -> None:
    for backend in _STARTED.values():
        if isinstance(backend, Backend):
            backend.stop()


@pytest.fixture
def single() -> Backend:
    return start("single")


@pytest.fixture
def cluster() -> Iterator[Backend]:
    backend = start("cluster")
    yield backend
    backend.restore()


@pytest.fixture(params=["single", "module", "lua"])
def any_backend(request: pytest.FixtureRequest) -> Backend:
    return start(request.param)
