"""The benchmark of idle retention runs, and reports a figure for each bound."""

from __future__ import annotations

from quick_run import quick_run, verdicts


def test_every_bound_has_a_figure_and_no_file_is_opened() -> None:
    lines = verdicts(quick_run("retention.py"))
    figures = {line["case"]: line["figure"] for line in lines}
    assert set(figures) == {"retention/cpu", "retention/files"}
    assert figures["retention/cpu"] > 0
    assert figures["retention/files"] == 0
