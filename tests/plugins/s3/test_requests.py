"""Number of requests of a tier on S3: for a segment, for a GiB, and in an idle hour.

``stratalog tier cost`` uses these numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stratalog.engine.engine import Engine
from stratalog.engine.open_engine import open_engine
from stratalog.env.clock import ManualClock
from stratalog.model.records import Record
from stratalog.spi import Buffer, Env, ObjectStore
from stratalog.testing.s3 import LocalS3
from stratalog.tier.read.remote_segment import RemoteSegment
from stratalog.tier.upkeep.cost import COMMIT_READS, COMMIT_WRITES, bill, upload_writes
from stratalog_s3.settings import MIN_PART_BYTES, S3Section

OpenStore = Callable[..., ObjectStore]
WRITES = frozenset({"PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "ListObjectsV2"})
SETTLED_HOURS = 2  # longer than tier.history.ms, so that old roots are deleted
CONFIG = {"remote.storage.enable": True, "retention.ms": -1, "segment.bytes": 1 << 20}


@pytest.fixture
def clock() -> ManualClock:
    # Starts at the real time, which determines the age of objects on the server.
    return ManualClock(Env().clock.now_ms())


@pytest.fixture
def engine(tmp_path: Path, local_s3: LocalS3, s3_tier: str, clock: ManualClock) -> Iterator[Engine]:
    env = Env(clock=clock)
    with open_engine(tmp_path, tier=s3_tier, tier_options=local_s3.options, env=env) as new_engine:
        new_engine.create_topic("orders", config=CONFIG)
        yield new_engine


def offload_one(engine: Engine) -> None:
    log = engine.log("orders", 0)
    log.append([Record(key=b"k", value=bytes(1000), timestamp_ms=1_000)])
    log.roll()
    engine.offload()


def writes(counts: Counter[str]) -> int:
    """Return the number of requests in the more expensive class: writes and listings."""
    return sum(count for name, count in counts.items() if name in WRITES)


@pytest.mark.long
def test_a_segment_costs_its_upload_and_a_commit(engine: Engine, local_s3: LocalS3) -> None:
    for _ in range(3):
        offload_one(engine)
    local_s3.counts.clear()
    offload_one(engine)
    assert writes(local_s3.counts) == upload_writes(1000, 64 << 20) + COMMIT_WRITES
    assert local_s3.counts["GetObject"] == COMMIT_READS


def test_the_bill_of_a_tier_is_what_the_server_was_asked(engine: Engine, local_s3: LocalS3) -> None:
    for _ in range(3):
        offload_one(engine)
    local_s3.counts.clear()
    for _ in range(4):
        offload_one(engine)
    log = engine.log("orders", 0)
    assert engine.tier is not None
    assert log.topic_id is not None
    segments = list(engine.tier.log(log.name, log.topic_id).view().segments)
    lately = [segment.entry for segment in segments[-4:] if isinstance(segment, RemoteSegment)]
    assert bill(lately, 7).writes == writes(local_s3.counts)


def test_an_idle_hour_costs_no_request(engine: Engine, local_s3: LocalS3, clock: ManualClock) -> None:
    for _ in range(2):
        offload_one(engine)
    for _ in range(2 * SETTLED_HOURS):  # until old roots have been collected
        clock.advance_ms(3_600_000)
        engine.run_duties()
    local_s3.counts.clear()
    for _ in range(60):
        clock.advance_ms(60_000)
        engine.run_duties()
    assert local_s3.counts == Counter()


class Zeros:
    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        for start in range(0, self.size_bytes, chunk_bytes):
            yield bytes(min(chunk_bytes, self.size_bytes - start))


@pytest.mark.long
def test_a_segment_of_sixteen_parts_is_at_most_21_writes(
    open_store: OpenStore, local_s3: LocalS3, s3_tier: str, deadline_ns: int
) -> None:
    """This is the number for 1 GiB in parts of 64 MiB. Here, the parts are as small as S3 allows."""
    store = open_store(s3_tier, local_s3.options, section=S3Section(part_bytes=MIN_PART_BYTES))
    store.list("", deadline_ns=deadline_ns)
    local_s3.counts.clear()
    store.put_file("large", Zeros(16 * MIN_PART_BYTES), deadline_ns=deadline_ns)
    assert writes(local_s3.counts) == upload_writes(16 * MIN_PART_BYTES, MIN_PART_BYTES) == upload_writes(1 << 30)
    assert upload_writes(1 << 30) + COMMIT_WRITES <= 21
