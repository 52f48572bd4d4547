"""The public API of contract version 1 equals the stored one. A removed or changed line must be deliberate."""

from __future__ import annotations

import difflib

from contract_surface import FILE, surface


def test_the_surface_of_the_contract_is_the_one_in_the_file() -> None:
    kept, now = FILE.read_text(encoding="utf-8").splitlines(), surface().splitlines()
    changes = [line for line in difflib.unified_diff(kept, now, lineterm="", n=0) if line[0] in "+-"]
    assert changes == [], "run tests/support/contract_surface.py after an addition; a removal breaks plugins"


def test_the_file_names_each_hook_and_each_method_of_a_component() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert "hook stratalog_cleanup_policies() -> 'Iterable[Provider[CleanupPolicy]]'" in text
    assert "stratalog.spi.CleanupPolicy.plan abstract (self, log: 'LogSummary'" in text
