"""The plan of a read of a tier with very many segments.

The manifests are real. Of the segments, only the data that a plan reads exists.

``python -m spark_parts.plans URI`` measures one plan, and prints the figures as JSON.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from harness.memory import peak_of
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import EpochEntry
from stratalog.model.segment_info import FileKind, ObjectSlice, SegmentInfo
from stratalog.producers.snapshot import encode_snapshot
from stratalog.spi.layouts import StoredSegment
from stratalog.tier.manifest.entry_tree import next_root
from stratalog.tier.manifest.pages import PageCache, Pages
from stratalog.tier.manifest.root import Change, ChangeKind
from stratalog.tier.manifest.root_codec import encode_root
from stratalog.tier.store.object_keys import log_prefix, manifest_key
from stratalog_spark.options.read_options import Options
from stratalog_spark.source import BatchReader

SEGMENTS: Final = 100  # number of segments of a partition
_TOPIC: Final = "planned"
_TOPIC_ID: Final = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")
_OFFSETS: Final = 1_000_000  # number of offsets of a segment
_FIRST_MS: Final = 1_790_000_000_000
_SEGMENT_MS: Final = 60_000
_SEGMENT_BYTES: Final = 100 << 20  # smaller than a task, so that no segment is split; a split would read the index
_SNAPSHOT: Final = encode_snapshot([])
_FILES: Final = {
    FileKind.LOG: _SEGMENT_BYTES,
    FileKind.OFFSET_INDEX: 200 << 10,
    FileKind.TIME_INDEX: 300 << 10,
    FileKind.SNAPSHOT: len(_SNAPSHOT),
    FileKind.LEADER_EPOCHS: 8,
}


def fill_tier(folder: Path, partitions: int) -> None:
    """Make a tier with partitions of 100 segments each.

    Manifests are complete. The only other object of a partition is the producer snapshot of the last segment.
    """
    chance = random.Random(5)  # noqa: S311 - the same in every run
    for partition in range(partitions):
        log = TopicPartition(_TOPIC, partition)
        entries = tuple(_entry(log, number, chance) for number in range(SEGMENTS))
        end = entries[-1].info.end_offset
        root = next_root(
            None,
            Change(kind=ChangeKind.OFFLOAD, reason="a benchmark", log_start=0, high_watermark=end, added=entries),
            pages=Pages(None, log, _TOPIC_ID, PageCache(), limit_bytes=0),  # type: ignore[arg-type] # a root of 100 entries has none
            log=log,
            topic_id=_TOPIC_ID,
            commit_id=f"{chance.getrandbits(128):032x}",
            leader_epoch=0,
            created_ms=_FIRST_MS,
        )
        snapshot = entries[-1].slices[
            FileKind.SNAPSHOT
        ]  # a reader looks for open transactions in the last segment's snapshot
        for key, position, data in (
            (manifest_key(root.prefix, root.version), 0, encode_root(root)),
            (snapshot.key, snapshot.position, _SNAPSHOT),
        ):
            path = folder / key
            path.parent.mkdir(parents=True)
            with path.open("wb") as file:
                file.seek(position)  # a sparse file
                file.write(data)


def _entry(log: TopicPartition, number: int, chance: random.Random) -> StoredSegment:
    base, time_ms = number * _OFFSETS, _FIRST_MS + number * _SEGMENT_MS
    info = SegmentInfo(
        log, _TOPIC_ID, base, base + _OFFSETS, _SEGMENT_BYTES, time_ms + _SEGMENT_MS - 1, time_ms,
        (EpochEntry(0, base),), _OFFSETS, time_ms,
    )  # fmt: skip
    key = f"{log_prefix(log, _TOPIC_ID)}segments/{base:020d}-0-{chance.getrandbits(128):032x}.seg"
    slices, position = dict[FileKind, ObjectSlice](), 0
    for kind, size in _FILES.items():
        slices[kind] = ObjectSlice(key, position, size)
        position += size
    hashes = {str(kind): f"{chance.getrandbits(256):064x}" for kind in _FILES if kind is not FileKind.LOG}
    hashes[str(FileKind.SNAPSHOT)] = hashlib.sha256(_SNAPSHOT).hexdigest()
    return StoredSegment(info, "single@1", slices, f"{chance.getrandbits(256):064x}", (), {"sha256": hashes})


def measure_plan(folder: Path) -> dict[str, float]:
    """Plan a read of the whole tier as Spark's driver does, in a separate process.

    Returns:
        ``cpu_s``, ``peak_mib`` (growth of memory after the imports), ``tasks``, and ``message_mib`` (size of the
        messages to the tasks).
    """
    command, place = [sys.executable, "-m", __spec__.name, folder.as_uri()], Path(__file__).parent.parent
    process = subprocess.run(command, cwd=place, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(process.stdout)
    return figures


def _measure(uri: str) -> dict[str, float]:
    reader = BatchReader(Options({"path": uri, "subscribe": _TOPIC}, streaming=False), ("offset",))
    began = time.process_time()
    peak = peak_of(reader.partitions)
    cpu_s = time.process_time() - began
    size = sum(len(partition.value) for partition in peak.result)
    return {
        "cpu_s": cpu_s,
        "peak_mib": peak.bytes / (1 << 20),
        "tasks": len(peak.result),
        "message_mib": size / (1 << 20),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_measure(sys.argv[1])))
