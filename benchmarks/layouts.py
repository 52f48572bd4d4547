"""Tier layouts: bytes in the bucket, the cost of an offload, a count by key from the bucket, and a search for a key.

Usage: python benchmarks/layouts.py [--rows N] [--rounds N] [--quick] [--json]

Needs the extra ``sql``. The tier of the engine is a folder. Each sample of an offload uses a new topic. Processor
seconds are those of this process.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import duckdb
import pyarrow as pa

import stratalog
from harness import Machine, Reporter, Sample
from spark_parts.measure import result_of, sample, sample_in_turns
from stratalog import Engine, Record

LAYOUTS: Final = ("single", "plain", "chunked", "parquet")
CODECS: Final = ("uncompressed", "zstd")
KEYS: Final = 10_000
BATCH: Final = 500  # number of records in a batch
SEARCHED_SEGMENTS: Final = 50
SEARCHED: Final[Mapping[str, Mapping[str, object]]] = {"without": {}, "bloom": {"index.extra": "bloom"}}
WANTED: Final = b"customer-x"
UNCACHED: Final = {"limits.chunk.cache.bytes": 0, "limits.index.cache.bytes": 0, "limits.prefetch.bytes": 0}
SEGMENT_BYTES: Final = 64 << 20
_QUERY: Final = "select key, count(*) as records from {} group by key"


def main(arguments: list[str] | None = None) -> None:
    """Fill topics, offload them, and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="tiny inputs, one round: shows that everything works")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rows, options.rounds = 5_000, 1
    reporter = Reporter(as_json=options.json)
    reporter.machine(Machine.now(("stratalog", "duckdb", "pyarrow")))
    records = list(make_records(options.rows))
    for codec in CODECS:
        with tempfile.TemporaryDirectory() as folder:
            run_codec(codec, records, Path(folder), options.rounds, reporter)
    with tempfile.TemporaryDirectory() as folder:
        run_search(records, Path(folder), options.rounds, reporter)


def make_records(rows: int) -> Iterator[Record]:
    """Yield ``rows`` records; each value is a JSON object of about 200 bytes."""
    chance = random.Random(11)  # noqa: S311 - the same in every run
    for number in range(rows):
        value = {
            "order": number,
            "customer": f"customer-{chance.randrange(KEYS):05d}",
            "amount": round(chance.expovariate(0.01), 2),
            "currency": chance.choice(("EUR", "USD", "CHF")),
            "note": f"{chance.getrandbits(160):x}",
            "state": chance.choice(("new", "paid", "sent", "returned")),
        }
        yield Record(
            timestamp_ms=1_700_000_000_000 + number * 3,
            key=str(value["customer"]).encode(),
            value=json.dumps(value).encode(),
        )


def run_codec(codec: str, records: list[Record], scratch: Path, rounds: int, reporter: Reporter) -> None:
    """Report all cases for producers that compress with ``codec``."""
    tier = scratch / "tier"
    tier.mkdir()
    with stratalog.open_engine(scratch / "data", tier=f"file://{tier}") as engine:
        offloads: dict[str, list[Sample]] = {layout: [] for layout in LAYOUTS}
        for turn in range(rounds + 1):
            for layout in LAYOUTS:
                fill(engine, f"{layout}-{turn}", layout, codec, records)
                offload_sample = sample(engine.offload)
                if turn:
                    offloads[layout].append(offload_sample)
        size_bytes = sum(file.stat().st_size for file in (scratch / "data" / f"{LAYOUTS[0]}-0-0").glob("*.log"))
    for layout in LAYOUTS:
        stored_bytes = sum(file.stat().st_size for file in tier.glob(f"{layout}-0-*/*/segments/*"))
        title = f"offload of {len(records):,} records, {codec}: {layout} stores {stored_bytes / 1e6:,.1f} MB"
        name, samples = f"layouts/offload-{codec}-{layout}", {layout: offloads[layout]}
        reporter.result(result_of(name, title, len(records), samples, size_bytes))
    counts = dict(sides(tier))
    for name, count in counts.items():
        row_count = count()
        if row_count != len(records):
            raise ValueError(f"{name} counted {row_count} of {len(records)} records")
    title = f"count {len(records):,} records by key in the bucket, {codec}"
    samples = sample_in_turns(counts, rounds)
    reporter.result(result_of(f"layouts/count-{codec}", title, len(records), samples, size_bytes))


