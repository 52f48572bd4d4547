"""Segments for layouts that store uncompressed records: batches are decompressed, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stored_batches import records_in
from stratalog.model.batches import TimestampType
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.records import Record
from stratalog.model.segment_info import FileKind, SegmentInfo
from stratalog.segment.components import Components
from stratalog.segment.extra_index_file import pack_extras, unpack_extras
from stratalog.segment.framing import scan
from stratalog.segment.section_file import Identity
from stratalog.spi import BatchHeader, BytesSource, Codec
from stratalog.spi.indexes import IndexRole
from stratalog.spi.layouts import SegmentSource
from stratalog.testing.contracts.made_segments import OddChunks, source_bytes
from stratalog.tier.upload.uncompressed import uncompressed_source

CODECS = ["gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def encoded(components: Components) -> Callable[..., bytes]:
    def encode(base_offset: int, codec: str = "", magic: int = 2, **header: object) -> bytes:
        records = [Record(timestamp_ms=1_000 + n, key=b"k", value=b"some value " * 9) for n in range(5)]
        record_codec: Codec | None = components.codecs.by_name(codec) if codec else None
        batch_header = BatchHeader(base_offset=base_offset, **header)  # type: ignore[arg-type]  # as each test gives them
        return bytes(components.formats.of(magic, "", 0).encode(records, batch_header, record_codec, None))

    return encode


def source_of(data: bytes, files: dict[FileKind, bytes] | None = None) -> SegmentSource:
    info = SegmentInfo(
        TopicPartition("t", 0), TopicId("AAAAAAAAAAAAAAAAAAAAAQ"), 0, 100, len(data), 1_004, 2_000, records=10
    )
    return SegmentSource(info, BytesSource(data), files or {FileKind.TIME_INDEX: b"unchanged"})


@pytest.mark.parametrize("codec", CODECS)
def test_records_and_headers_stay_and_the_codec_goes(
    components: Components, encoded: Callable[..., bytes], codec: str
) -> None:
    producer = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 30, "transactional": True, "leader_epoch": 4}
    data = encoded(0, codec, **producer) + encoded(10) + encoded(20, codec)
    source = uncompressed_source(source_of(data), components)
    log = source_bytes(source.log)
    assert log == encoded(0, **producer) + encoded(10) + encoded(20)
    assert records_in(log, components) == records_in(data, components)
    assert (source.info.size_bytes, source.info.original_bytes, source.log.size_bytes) == (
        len(log),
        len(data),
        len(log),
    )
    assert replace(source.info, size_bytes=len(data), original_bytes=None) == source_of(data).info


def test_each_pass_over_pieces_of_any_size_gives_the_same_bytes(
    components: Components, encoded: Callable[..., bytes]
) -> None:
    data = encoded(0, "zstd") + encoded(10, "lz4")
    source = uncompressed_source(replace(source_of(data), log=OddChunks(data)), components)
    assert source_bytes(source.log) == source_bytes(source.log) == encoded(0) + encoded(10)
    assert all(len(piece) <= 50 for piece in source.log.chunks(50))


def test_the_offset_index_names_the_new_positions(components: Components, encoded: Callable[..., bytes]) -> None:
    data = b"".join(encoded(10 * n, "zstd") for n in range(40))
    source = uncompressed_source(source_of(data), components)
    log, entries = source_bytes(source.log), source.files[FileKind.OFFSET_INDEX]
    reader = components.indexes[IndexRole.OFFSET].reader(entries, 0)
    assert len(reader) >= 4
    starts = {
        batch.last_offset: batch.position
        for table in scan(components.formats, log, 0, len(log), check_crc=False).tables
        for batch in table
    }
    assert all(starts[reader[n].offset] == reader[n].position for n in range(len(reader)))
    assert source.files[FileKind.TIME_INDEX] == b"unchanged"


def test_a_segment_without_compressed_batches_is_the_same_source(
    components: Components, encoded: Callable[..., bytes]
) -> None:
    source = source_of(encoded(0) + encoded(10, timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=9))
    assert uncompressed_source(source, components) is source


def test_messages_of_older_formats_stay_as_they_are(components: Components, encoded: Callable[..., bytes]) -> None:
    source = source_of(encoded(0, "gzip", magic=1))
    assert uncompressed_source(source, components) is source


def test_what_cannot_be_decompressed_stays_as_it_is(components: Components, encoded: Callable[..., bytes]) -> None:
    broken = bytearray(encoded(10, "gzip"))
    broken[61:71] = bytes(10)
    data = encoded(0, "zstd") + bytes(broken) + encoded(20, "zstd") + b"no batch"
    source = uncompressed_source(source_of(data), components)
    assert source_bytes(source.log) == encoded(0) + bytes(broken) + encoded(20) + b"no batch"


def test_a_damaged_batch_does_not_get_a_crc_that_hides_the_damage(
    components: Components, encoded: Callable[..., bytes]
) -> None:
    sound = encoded(10, "snappy")
    for position in range(17, len(sound)):
        broken = bytearray(sound)
        broken[position] ^= 1
        data = encoded(0, "zstd") + bytes(broken)
        assert source_bytes(uncompressed_source(source_of(data), components).log) == encoded(0) + bytes(broken)


def test_extra_indexes_stay_with_their_segment(components: Components, encoded: Callable[..., bytes]) -> None:
    data = encoded(0, "zstd")
    extras_file = b"".join(map(bytes, pack_extras(Identity.in_tier(source_of(data).info), {"bloom@1": b"filter"})))
    source = uncompressed_source(source_of(data, {FileKind.EXTRA: extras_file}), components)
    extras = source.files[FileKind.EXTRA]

    def read(position: int, size_bytes: int) -> bytes:
        return extras[position : position + size_bytes]

    extra_indexes = unpack_extras(read, len(extras))
    assert extra_indexes is not None
    assert extra_indexes.identity == Identity.in_tier(source.info)
    assert extra_indexes.index("bloom@1", read) == b"filter"


def test_damaged_extra_indexes_are_left_out(components: Components, encoded: Callable[..., bytes]) -> None:
    source = uncompressed_source(source_of(encoded(0, "zstd"), {FileKind.EXTRA: b"no indexes"}), components)
    assert FileKind.EXTRA not in source.files
