"""The pages show what runs: README, docs/sdk-python.md, docstrings."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import redfence
from backends import ROOT, Backend

SDK = Path(__file__).resolve().parents[1]
PAGES = [SDK / "README.md", ROOT / "docs" / "sdk-python.md"]


def blocks(page: Path) -> "list[str]":
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.S | re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_programs_of_the_pages_run(single: Backend, page: Path) -> None:
    programs = blocks(page)
    assert programs
    source = str(Path(redfence.__file__).resolve().parents[1])
    for program in programs:
        program = program.replace("redis://127.0.0.1:6380", single.urls()[0])
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, env={"PYTHONPATH": source}
        )
        assert done.returncode == 0, program + done.stderr


def test_recipes_of_the_page_are_the_tested_ones() -> None:
    recipes = (SDK / "tests" / "test_recipes.py").read_text()
    page = (ROOT / "docs" / "sdk-python.md").read_text()
    found = re.findall(r"^# recipe: [^\n]+\n(.*?)(?=^# recipe: |^# end of recipes)", recipes, re.S | re.M)
    assert len(found) == 6
    for recipe in found:
        assert recipe.strip() in page


def test_doctests() -> None:
    tried = 0
    for module in pkgutil.walk_packages(redfence.__path__, "redfence."):
        result = doctest.testmod(importlib.import_module(module.name))
        assert result.failed == 0, module.name
        tried += result.attempted
    assert tried >= 5


def test_everything_public_is_documented() -> None:
    for name in redfence.__all__:
        thing = getattr(redfence, name)
        if isinstance(thing, type):
            assert thing.__doc__, name
            for method, value in vars(thing).items():
                if not method.startswith("_") and callable(value):
                    assert value.__doc__, f"{name}.{method}"
