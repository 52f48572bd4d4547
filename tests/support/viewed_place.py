"""A log directory with a tier, with contents for each view of the command line and the console."""

from __future__ import annotations

from pathlib import Path

from log_bed import LogBed
from stratalog import Record, TopicPartition, open_engine
from stratalog.registry.registry import Registry

T0_MS = 1_700_000_000_000
HOSTILE = b"<script>alert('key')</script>"
"""Bytes that a page must not show as markup."""


def make_place(folder: Path) -> tuple[str, str]:
    """Write the directory and its tier below ``folder``; return the path and the URI.

    ``orders`` has two partitions in both tiers: deleted, evicted, local and active segments. ``profiles`` is compacted
    and has hostile keys. ``payments`` has an open transaction. Group ``billing`` lags behind.
    """
    data, uri = folder / "data", (folder / "tier").as_uri()
    data.mkdir(parents=True)
    (folder / "tier").mkdir()
    with open_engine(data, tier=uri) as engine:
        engine.create_topic(
            "orders",
            partitions=2,
            config={"retention.ms": -1, "segment.bytes": 16_384, "local.retention.bytes": 60_000},
        )
        engine.create_topic(
            "profiles", config={"cleanup.policy": "compact", "remote.storage.enable": False, "segment.bytes": 700_000}
        )
        engine.create_topic("payments", config={"retention.ms": -1, "remote.storage.enable": False})
        for partition in range(2):
            log = engine.log("orders", partition)
            for number in range(40 - 10 * partition):
                at_ms = T0_MS + number * 60_000
                value = f'{{"order":{number},"note":"{"x" * 2500}"}}'.encode()
                log.append([Record(key=b"%d" % number, value=value, timestamp_ms=at_ms)])
        engine.offload()
        for partition in range(2):
            engine.log("orders", partition).append([Record(key=b"late", value=b"late", timestamp_ms=T0_MS + 3_600_000)])
        engine.apply_retention()
        profiles = engine.log("profiles", 0)
        for number in range(60):
            profiles.append([Record(key=b"%d" % (number % 7), value=b"p" * 40_000, timestamp_ms=T0_MS + number * 1000)])
        profiles.append(
            [Record(key=HOSTILE, value=HOSTILE * 3, headers=((HOSTILE.decode(), HOSTILE),), timestamp_ms=T0_MS)]
        )
        profiles.append([Record(key=b"binary", value=b"\xff\xfe\x00binary", timestamp_ms=T0_MS)])
        profiles.append([Record(key=b"large", value=b"L" * 600_000, timestamp_ms=T0_MS)])
        with LogBed(folder / "bed", Registry.load()) as bed:
            batch = bed.batch(
                0, [Record(key=b"k", value=b"v", timestamp_ms=T0_MS)], producer=(7, 0, 0), transactional=True
            )
        engine.log("payments", 0).append_as_leader(batch)
        engine.alter_group_offsets("billing", {TopicPartition("orders", 0): 30, TopicPartition("orders", 1): 5})
    return str(data), uri
