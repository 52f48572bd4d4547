"""The benchmark of Spark runs, and small workers compact keys of ten times their memory limit."""

from __future__ import annotations

from collections import defaultdict

import pytest

from quick_run import quick_run

pytestmark = pytest.mark.usefixtures("has_java", "has_lakes", "has_catalog")

CASES = ("read", "aggregate", "export", "sql-count", "filter", "sync-iceberg", "compact", "segments")


def test_a_quick_run_reports_each_case_except_the_peers() -> None:
    lines = quick_run("spark.py", "--alone")
    times = {line["case"]: line for line in lines if line["kind"] == "figures" and line["side"].startswith("stratalog")}
    assert {f"spark/{case}" for case in CASES} == set(times)
    assert min(line["wall_s"] for line in times.values()) > 0
    numbers = defaultdict[str, dict[str, float]](dict)
    for line in lines:
        if line["kind"] == "number":
            numbers[line["case"]][line["title"]] = line["value"]
    assert 0 < numbers["prune"]["1 % of the time: share of the bytes that is read"] < 100
    filter_numbers = numbers["spark/filter"]
    assert 0 < filter_numbers["bytes that are read: stratalog"] < filter_numbers["bytes that are read: without pruning"]
    plan_numbers = numbers["spark/plan"]
    assert 20 < plan_numbers["plan of 2,000 segments in 20 partitions of a tier"] <= 2000
    for case, changed in enumerate((20, 0, 2, 20, 0)):
        trigger_numbers = numbers[f"stream-trigger/{case}-{changed}"]
        assert trigger_numbers[f"{changed} of 20 partitions changed: requests of the plan"] <= 1 + 3 * changed
    compaction_numbers = numbers["small/48MiB"]
    key_bytes = compaction_numbers["compaction with keys of 10 times the memory of a worker"]
    assert key_bytes >= 10 * 48 << 20
    assert compaction_numbers["records after"] * 2000 == key_bytes
    assert 0 < compaction_numbers["messages between tasks, for each record"] < 25, "so tasks told each other keys"
