"""The benchmark of SQL runs: each side counts all records, and has a figure."""

from __future__ import annotations

import pytest

from quick_run import quick_run

pytest.importorskip("duckdb", reason="the extra sql is not installed")


def test_each_side_has_a_figure() -> None:
    lines = quick_run("sql.py")
    sides = {line["side"]: line for line in lines if line["kind"] == "figures"}
    assert list(sides)[:2] == ["stratalog", "DuckDB over Parquet"]
    assert all(line["case"] == "sql/count" and line["records"] == 40_000 for line in sides.values())
    missing = [line["reason"] for line in lines if line["kind"] == "missing"]
    assert "Spark over the topic" in sides or missing[0].startswith("Spark is left out: ")
