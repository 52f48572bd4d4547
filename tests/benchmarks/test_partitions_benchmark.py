"""The benchmark of many logs runs, and reports a figure for each bound."""

from __future__ import annotations

import sys

import pytest

from quick_run import quick_run, verdicts


@pytest.mark.skipif(sys.platform != "linux", reason="it reads the kernel's accounts")
def test_every_bound_has_a_figure() -> None:
    lines = verdicts(quick_run("partitions.py"))
    cases = {line["case"] for line in lines}
    assert cases == {f"partitions/{case}" for case in ("open", "memory/open", "memory/appended", "disk/indexes")}
    assert all(line["figure"] > 0 for line in lines)
