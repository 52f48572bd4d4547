"""Spark on a topic: reading, aggregating in Python, exporting, compacting, a hundredth of the time, very many segments.

Usage: python benchmarks/spark.py [--rows N] [--keys N] [--segments N] [--master local[2,4]] [--rounds N] [--only CASE] [--alone] [--quick]

Needs the extra ``spark``. Beside it, in the same session and in turns, stands Spark's own Kafka source with a tuned consumer,
on a real broker with the same files (a JDK and Maven; without them it is said to be missing), and for compaction the engine.
The last case compacts with workers whose memory the system bounds, at a tenth of the topic's keys (Linux).
Wall seconds count; processor seconds are those of the driver, the JVM and the Python workers, not of the broker.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from harness.java import JavaMissingError
from spark_parts import cases
from spark_parts.data import fill_keys, fill_large, fill_small, tier_of
from spark_parts.measure import Sample, in_turns, sample, tell
from spark_parts.peer import Peer, broker
from spark_parts.small import Size, compact_small
from spark_parts.triggers import tell_triggers
from stratalog_spark import local_session

CASES = ("read", "aggregate", "export", "compact", "prune", "segments", "stream-trigger", "small")


def main() -> None:
    """Fill directories, read them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--segments", type=int, default=10_000)
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=CASES, action="append")
    parser.add_argument("--alone", action="store_true", help="without Spark's Kafka source and its broker")
    parser.add_argument("--quick", action="store_true", help="tiny inputs, one round: shows that everything works")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rows, chosen.keys, chosen.segments, chosen.rounds = 40_000, 8_000, 50, 1
    wanted = tuple(chosen.only or CASES)
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}, {chosen.master}, {chosen.rounds} rounds")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        run(Path(folder), chosen, wanted, opened)


def run(scratch: Path, chosen: argparse.Namespace, wanted: tuple[str, ...], opened: ExitStack) -> None:
    """All cases that were asked for."""
    large = scratch / "large"
    rows = fill_large(large, chosen.rows)
    beside = {"read", "aggregate", "export"} & {*wanted} and not chosen.alone
    peer = started(large, scratch, opened) if beside else None
    settings = {"spark_log_level": "ERROR", "spark_ui_showConsoleProgress": "false", "spark_ui_enabled": "false"}
    settings["spark_driver_memory"] = "4g"  # the Kafka source's fetches, of all tasks at a time, do not fit the default
    settings["spark_sql_shuffle_partitions"] = "8"  # otherwise tasks write 200 files for a sum of 10,000 rows
    session = local_session(chosen.master, **settings, **({"spark_jars": peer.jars} if peer else {}))
    opened.callback(session.stop)
    if {"read", "aggregate", "export"} & {*wanted}:
        cases.check(session, large, peer, rows)
    if "read" in wanted:
        tell("all columns to noop", rows, in_turns(cases.reading(session, large, peer), chosen.rounds))
    if "aggregate" in wanted:
        tell("bytes by key, in Python", rows, in_turns(cases.aggregating(session, large, peer), chosen.rounds))
    if "export" in wanted:
        tell("to Parquet", rows, in_turns(cases.exporting(session, large, peer, scratch), chosen.rounds))
    if "prune" in wanted:
        print(f"\n1 % of the time: {cases.pruning(large, rows):.2%} of the bytes are read")
    if "compact" in wanted:
        compact(session, scratch, chosen)
    if "segments" in wanted:
        small = scratch / "small"
        segments = fill_small(small, chosen.segments)
        wall, cpu, tasks = cases.planning(small)
        print(f"\nplanning {segments:,} segments: {wall:.2f} s, cpu {cpu:.2f} s, {tasks} tasks")
        sides = {"stratalog": lambda: cases.noop(cases.load(session, small))}
        tell("segments of 100 KB to noop", segments, in_turns(sides, chosen.rounds), "segments")

    if "stream-trigger" in wanted:
        tell_triggers(scratch / "triggers", 20 if chosen.quick else 500)

    if "small" in wanted:
        session.stop()  # its workers have all the memory that there is
        size = Size(48 << 20, 2000) if chosen.quick else Size(64 << 20, 256)
        print(f"\ncompact with small workers: {compact_small(scratch, chosen.master, size)}")


def started(large: Path, scratch: Path, opened: ExitStack) -> Peer | None:
    """The broker, or None where it cannot be had, which is said."""
    place = scratch / "broker"
    place.mkdir()
    try:
        return opened.enter_context(broker(large, place))
    except JavaMissingError as error:
        print(f"missing: {error}")
        return None


def compact(session: object, scratch: Path, chosen: argparse.Namespace) -> None:
    """Each round compacts fresh copies."""
    folder, tier = scratch / "keys", scratch / "keys-tier"
    fill_keys(folder, chosen.rows, chosen.keys)
    tier_of(folder, scratch / "copy", tier)
    told: list[float] = []
    found: dict[str, list[Sample]] = {}
    for turn in range((chosen.rounds + 1) // 2 + 1):
        for name, call in cases.compacting(session, folder, tier, scratch, told).items():
            taken = sample(call)
            if turn:  # the first one starts the Python workers
                found.setdefault(name, []).append(taken)
    tell("compact", chosen.rows, found)
    print(f"  {told[0]:.1f} bytes shuffled a record, where they are; {told[1]:,.0f} records are left")
    shutil.rmtree(tier)


if __name__ == "__main__":
    main()
