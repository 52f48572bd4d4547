from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest

from stratalog.errors import ConfigError, CorruptObjectError, StorageError
from stratalog.spi import ByteSource, FileKind, ObjectInfo, ObjectSlice, StoredSegment, TierLayout
from stratalog.testing.contracts import TierLayoutContract
from stratalog.testing.contracts.made_segments import MemoryObjects, OddChunks
from stratalog.testing.contracts.tier_layout import DATA, FILES, a_segment, joined
from stratalog_formats.layouts import PROVIDERS, chunked, encrypted, kafka_local, parquet, plain, single
from stratalog_formats.layouts.footer import MAX_FOOTER_BYTES
from stratalog_formats.layouts.single import SingleLayout

PIECE_BYTES = 5_000


class TestSingle(TierLayoutContract):
    @pytest.fixture
    def layout(self) -> TierLayout:
        return SingleLayout(PIECE_BYTES)

    def test_discovery_is_not_skipped(self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects) -> None:
        assert list(layout.discover(objects.infos(), objects.fetch)) == [dataclasses.replace(stored, layout="single@1")]


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def layout() -> SingleLayout:
    return SingleLayout(PIECE_BYTES)


@pytest.fixture
def stored(layout: SingleLayout, objects: MemoryObjects) -> StoredSegment:
    return layout.write(a_segment(), objects, None)


def only(objects: MemoryObjects) -> tuple[str, bytes]:
    (item,) = objects.objects.items()
    return item


def sealed(entry: object) -> bytes:
    """Return a footer, made from the description of the format without the layout's code."""
    canonical = json.dumps(entry, sort_keys=True, separators=(",", ":")).encode()
    value = {"entry": entry, "format": 1, "sha256": hashlib.sha256(canonical).hexdigest()}
    footer = json.dumps(value).encode()
    return footer + len(footer).to_bytes(8, "big") + b"STLGSEG1"


def discovered(layout: SingleLayout, key: str, data: bytes) -> list[StoredSegment]:
    return list(layout.discover([ObjectInfo(key, len(data))], lambda _, start, end: data[start:end]))


def test_the_providers_name_layout_and_version() -> None:
    labels = ["single@1", "plain@1", "chunked@1", "encrypted@2", "parquet@1", "kafka_local_tiered@1"]
    assert [provider.label for provider in PROVIDERS] == labels
    encrypted_label = f"{encrypted.NAME}@{encrypted.VERSION}"
    assert [single.LABEL, plain.LABEL, chunked.LABEL, encrypted_label, parquet.LABEL, kafka_local.LABEL] == labels


def test_the_object_is_the_log_then_the_small_files_then_the_footer(
    stored: StoredSegment, objects: MemoryObjects
) -> None:
    key, data = only(objects)
    parts = DATA + b"".join(FILES[kind] for kind in FileKind if kind is not FileKind.LOG)
    assert data.startswith(parts)
    assert data[-8:] == b"STLGSEG1"
    footer = data[len(parts) : -16]
    assert int.from_bytes(data[-16:-8], "big") == len(footer)
    assert json.loads(footer)["entry"] == dataclasses.replace(stored, layout="single@1").to_json()
    assert stored.slices[FileKind.LOG] == ObjectSlice(key, 0, len(DATA))


def test_a_range_is_one_request_a_piece(layout: SingleLayout, stored: StoredSegment, objects: MemoryObjects) -> None:
    key, _ = only(objects)
    joined(layout.read(stored, 10, 10 + PIECE_BYTES, objects.fetch))
    assert objects.reads == [(key, 10, 10 + PIECE_BYTES)]


def test_two_reads_discover_an_object(layout: SingleLayout, stored: StoredSegment, objects: MemoryObjects) -> None:
    key, data = only(objects)
    objects.reads.clear()
    list(layout.discover(objects.infos(), objects.fetch))
    last = stored.slices[FileKind.EXTRA]
    assert objects.reads == [
        (key, len(data) - 16, len(data)),
        (key, last.position + last.size_bytes, len(data) - 16),
    ]


