"""Read the stored results of the benchmarks, and make tables and charts for the documentation from them.

The results are the output of a benchmark with ``--json``, in benchmarks/results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pictures

RESULTS: Final = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
OURS: Final = "stratalog"
_TARGET: Final = "100B-1000rec-none"
_CHARTS: Final = {
    "performance-batches": (
        "Record batches: millions of records for each second of processor time",
        {
            "decode to columns": f"columns/{_TARGET}",
            "decode to Arrow": f"arrow/{_TARGET}",
            "decode to objects": f"objects/{_TARGET}",
            "encode records": f"encode/{_TARGET}",
        },
        (OURS, "Kafka (Java)", "aiokafka", "kafka-python"),
    ),
    "performance-log": (
        "A log on local disk: millions of records for each second of processor time",
        {
            "append 1,000 records in each call": "append/records",
            "read objects": "read/records",
            "read Arrow tables": "read/arrow",
            "recover without indexes": "recovery/no-indexes",
            "look up 1,000 offsets": "lookup/offset",
        },
        (OURS, "Kafka (Java)", "aiokafka", "aiokafka and write"),
    ),
    "performance-tier": (
        "A tier: millions of records for each second of processor time",
        {
            "offload to a folder": "tier/kafka/offload",
            "offload 1 MB segments": "tier/kafka/small",
            "read from the tier": "tier/kafka/read",
        },
        (OURS, "Kafka (Java)", "aiokafka, a loop"),
    ),
    "performance-spark": (
        "Spark: millions of records for each second of processor time",
        {
            "read all columns": "spark/read",
            "sum by key in Python": "spark/aggregate",
            "export to Parquet": "spark/export",
            "sync to an Iceberg table": "spark/sync-iceberg",
            "select 1 % by time": "spark/filter",
            "count half by time": "spark/sql-count",
        },
        (OURS, "without pruning", "Spark's Kafka source"),
    ),
    "performance-cleaning": (
        "Cleaning: millions of records for each second of processor time",
        {
            "compact, all dirty": "compact/all-dirty",
            "compact, little dirt": "compact/little-dirt",
            "compact by timestamp": "latest/by-timestamp",
            "compact by header": "latest/by-header",
            "erase one key": "erase/one-key",
        },
        (OURS, "Kafka (Java)", "aiokafka, a loop"),
    ),
    "performance-sql": (
        "SQL: millions of records for each second of processor time",
        {"count by key": "sql/count"},
        (OURS, "DuckDB over Parquet", "Spark over the topic", "Spark over Parquet"),
    ),
}
_SUMMARY: Final = (
    ("Decode batches to columns", f"columns/{_TARGET}", "aiokafka", "codec"),
    ("Decode batches to columns", f"columns/{_TARGET}", "Kafka (Java)", "codec"),
    ("Encode records", f"encode/{_TARGET}", "Kafka (Java)", "codec"),
    ("Append 1,000 records in each call", "append/records", "Kafka (Java)", "log"),
    ("Read a log as Arrow tables", "read/arrow", "aiokafka", "log"),
    ("Look up records by offset", "lookup/offset", "Kafka (Java)", "log"),
    ("Offload to a folder", "tier/kafka/offload", "Kafka (Java)", "tier"),
    ("Read all records of a tier", "tier/kafka/read", "Kafka (Java)", "tier"),
    ("Read a topic on Spark", "spark/read", "Spark's Kafka source", "spark"),
    ("Export a topic to Parquet on Spark", "spark/export", "Spark's Kafka source", "spark"),
    ("Sync a topic to an Iceberg table", "spark/sync-iceberg", "Spark's Kafka source", "spark"),
    ("Upload to S3, with hashes and commits", "tier/offload/s3", "s3fs put_file alone", "tier"),
)


class Figure(NamedTuple):
    """Measurement of one side of a case: median wall time and processor time of a call, and its number of records."""

    wall_s: float
    cpu_s: float
    records: int


def read_results(name: str, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of ``kind`` in the stored result of the benchmark ``name``; none if nothing is stored."""
    file = RESULTS / f"{name}.jsonl"
    if file.is_file():
        lines = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
        yield from (line for line in lines if line["kind"] == kind)


def benchmarks() -> list[str]:
    """Return the names of the benchmarks with stored results."""
    return sorted(file.stem for file in RESULTS.glob("*.jsonl"))


def figures() -> dict[str, dict[str, Figure]]:
    """Return the stored figures by case and side."""
    figures_by_case: dict[str, dict[str, Figure]] = {}
    for name in benchmarks():
        for line in read_results(name, "figures"):
            figure = Figure(line["wall_s"], line["cpu_s"], line["records"])
            figures_by_case.setdefault(line["case"], {})[line["side"]] = figure
    return figures_by_case


def charts() -> dict[str, str]:
    """Return the charts as SVG by their names, without cases that have no stored result, and without empty charts."""
    all_figures = figures()
    drawn = {}
    for name, (title, cases, sides) in _CHARTS.items():
        groups = {
            label: {
                side: figure.records / figure.cpu_s / 1e6
                for side in sides
                if (figure := all_figures[case].get(side)) is not None
            }
            for label, case in cases.items()
            if case in all_figures
        }
        if groups:
            drawn[name] = pictures.bars(title, title.partition(": ")[2], groups, OURS)
    return drawn


def summary() -> list[list[str]]:
    """Return rows of the work, the peer, two ratios and the command.

    The ratios are the peer's wall time divided by stratalog's, and the peer's processor time divided by stratalog's.
    """
    all_figures, rows = figures(), []
    for work, case, peer, name in _SUMMARY:
        if case in all_figures:
            own_figure, peer_figure = all_figures[case][OURS], all_figures[case][peer]
            wall, cpu = _ratio(peer_figure.wall_s / own_figure.wall_s), _ratio(peer_figure.cpu_s / own_figure.cpu_s)
            part = case.partition("/" + _TARGET)[0].removeprefix("spark/")
            rows.append([work, peer, wall, cpu, f"`python benchmarks/{name}.py --only {part}`"])
    return rows


def verdicts() -> list[list[str]]:
    """Return rows of the target, the case, the measured value, its bound, and "yes" if the target was reached."""
    return [
        [line["target"], f"`{line['case']}`", line["measured"], line["bound"], "yes" if line["reached"] else "**no**"]
        for name in benchmarks()
        for line in read_results(name, "verdict")
    ]


def machines() -> list[list[str]]:
    """Return rows of the benchmark, the machine, its Python version, and its load average at the start."""
    return [
        [
            f"`benchmarks/{name}.py`",
            f"{line['processors']} cores of {line['processor']}",
            line["python"],
            f"{line['load']:.1f}",
        ]
        for name in benchmarks()
        for line in read_results(name, "machine")
    ]


def _ratio(value: float) -> str:
    return f"{value:.0f} x" if value >= 10 else f"{value:.2g} x"
