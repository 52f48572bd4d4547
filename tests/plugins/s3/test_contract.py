from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from s3_uploads import check_unfinished, left_upload
from stratalog import Engine, Record, open_engine
from stratalog.env.clock import ManualClock
from stratalog.spi import BytesSource, Env, ObjectStore
from stratalog.testing.contracts.object_store import ObjectStoreContract
from stratalog.testing.s3 import LocalS3
from stratalog.tier.upkeep.collect import GRACE_MS

OpenStore = Callable[..., ObjectStore]


class TestS3(ObjectStoreContract):
    @pytest.fixture
    def store(self, open_store: OpenStore, local_s3: LocalS3, s3_tier: str) -> ObjectStore:
        return open_store(s3_tier, local_s3.options)


def test_uploads_without_an_end_are_reported_and_aborted(
    open_store: OpenStore, local_s3: LocalS3, s3_tier: str, deadline_ns: int
) -> None:
    check_unfinished(open_store(s3_tier, local_s3.options), s3_tier, local_s3.options, deadline_ns)


@pytest.mark.long
def test_an_engine_that_is_started_again_aborts_what_a_crash_left(
    tmp_path: Path, local_s3: LocalS3, s3_tier: str, open_store: OpenStore, deadline_ns: int
) -> None:
    """The engine deletes objects without a root and aborts unfinished uploads only after an hour.

    A younger upload of the same leader epoch may be in progress.
    """
    clock = ManualClock(Env().clock.now_ms())
    store = open_store(s3_tier, local_s3.options)

    def opened() -> Engine:
        return open_engine(tmp_path, tier=s3_tier, tier_options=local_s3.options, env=Env(clock=clock))

    def moved(engine: Engine) -> None:
        engine.log("t", 0).append([Record(value=b"x" * 100)])
        engine.log("t", 0).roll()
        engine.offload()

    with opened() as engine:
        engine.create_topic("t", config={"retention.ms": -1})
        moved(engine)
        (committed_key,) = [info.key for info in store.list("", deadline_ns=deadline_ns) if "/segments/" in info.key]
    orphan_key = f"{committed_key.rpartition('/')[0]}/{1:020d}-0-{7:032x}.seg"
    store.put_file(orphan_key, BytesSource(b"whole, and no root came"), deadline_ns=deadline_ns)
    with opened() as engine:
        moved(engine)
        engine.collect()
        assert orphan_key in {info.key for info in store.list("", deadline_ns=deadline_ns)}
        left_upload(s3_tier, local_s3.options, orphan_key)
        clock.advance_ms(GRACE_MS + 60_000)
        assert engine.collect().orphans == 2
        assert orphan_key not in {info.key for info in store.list("", deadline_ns=deadline_ns)}
        assert store.unfinished("", deadline_ns=deadline_ns) == []
        assert len(list(engine.log("t", 0).records())) == 2


class TestFile(ObjectStoreContract):
    @pytest.fixture
    def store(self, open_store: OpenStore, tmp_path: Path) -> ObjectStore:
        return open_store(f"file://{tmp_path}")


class TestMemory(ObjectStoreContract):
    @pytest.fixture
    def store(self, open_store: OpenStore) -> ObjectStore:
        return open_store(f"memory://{uuid.uuid4().hex}/prefix")
