"""The benchmark of very many segments runs, and reports a figure for each bound."""

from __future__ import annotations

import sys

import pytest

from quick_run import quick_run, verdicts


@pytest.mark.skipif(sys.platform != "linux", reason="it reads the kernel's accounts")
def test_every_bound_has_a_figure() -> None:
    lines = verdicts(quick_run("manifest.py"))
    cases = {line["case"]: line for line in lines}
    assert set(cases) == {f"manifest/{case}" for case in ("commit", "attach/requests", "attach/cpu", "attach/memory")}
    assert cases["manifest/attach/requests"]["figure"] == 4
    assert 0 < cases["manifest/attach/memory"]["figure"] < 64
    assert cases["manifest/commit"]["figure"] < 2
