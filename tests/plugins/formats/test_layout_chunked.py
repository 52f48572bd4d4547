from __future__ import annotations

import dataclasses
import errno
import hashlib
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest

from stratalog.errors import ConfigError, CorruptObjectError, StorageError
from stratalog.spi import FileKind, ObjectInfo, ObjectSlice, StoredSegment
from stratalog.testing.contracts.made_segments import MemoryObjects
from stratalog.testing.contracts.tier_layout import a_segment, joined
from stratalog.testing.memory import memory_below
from stratalog_formats.codecs.zstd import ZstdCodec
from stratalog_formats.layouts.chunked import RAW_BIT, ChunkedLayout, ChunkIndex, chunk_index, encode_sizes
from stratalog_formats.layouts.pieces import RecentlyUsed
from stratalog_formats.layouts.sections import ChunkedSection
from stratalog_formats.layouts.spool import MEMORY_BYTES, Spool

CHUNK = 4096
TEXT = b"the quick brown fox jumps over the lazy dog, again and again; " * 1_000  # can be compressed
NOISE = random.Random(1).randbytes(60_000)  # noqa: S311 - the same in every run; what does not shrink


@pytest.fixture
def layout() -> ChunkedLayout:
    return ChunkedLayout(4 * CHUNK, ChunkedSection(chunk_bytes=CHUNK))


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


def log_slice(entry: StoredSegment) -> ObjectSlice:
    return entry.slices[FileKind.LOG]


def test_a_chunk_that_shrinks_is_compressed(layout: ChunkedLayout, objects: MemoryObjects) -> None:
    entry = layout.write(a_segment(data=TEXT), objects, None)
    assert log_slice(entry).size_bytes < len(TEXT) / 10
    assert joined(layout.read(entry, 0, len(TEXT), objects.fetch)) == TEXT


