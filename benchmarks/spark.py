"""Spark on a topic: reads, queries, aggregation in Python, export, Iceberg and Delta tables, compaction, many segments.

Usage: python benchmarks/spark.py [--rows N] [--keys N] [--segments N] [--partitions N] [--master local[2,4]] [--rounds
N] [--only CASE] [--alone] [--quick] [--json]

Needs the extras ``spark`` and ``iceberg``, and the jar of ``mvn -f plugins/spark/jvm package``. The peer is Spark's own
Kafka source with a tuned consumer. It runs in the same Spark session, and is measured alternately with stratalog. It
reads from a real broker with the same files, which needs a JDK, Maven and confluent-kafka; without them, the peer is
reported as missing. The peer of Iceberg tables also uses pyiceberg; the peer of compaction is the engine. The last case
compacts with workers whose memory the system limits to a tenth of the size of the topic's keys (Linux). Bounds compare
wall seconds; processor seconds are those of the driver, the JVM and the Python workers, not of the broker.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from harness import JavaMissingError, Machine, Reporter, Sample
from spark_parts import cases, lakes, queries
from spark_parts.data import fill_keys, fill_large, fill_small, tier_of
from spark_parts.measure import result_of, sample, sample_in_turns
from spark_parts.peer import Peer, broker
from spark_parts.plans import SEGMENTS, fill_tier, measure_plan
from spark_parts.small import Size, compact_small
from spark_parts.triggers import report_triggers
from stratalog_spark import local_session

CASES = (
    "read", "aggregate", "export", "sql-count", "filter", "sync-iceberg", "compact", "prune", "segments", "plan",
    "stream-trigger", "small",
)  # fmt: skip
# cases that also measure Spark's Kafka source
BESIDE = frozenset({"read", "aggregate", "export", "sql-count", "filter", "sync-iceberg"})


def main() -> None:
    """Fill the topics, and run the selected cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, default=400_000)
    parser.add_argument("--segments", type=int, default=5_000)
    parser.add_argument("--partitions", type=int, default=2_000, help="of 100 segments each, which are planned")
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=CASES, action="append")
    parser.add_argument("--alone", action="store_true", help="without Spark's Kafka source and its broker")
    parser.add_argument("--quick", action="store_true", help="tiny inputs, one round: shows that everything works")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of tables")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.keys, options.segments, options.partitions, options.rounds = 40_000, 8_000, 50, 20, 1
    reporter = Reporter(as_json=options.json)
    reporter.machine(Machine.now(("stratalog", "pyspark", "pyarrow", "pyiceberg")))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        Run(Path(folder), options, reporter, stack).run(frozenset(options.only or CASES))


