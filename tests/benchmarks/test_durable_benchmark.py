"""The benchmark of durable appends runs, and its output can be parsed."""

from __future__ import annotations

from quick_run import quick_run, verdicts


def test_a_quick_run_reports_both_bounds_of_a_disk() -> None:
    report = quick_run("durable.py", "--only", "this-disk")
    sides = {line["side"] for line in report if line["kind"] == "figures"}
    assert sides == {"64 threads", "one fsync each"}
    lines = verdicts(report)
    assert [line["case"] for line in lines] == ["durable/this-disk"] * 2
    assert all(line["figure"] > 0 for line in lines)