def test_a_chunk_that_does_not_shrink_is_stored_as_it_is(layout: ChunkedLayout, objects: MemoryObjects) -> None:
    entry = layout.write(a_segment(data=NOISE), objects, None)
    (data,) = objects.objects.values()
    assert data.startswith(NOISE)
    assert log_slice(entry).size_bytes == len(NOISE) + 4 * -(-len(NOISE) // CHUNK)


def test_batches_that_producers_compressed_cost_few_tries(
    layout: ChunkedLayout, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of compressed batches do not shrink, so the layout must stop trying to compress each of them."""
    tries = []
    compress = ZstdCodec.compress

    def counted(self: ZstdCodec, data: Any, *, level: int | None, magic: int) -> bytes:
        tries.append(len(data))
        return compress(self, data, level=level, magic=magic)

    monkeypatch.setattr(ZstdCodec, "compress", counted)
    noise = NOISE * 20  # 293 chunks; none of them can be compressed
    layout.write(a_segment(data=noise), objects, None)
    assert len(tries) <= 4 + len(noise) // CHUNK // 16 + 1


def test_text_after_noise_is_compressed_again(layout: ChunkedLayout, objects: MemoryObjects) -> None:
    data = NOISE + TEXT * 4
    entry = layout.write(a_segment(data=data), objects, None)
    assert log_slice(entry).size_bytes < len(NOISE) + len(TEXT)
    assert joined(layout.read(entry, 0, len(data), objects.fetch)) == data


@pytest.mark.parametrize(("start", "end"), [(0, 1), (CHUNK - 1, CHUNK + 1), (3 * CHUNK, 4 * CHUNK), (50_000, 50_100)])
def test_a_range_fetches_the_index_and_its_chunks_only(
    layout: ChunkedLayout, objects: MemoryObjects, start: int, end: int
) -> None:
    entry = layout.write(a_segment(data=NOISE), objects, None)
    objects.reads.clear()
    assert joined(layout.read(entry, start, end, objects.fetch)) == NOISE[start:end]
    assert len(objects.reads) == 2
    _, first, last = objects.reads[1]
    assert (first, last) == (start // CHUNK * CHUNK, min(len(NOISE), -(-end // CHUNK) * CHUNK))


def test_neighbouring_chunks_are_one_request(layout: ChunkedLayout, objects: MemoryObjects) -> None:
    """Neighbouring chunks are read in requests of up to ``limits.fetch.chunk.bytes`` (stored size)."""
    entry = layout.write(a_segment(data=NOISE), objects, None)
    objects.reads.clear()
    joined(layout.read(entry, 0, len(NOISE), objects.fetch))
    assert len(objects.reads) == 1 + -(-len(NOISE) // (4 * CHUNK))


def test_a_sequential_reader_fetches_the_index_once(layout: ChunkedLayout, objects: MemoryObjects) -> None:
    entry = layout.write(a_segment(data=NOISE), objects, None)
    objects.reads.clear()
    data = b"".join(
        joined(layout.read(entry, start, start + 6_000, objects.fetch)) for start in range(0, len(NOISE), 6_000)
    )
    assert data == NOISE
    place = log_slice(entry)
    assert [end for _, _, end in objects.reads].count(place.size_bytes) == 1


def test_indexes_that_are_known_are_few(objects: MemoryObjects) -> None:
    known_indexes, layout = (
        RecentlyUsed[ChunkIndex](at_most=2),
        ChunkedLayout(4 * CHUNK, ChunkedSection(chunk_bytes=CHUNK)),
    )
    first, second, third = (
        layout.write(a_segment(data=NOISE[:size]), objects, None) for size in (9_000, 10_000, 11_000)
    )
    for entry, requests in ((first, 1), (second, 1), (first, 0), (third, 1), (first, 0), (second, 1)):
        objects.reads.clear()
        chunk_index(entry, objects.fetch, known_indexes)
        assert len(objects.reads) == requests


def with_index(entry: StoredSegment, objects: MemoryObjects, entries: list[int], **notes: object) -> StoredSegment:
    """Return the segment with another chunk index, and the hash of this index in its entry.

    An attacker with write access to the bucket can make such a segment.
    """
    place = log_slice(entry)
    index = encode_sizes(entries)
    old_notes = entry.extra["chunks"]
    assert isinstance(old_notes, dict)
    data = objects.objects[place.key]
    body = data[: place.size_bytes - old_notes["index_bytes"]]
    objects.objects[place.key] = body + index
    new_notes = {**old_notes, "index_bytes": len(index), "index_sha256": hashlib.sha256(index).hexdigest(), **notes}
    slices = {FileKind.LOG: ObjectSlice(place.key, 0, len(body) + len(index))}
    return dataclasses.replace(entry, slices=slices, extra={**entry.extra, "chunks": new_notes})


@pytest.mark.parametrize(
    "lie",
    ["sum", "zero", "larger than its content", "raw but smaller", "too few", "too many", "swapped", "raw"],
)
def test_a_chunk_index_with_wrong_positions_is_corrupt(layout: ChunkedLayout, objects: MemoryObjects, lie: str) -> None:
    data = TEXT[: 3 * CHUNK] + NOISE[:CHUNK]
    entry = layout.write(a_segment(data=data, files={}), objects, None)
    place = log_slice(entry)
    raw = objects.objects[place.key][place.size_bytes - 16 : place.size_bytes]
    entries = [int.from_bytes(raw[position : position + 4], "big") for position in range(0, 16, 4)]
    assert entries[3] == CHUNK | RAW_BIT
    assert joined(layout.read(with_index(entry, objects, entries), 0, len(data), objects.fetch)) == data
    first, second, third, last = entries
    lies = {
        "sum": [first + 1, second, third, last],
        "zero": [0, first + second, third, last],
        "larger than its content": [first + second + third - 2 + CHUNK, 1, 1, RAW_BIT],
        "raw but smaller": [first | RAW_BIT, second, third, last],
        "too few": [first + second, third, last],
        "too many": [first - 1, 1, second, third, last],
        "swapped": [first + 1, second - 1, third, last],
        "raw": [first, second, third, CHUNK],
    }
    with pytest.raises(CorruptObjectError):
        joined(layout.read(with_index(entry, objects, lies[lie]), 0, len(data), objects.fetch))


def test_a_bomb_is_refused_before_it_grows(layout: ChunkedLayout, objects: MemoryObjects) -> None:
    """The chunk of 3 KiB would decompress to 64 MiB."""
    bomb = ZstdCodec().compress(bytes(64 << 20), level=19, magic=2)
    assert len(bomb) < CHUNK
    entry = layout.write(a_segment(data=TEXT[:CHUNK], files={}), objects, None)
    place = log_slice(entry)
    objects.objects[place.key] = bomb + bytes(4)
    slices = {FileKind.LOG: ObjectSlice(place.key, 0, len(bomb) + 4)}
    bomb_entry = with_index(dataclasses.replace(entry, slices=slices), objects, [len(bomb)])
    with memory_below(4 << 20), pytest.raises(CorruptObjectError):
        joined(layout.read(bomb_entry, 0, CHUNK, objects.fetch))


def test_a_large_segment_is_never_in_memory() -> None:
    """The segment is compressed into a temporary file, and uploaded from there."""

    class Discarding(MemoryObjects):
        def put(self, source: Any, suffix: str = "seg") -> Any:
            put_bytes = sum(len(chunk) for chunk in source.chunks(1 << 16))
            return ObjectInfo(self.key(suffix), put_bytes)

    class Large:
        size_bytes = 64 << 20

        def chunks(self, chunk_bytes: int) -> Any:
            for start in range(0, self.size_bytes, chunk_bytes):
                yield NOISE[:CHUNK] * (min(chunk_bytes, self.size_bytes - start) // CHUNK)

    source = dataclasses.replace(a_segment(files={}), log=Large())
    with memory_below(24 << 20):
        ChunkedLayout(1 << 20).write(source, Discarding(), None)


def test_a_full_disk_is_a_typed_error(
    layout: ChunkedLayout, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "write", full)
    with pytest.raises(StorageError, match=r"temporary file in .*No space left"):
        layout.write(a_segment(), objects, None)
    assert objects.objects == {}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("data", [TEXT[:100], NOISE])
def test_bytes_in_memory_that_a_full_disk_refuses_are_a_typed_error(
    layout: ChunkedLayout, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    """The file object holds the last bytes in memory, and writes them before a read and when it is closed."""
    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", lambda *_, **__: Path("/dev/full").open("w+b"))  # noqa: SIM115 - the spool closes it
    with pytest.raises(StorageError, match=r"temporary file in .* cannot be written: No space left"):
        layout.write(a_segment(data=data), objects, None)


def test_a_temporary_file_that_cannot_be_read_is_a_typed_error(
    layout: ChunkedLayout, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "read", damaged)
    with pytest.raises(StorageError, match=r"temporary file in .* cannot be read: Input/output error"):
        layout.write(a_segment(), objects, None)


def test_no_folder_for_temporary_files_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nonexistent"])
    with pytest.raises(StorageError, match="no usable folder for temporary files"), Spool() as spool:
        spool.write(bytes(MEMORY_BYTES + 1))


@pytest.mark.parametrize("values", [{"chunk.bytes": 1}, {"chunk.bytes": 1 << 30}, {"level": 0}, {"level": 23}])
def test_settings_out_of_bounds_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ChunkedSection.from_mapping(values, "[plugins.chunked]")
