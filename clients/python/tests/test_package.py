"""The package as its users get it: built, installed into an empty environment, imported, typed."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

SDK = Path(__file__).resolve().parents[1]

if os.environ.get("REDFENCE_SDK") == "short":
    pytest.skip("takes long: runs in `make sdk`", allow_module_level=True)
pytest.importorskip("build", reason="the package `build` is not installed: runs in `make sdk`")


def run(*words: object) -> str:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_builds_and_installs_into_an_empty_environment(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", SDK)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    (source,) = (tmp_path / "dist").glob("*.tar.gz")
    names = zipfile.ZipFile(wheel).namelist()
    assert "redfence/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith("tests/") or "/test_" in name for name in names)
    with tarfile.open(source) as files:
        assert any(name.endswith("tests/test_unit.py") for name in files.getnames())
    metadata = zipfile.ZipFile(wheel).read(next(name for name in names if name.endswith("METADATA"))).decode()
    for line in ("Requires-Python: >=3.9", "License-Expression: Apache-2.0", "Description-Content-Type: text/markdown"):
        assert line in metadata
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    try:
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    except AssertionError as error:
        pytest.skip(f"the package registry cannot be reached: {error}")
    told = run(python, "-c", "import redfence, redfence.asgi, redfence.postgres, redfence.testing; print(redfence.__version__)")
    assert told.strip() == "0.1.0"