def test_the_last_piece_of_a_damaged_log_is_held_back(
    layout: SingleLayout, stored: StoredSegment, objects: MemoryObjects
) -> None:
    key, data = only(objects)
    objects.objects[key] = b"!" + data[1:]
    pieces: list[memoryview] = []
    with pytest.raises(CorruptObjectError):
        pieces.extend(layout.read(stored, 0, len(DATA), objects.fetch))
    assert 0 < len(b"".join(pieces)) < len(DATA)


@pytest.mark.parametrize("kind", [kind for kind, data in FILES.items() if data])
def test_damage_to_a_small_file_shows(
    layout: SingleLayout, stored: StoredSegment, objects: MemoryObjects, kind: FileKind
) -> None:
    key, data = only(objects)
    position = stored.slices[kind].position
    objects.objects[key] = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
    with pytest.raises(CorruptObjectError):
        layout.read_index(stored, kind, objects.fetch)


@pytest.mark.parametrize("extra", [{}, {"sha256": []}, {"sha256": {}}, {"sha256": {"snapshot": None}}])
def test_a_small_file_without_a_hash_is_not_trusted(
    layout: SingleLayout, stored: StoredSegment, objects: MemoryObjects, extra: dict[str, object]
) -> None:
    with pytest.raises(CorruptObjectError):
        layout.read_index(dataclasses.replace(stored, extra=extra), FileKind.SNAPSHOT, objects.fetch)


def test_an_entry_without_a_log_is_corrupt(layout: SingleLayout, stored: StoredSegment, objects: MemoryObjects) -> None:
    with pytest.raises(CorruptObjectError):
        layout.read(dataclasses.replace(stored, slices={}), 0, 0, objects.fetch)


def test_a_range_outside_is_refused_before_anything_is_read(
    layout: SingleLayout, stored: StoredSegment, objects: MemoryObjects
) -> None:
    with pytest.raises(ConfigError):
        layout.read(stored, 0, len(DATA) + 1, objects.fetch)
    assert objects.reads == []


class Shrinking(OddChunks):
    """A log that yields fewer bytes than its size."""

    @property
    def size_bytes(self) -> int:
        return len(self._data) + 1


def test_a_log_that_gives_too_little_is_not_stored(layout: SingleLayout, objects: MemoryObjects) -> None:
    with pytest.raises(CorruptObjectError):
        layout.write(dataclasses.replace(a_segment(), log=Shrinking(DATA)), objects, None)
    assert objects.objects == {}


class Renaming(MemoryObjects):
    """A sink that reports another key than that of the stored object."""

    def put(self, source: ByteSource, suffix: str = "seg") -> ObjectInfo:
        return dataclasses.replace(super().put(source, suffix), key="another")


class Lazy(MemoryObjects):
    """A sink that does not read its source."""

    def put(self, source: ByteSource, suffix: str = "seg") -> ObjectInfo:
        return ObjectInfo(self.key(suffix), source.size_bytes)


@pytest.mark.parametrize("kind", [Renaming, Lazy])
def test_a_sink_with_a_wrong_result_raises_an_error(layout: SingleLayout, kind: type[MemoryObjects]) -> None:
    with pytest.raises(StorageError):
        layout.write(a_segment(), kind(), None)


