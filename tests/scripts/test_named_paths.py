"""Paths of tests in scripts exist: after a test file was moved, CI must not skip it silently."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("script", ["scripts/sanitize", ".ci/run", "tests/conftest.py"])
def test_the_tests_that_a_script_names_exist(script: str) -> None:
    paths = re.findall(r"\btests/[\w/.]*\w", (ROOT / script).read_text("utf-8"))
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
