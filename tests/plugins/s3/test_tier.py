"""A whole tier on each store of the plugin: probe, offload, reads, and fencing."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.errors import FencedEpochError
from stratalog.spi import FileKind, ObjectStore
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID, made_segment
from stratalog.testing.s3 import LocalS3
from stratalog.tier.tier import Tier
from stratalog_formats.layouts.single import SingleLayout
from tier_bed import TierBed

OpenStore = Callable[..., ObjectStore]
DATA = bytes(range(256)) * 200
FILES = {FileKind.OFFSET_INDEX: b"offsets", FileKind.TIME_INDEX: b"times"}


@pytest.fixture(params=["s3", "file", "memory"])
def opener(
    request: pytest.FixtureRequest, open_store: OpenStore, local_s3: LocalS3, s3_tier: str, tmp_path: Path
) -> Callable[..., Tier]:
    """Return a function that opens tiers at one location, each with its own store."""
    uri = {"s3": s3_tier, "file": f"file://{tmp_path}", "memory": f"memory://{uuid.uuid4().hex}"}[request.param]
    bed = TierBed(layout=SingleLayout(4096))

    def open_(*, read_only: bool = False) -> Tier:
        options = local_s3.options if request.param == "s3" else {}
        store = open_store(uri, options, env=bed.env(), read_only=read_only)
        return bed.open(store, read_only=read_only)

    return open_


def offload(tier: Tier, start: int, end: int, *, leader_epoch: int = 0) -> None:
    tier.log(LOG, TOPIC_ID).offload(
        [made_segment(start, end, data=DATA, files=FILES, leader_epoch=leader_epoch)],
        layout="pair",
        leader_epoch=leader_epoch,
        log_start=0,
        high_watermark=end,
    )


def test_the_store_passes_the_probe(opener: Callable[..., Tier], caplog: pytest.LogCaptureFixture) -> None:
    with opener() as tier:
        assert (tier.availability.shared, tier.availability.reason) == (True, "")
    assert "single-writer" not in caplog.text


def test_one_engine_reads_the_segments_that_another_offloads(opener: Callable[..., Tier]) -> None:
    with opener() as writer:
        offload(writer, 0, 10)
        offload(writer, 10, 25)
    with opener(read_only=True) as reader:
        view = reader.log(LOG, TOPIC_ID).view()
        assert [(segment.base_offset, segment.end_offset) for segment in view.segments] == [(0, 10), (10, 25)]
        for segment in view.segments:
            assert segment.read(100, 5_000) == DATA[100:5_100]


@pytest.mark.long
def test_a_writer_of_an_older_epoch_is_fenced(opener: Callable[..., Tier]) -> None:
    with opener() as old, opener() as new:
        offload(old, 0, 10)
        offload(new, 10, 20, leader_epoch=1)
        with pytest.raises(FencedEpochError):
            offload(old, 10, 20)
        assert new.log(LOG, TOPIC_ID).view().end_offset == 20