def test_every_flipped_bit_of_the_footer_shows(
    layout: SingleLayout, stored: StoredSegment, objects: MemoryObjects
) -> None:
    """A footer with a wrong field would attach a log with wrong offsets. An object without the magic is ignored."""
    key, data = only(objects)
    last = stored.slices[FileKind.EXTRA]
    for position in range(last.position + last.size_bytes, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        if position >= len(data) - 8:
            assert discovered(layout, key, bytes(damaged)) == []
        else:
            with pytest.raises(CorruptObjectError):
                discovered(layout, key, bytes(damaged))


def test_a_cut_object_is_passed_over_or_corrupt(
    layout: SingleLayout, stored: StoredSegment, objects: MemoryObjects
) -> None:
    key, data = only(objects)
    assert stored.keys == {key}
    for size_bytes in (0, 1, 15, 16, 17, len(data) // 2, len(data) - 1):
        assert discovered(layout, key, data[:size_bytes]) == []
    with pytest.raises(CorruptObjectError):
        discovered(layout, key, data[1:])


@pytest.mark.parametrize("footer_bytes", [MAX_FOOTER_BYTES + 1, (1 << 64) - 1, 100])
def test_a_wrong_footer_size_is_corrupt_and_allocates_nothing(layout: SingleLayout, footer_bytes: int) -> None:
    data = bytes(50) + footer_bytes.to_bytes(8, "big") + b"STLGSEG1"
    with pytest.raises(CorruptObjectError):
        discovered(layout, "key", data)


@pytest.mark.parametrize(
    "footer",
    [b"", b"{}", b"[]", b"nonsense", b"\xff", b"[" * 100_000, b'{"entry": NaN, "format": 1, "sha256": ""}'],
    ids=["empty", "no fields", "array", "no json", "no ascii", "deep", "nan"],
)
def test_a_footer_of_another_form_is_corrupt(layout: SingleLayout, footer: bytes) -> None:
    with pytest.raises(CorruptObjectError):
        discovered(layout, "key", footer + len(footer).to_bytes(8, "big") + b"STLGSEG1")


def test_a_newer_footer_is_refused(layout: SingleLayout, stored: StoredSegment, objects: MemoryObjects) -> None:
    key, data = only(objects)
    assert stored.keys == {key}
    with pytest.raises(CorruptObjectError):
        discovered(layout, key, data.replace(b'"format":1', b'"format":2'))


@pytest.mark.parametrize("change", ["key", "gap", "overlap", "no log", "long"])
def test_a_footer_with_a_valid_hash_and_wrong_slices_is_corrupt(
    layout: SingleLayout, stored: StoredSegment, objects: MemoryObjects, change: str
) -> None:
    """The hash of the footer is valid, as in a copied footer. The slices must cover exactly this object."""
    key, data = only(objects)
    last = stored.slices[FileKind.EXTRA]
    entry = dataclasses.replace(stored, layout="single@1").to_json()
    body = data[: last.position + last.size_bytes]
    assert discovered(layout, key, body + sealed(entry)), "the footer made here is a good one before the change"
    if change == "key":
        entry["slices"]["log"]["key"] = key.replace("orders", "others")
    elif change == "gap":
        entry["slices"]["snapshot"]["position"] += 1
    elif change == "overlap":
        entry["slices"]["log"]["size_bytes"] += 1
    elif change == "no log":
        del entry["slices"]["log"]
    else:
        entry["slices"]["leader-epochs"]["size_bytes"] += 1
    with pytest.raises(CorruptObjectError):
        discovered(layout, key, body + sealed(entry))


@pytest.mark.parametrize("label", ["plain@1", "single@2", "other@1"])
def test_footers_of_other_layouts_and_later_versions_are_passed_over(
    layout: SingleLayout, stored: StoredSegment, objects: MemoryObjects, label: str
) -> None:
    """Such footers are valid for other layouts. An error would stop the rebuild of segments of this layout."""
    key, data = only(objects)
    last = stored.slices[FileKind.EXTRA]
    entry = dataclasses.replace(stored, layout=label).to_json()
    assert discovered(layout, key, data[: last.position + last.size_bytes] + sealed(entry)) == []


def test_a_footer_that_no_reader_would_take_is_not_written(
    layout: SingleLayout, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog_formats.layouts.footer.MAX_FOOTER_BYTES", 100)
    with pytest.raises(StorageError):
        layout.write(a_segment(), objects, None)
    assert objects.objects == {}