def run_search(records: list[Record], scratch: Path, rounds: int, reporter: Reporter) -> None:
    """Report a search for one key in a tier without caches, with and without the extra index ``bloom``."""
    tier = scratch / "tier"
    tier.mkdir()
    segment_bytes = max(sum(len(record.value or b"") for record in records) // SEARCHED_SEGMENTS, 1 << 18)
    with stratalog.open_engine(scratch / "data", tier=f"file://{tier}", config=UNCACHED) as engine:
        for topic in ("without", "bloom"):
            config: dict[str, object] = {
                "segment.bytes": segment_bytes,
                "local.retention.bytes": 0,
                "remote.storage.enable": True,
            }
            fill(engine, topic, "single", "uncompressed", records, {**config, **SEARCHED[topic]})
            engine.log(topic, 0).append([Record(key=WANTED, value=b"found")])
            engine.log(topic, 0).roll()
        build_sample = sample(engine.make_extra_indexes)
        engine.offload()
        engine.apply_retention()
        sides = {topic: partial(search_key, engine, topic) for topic in ("bloom", "without")}
        read_bytes = {topic: search() for topic, search in sides.items()}
        samples = sample_in_turns(sides, rounds)
    title = (
        f"search for a key of one record among {len(records):,}: {read_bytes['bloom'] / 1e6:,.2f} MB read with bloom, "
        f"{read_bytes['without'] / 1e6:,.2f} MB without; building it took {build_sample.cpu_s:.2f} s"
    )
    reporter.result(result_of("layouts/search", title, len(records), samples, read_bytes["without"]))


def search_key(engine: Engine, topic: str) -> int:
    """Search for a key that exactly one record has, and return the bytes that were read from the store."""
    before = moved_bytes(engine)
    values = [record.value for record in engine.log(topic, 0).records_with_key(WANTED)]
    if values != [b"found"]:
        raise ValueError(f"{topic}: {len(values)} records were found")
    return moved_bytes(engine) - before


def moved_bytes(engine: Engine) -> int:
    """Return the bytes that an engine has read from its tier."""
    return int(
        sum(
            measurement.value
            for measurement in engine.metrics()
            if measurement.metric.name.endswith("tier_moved_bytes_total")
        )
    )


def fill(
    engine: Engine,
    topic: str,
    layout: str,
    codec: str,
    records: list[Record],
    settings: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Create a topic with these records in closed segments; ``settings`` are additional settings of the topic."""
    config = {
        "tier.layout": layout,
        "compression.type": codec,
        "segment.bytes": SEGMENT_BYTES,
        "retention.ms": -1,
        "max.message.bytes": 4 << 20,
        **settings,
    }
    engine.create_topic(topic, config=config)
    log = engine.log(topic, 0)
    for start in range(0, len(records), BATCH):
        log.append(records[start : start + BATCH])
    log.roll()


def sides(tier: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    """Yield the name and the function of each side; the function counts by key and returns the sum of the counts."""
    for layout in ("plain", "parquet"):
        yield f"stratalog and DuckDB over {layout}", partial(count_log, tier, layout)
    yield "DuckDB over the bucket", partial(count_rows, f"read_parquet('{tier}/parquet-0-*/*/segments/*.parquet')")


def count_log(tier: Path, layout: str) -> int:
    """Read the keys of a topic with ``layout`` as Arrow, count them by key, and return the sum of the counts."""
    with stratalog.open_reader(f"file://{tier}") as reader:
        table = reader.log(f"{layout}-0", 0).to_arrow(columns=["key"])
        return count_rows("found", table)


def count_rows(source: str, table: pa.Table | None = None) -> int:
    """Count the rows of ``source`` by key, and return the sum of the counts.

    ``source`` is a table expression of DuckDB. ``table`` is available in it by the name "found".
    """
    with duckdb.connect() as connection:
        if table is not None:
            connection.register("found", table)
        return sum(row[1] for row in connection.sql(_QUERY.format(source)).fetchall())


if __name__ == "__main__":
    main()
