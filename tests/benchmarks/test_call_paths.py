"""The script that counts modules on the way of a call; and how many a local fetch goes through."""

from __future__ import annotations

from pathlib import Path

import pytest

from call_paths import main, paths
from stratalog_formats.kernels.choice import KERNELS

MOST_MODULES = 13 if KERNELS.select_batches is not None else 30  # of a local fetch; a higher number needs a reason


def test_a_local_fetch_goes_through_few_modules(tmp_path: Path) -> None:
    found = paths(tmp_path)
    assert set(found) == {"append", "local fetch", "cold fetch from the tier"}
    modules = {module for module, _ in found["local fetch"]}
    assert {"stratalog.log.read.fetch", "stratalog.segment.batch_lookup"} <= modules
    assert len(modules) <= MOST_MODULES, sorted(modules)
    assert "stratalog.tier.read.fetcher" in {module for module, _ in found["cold fetch from the tier"]}


def test_each_path_is_printed_with_its_modules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert "local fetch: " in shown
    assert "stratalog.log.read.fetch" in shown
