"""The benchmark of the gateway runs, and its output can be parsed."""

from __future__ import annotations

import pytest

pytest.importorskip("kio", reason="the extra gateway is not installed")

from quick_run import quick_run, verdicts


@pytest.mark.long
def test_a_quick_run_reports_every_server_or_its_absence() -> None:
    report = quick_run("gateway.py")
    missing = " ".join(line["reason"] for line in report if line["kind"] == "missing")
    sides = {line["side"] for line in report if line["kind"] == "figures"}
    assert sides == ({"stratalog serve"} if "Kafka (Java)" in missing else {"stratalog serve", "Kafka (Java)"})
    cases = {line["case"] for line in verdicts(report)}
    assert {"produce/16KiB/4-connections", "fetch/1MiB", "latency/p50", "latency/p99", "start", "memory"} < cases
    assert all(line["figure"] > 0 for line in verdicts(report) if line["case"] == "fixture")