@dataclass
class Run:
    """One run of the benchmark.

    Attributes:
        scratch: folder of all data.
        options: the parsed command line.
        reporter: prints the results.
        stack: closes the broker and the Spark session at its exit.
        peer: Spark's Kafka source; None if it is missing.
        rows: number of records of the topic in ``large``.
    """

    scratch: Path
    options: argparse.Namespace
    reporter: Reporter
    stack: ExitStack
    peer: Peer | None = None
    rows: int = 0

    def run(self, selected: frozenset[str]) -> None:
        """Fill the large topic, and run the cases with these names."""
        self.rows = fill_large(self.large, self.options.rows)
        if BESIDE & selected and not self.options.alone:
            self.peer = self._start_broker()
        if {"read", "aggregate", "export"} & selected:
            cases.check(self.session, self.large, self.peer, self.rows)
        for case in CASES:
            if case in selected:
                getattr(self, "_" + case.replace("-", "_"))()

    @property
    def large(self) -> Path:
        """The directory of the topic that most cases read."""
        return self.scratch / "large"

    @cached_property
    def tier(self) -> str:
        """URI of a tier with the records of ``large``. Checks on first use that all sides of the queries agree."""
        tier = tier_of(self.large, self.scratch / "large-copy", self.scratch / "large-tier")
        queries.check(self.session, tier, self.peer, self.rows)
        return tier

    @cached_property
    def session(self) -> Any:
        """The Spark session of all cases. Its type is Any, because pyspark is optional."""
        settings = {"spark_log_level": "ERROR", "spark_ui_showConsoleProgress": "false", "spark_ui_enabled": "false"}
        # The default memory is too small for the concurrent fetches of the Kafka source.
        settings["spark_driver_memory"] = "4g"
        # With the default of 200, tasks write 200 files for a sum of 10,000 rows.
        settings["spark_sql_shuffle_partitions"] = "8"
        if self.options.quick:  # a JVM that starts in half the time, but runs slowly later
            settings["spark_driver_extraJavaOptions"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        if self.peer:
            settings["spark_jars"] = self.peer.jars
        session = local_session(self.options.master, **settings)
        self.stack.callback(session.stop)
        return session

    def _measure(self, name: str, title: str, sides: cases.Sides) -> None:
        samples = sample_in_turns(sides, self.options.rounds)
        self.reporter.result(result_of(f"spark/{name}", title, self.rows, samples))

    def _start_broker(self) -> Peer | None:
        """Start the broker, and return the peer that reads from it. If that fails, report the reason and return None."""
        place = self.scratch / "broker"
        place.mkdir()
        try:
            return self.stack.enter_context(broker(self.large, place))
        except JavaMissingError as error:
            self.reporter.missing([str(error)])
            return None

    # --- the methods of the cases, called by name --------------------------------------------------------------------

    def _read(self) -> None:
        self._measure("read", "all columns to noop", cases.reading(self.session, self.large, self.peer))

    def _aggregate(self) -> None:
        self._measure("aggregate", "bytes by key, in Python", cases.aggregating(self.session, self.large, self.peer))

    def _export(self) -> None:
        self._measure("export", "to Parquet", cases.exporting(self.session, self.large, self.peer, self.scratch))

    def _sql_count(self) -> None:
        sides = queries.counting(self.session, self.tier, self.peer, self.rows)
        self._measure("sql-count", "count of the second half of the time, in SQL", sides)

    def _filter(self) -> None:
        sides = queries.filtering(self.session, self.tier, self.peer, self.rows)
        self._measure("filter", "values of 1 % of the time, to noop", sides)
        for side, size in queries.filtered_bytes(self.session, self.tier, self.rows).items():
            self.reporter.number("spark/filter", f"bytes that are read: {side}", size, "bytes")

    def _sync_iceberg(self) -> None:
        sides = lakes.syncing(self.session, self.large, self.peer, self.scratch)
        self._measure("sync-iceberg", "to a new Iceberg table; beside it, pyiceberg in foreachBatch", sides)
        lakes.check(self.peer, self.scratch, self.rows)

    def _prune(self) -> None:
        share = cases.pruning(self.large, self.rows)
        self.reporter.number("prune", "1 % of the time: share of the bytes that is read", 100 * share, "%")

    def _stream_trigger(self) -> None:
        report_triggers(self.reporter, self.scratch / "triggers", 20 if self.options.quick else 500)

    def _small(self) -> None:
        self.session.stop()  # the workers of this session have no memory limit
        size = Size(48 << 20, 2000) if self.options.quick else Size(64 << 20, 256)
        compact_small(self.reporter, self.scratch, self.options.master, size)

    def _segments(self) -> None:
        small = self.scratch / "small"
        segments = fill_small(small, self.options.segments)
        wall, cpu, tasks = cases.planning(small)
        self.reporter.number("spark/segments", f"planning {segments:,} segments: wall time", wall, "s")
        self.reporter.number("spark/segments", f"planning {segments:,} segments: processor time", cpu, "s")
        self.reporter.number("spark/segments", f"planning {segments:,} segments", tasks, "tasks")
        samples = sample_in_turns(
            {"stratalog": lambda: cases.noop(cases.load(self.session, small))}, self.options.rounds
        )
        self.reporter.result(result_of("spark/segments", "segments of 100 KB to noop", segments, samples))

    def _plan(self) -> None:
        tier, partitions = self.scratch / "planned-tier", self.options.partitions
        fill_tier(tier, partitions)
        title = f"plan of {partitions * SEGMENTS:,} segments in {partitions:,} partitions of a tier"
        figures = measure_plan(tier)
        self.reporter.number("spark/plan", f"{title}: processor time", figures["cpu_s"], "s")
        self.reporter.number("spark/plan", f"{title}: peak memory", figures["peak_mib"], "MiB")
        self.reporter.number("spark/plan", f"{title}: messages to the tasks", figures["message_mib"], "MiB")
        self.reporter.number("spark/plan", title, figures["tasks"], "tasks")

    def _compact(self) -> None:
        """Measure compaction, with new copies of the data in each round."""
        folder, tier = self.scratch / "keys", self.scratch / "keys-tier"
        fill_keys(folder, self.options.rows, self.options.keys)
        tier_of(folder, self.scratch / "copy", tier)
        figures: list[float] = []
        samples: dict[str, list[Sample]] = {}
        for turn in range((self.options.rounds + 1) // 2 + 1):
            for name, call in cases.compacting(self.session, folder, tier, self.scratch, figures).items():
                call_sample = sample(call)
                if turn:  # the first round starts the Python workers, and does not count
                    samples.setdefault(name, []).append(call_sample)
        self.reporter.result(result_of("spark/compact", "compact", self.options.rows, samples))
        self.reporter.number("spark/compact", "messages between tasks, for each record", figures[0], "bytes")
        self.reporter.number("spark/compact", "records that are left", figures[1], "records")
        shutil.rmtree(tier)


if __name__ == "__main__":
    main()
