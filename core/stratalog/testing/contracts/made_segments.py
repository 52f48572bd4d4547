"""Closed segments with made-up contents, for the contract tests of tier layouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.offsets import EpochEntry
from stratalog.model.segment_info import FileKind, SegmentInfo
from stratalog.spi.layouts import SegmentSource
from stratalog.spi.objects import ByteSource, BytesSource

LOG: Final = TopicPartition("orders", 0)
TOPIC_ID: Final = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")


def made_segment(
    base_offset: int,
    end_offset: int,
    *,
    data: bytes | None = None,
    files: Mapping[FileKind, bytes] | None = None,
    leader_epoch: int = 0,
    max_timestamp_ms: int = 1_000,
    log: TopicPartition = LOG,
    topic_id: TopicId = TOPIC_ID,
) -> SegmentSource:
    """Return a closed segment with ``data``, or with bytes that name its offsets; a tier does not parse them."""
    content = f"[{base_offset}, {end_offset}) ".encode() * 8 if data is None else data
    info = SegmentInfo(
        log,
        topic_id,
        base_offset,
        end_offset,
        len(content),
        max_timestamp_ms,
        modified_ms=2_000,
        leader_epochs=(EpochEntry(leader_epoch, base_offset),),
    )
    return SegmentSource(info, BytesSource(content), {FileKind.OFFSET_INDEX: b"index"} if files is None else files)


def source_bytes(source: ByteSource) -> bytes:
    """Return all bytes of a source."""
    return b"".join(source.chunks(1 << 20))
