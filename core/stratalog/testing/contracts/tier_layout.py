"""What every tier layout does."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import tracemalloc
import uuid
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Final

import pytest

from stratalog.errors import ConfigError, CorruptObjectError, ObjectNotFoundError, StorageError
from stratalog.model.batches import Buffer
from stratalog.model.names import is_segment_key, log_prefix, segment_key
from stratalog.model.segment_info import FileKind
from stratalog.spi.layouts import HashedLog, RangeReader, SegmentSource, StoredSegment, TierLayout
from stratalog.spi.objects import ByteSource, ObjectInfo
from stratalog.spi.stored import stored_from_json, stored_to_json
from stratalog.testing.tiers import LOG, TOPIC_ID, made_segment, source_bytes

PREFIX: Final = log_prefix(LOG, TOPIC_ID)
FILES: Final = {
    FileKind.OFFSET_INDEX: bytes(range(8)) * 5,
    FileKind.TIME_INDEX: b"time" * 3,
    FileKind.TRANSACTION_INDEX: b"",
    FileKind.SNAPSHOT: b"producers",
    FileKind.LEADER_EPOCHS: b"0\n1\n0 100\n",
    FileKind.EXTRA: b"what a plugin noted",
}
DATA: Final = bytes(range(256)) * 300  # larger than any piece that the tests ask for
LARGE: Final = (5 << 20) + 3
FLIPS: Final = 60  # bits of each object that the tests flip
LIES: Final[tuple[object, ...]] = (
    -1, 0, 1, 7, 1 << 20, 1 << 40, 1 << 62, True, 0.5, "", "0" * 64, "x", None, [], {}, [[]], {"a": 1},
)  # fmt: skip
MOST_BYTES: Final = 32 << 20  # that reading hostile objects of this size may take


class MemoryObjects:
    """A sink and a range reader over a dictionary: where a layout's objects go in tests.

    Args:
        base_offset: of the segment, for its keys.
        passes: how often each source is read before its bytes are taken, as a store does that retries.
    """

    def __init__(self, base_offset: int = 100, passes: int = 1) -> None:
        self.objects: dict[str, bytes] = {}
        self.reads: list[tuple[str, int, int]] = []
        self._base_offset, self._passes = base_offset, passes
        self._next: dict[str, str] = {}

    def key(self, suffix: str = "seg") -> str:
        """The key that the next ``put`` will use."""
        return self._next.setdefault(suffix, segment_key(PREFIX, self._base_offset, 0, uuid.uuid4(), suffix))

    def put(self, source: ByteSource, suffix: str = "seg") -> ObjectInfo:
        """Store an object."""
        key = self.key(suffix)
        del self._next[suffix]
        for _ in range(self._passes - 1):
            next(source.chunks(7), None)  # a try that broke off
        data = source_bytes(source)
        assert len(data) == source.size_bytes
        self.objects[key] = data
        return ObjectInfo(key, len(data))

    def fetch(self, key: str, start: int, end: int) -> bytes:
        """Bytes [start, end) of an object, all of them."""
        assert 0 <= start < end <= len(self.objects[key]), "a layout asks for bytes that are there"
        self.reads.append((key, start, end))
        return self.objects[key][start:end]

    def infos(self) -> list[ObjectInfo]:
        """What a listing shows."""
        return [ObjectInfo(key, len(data)) for key, data in sorted(self.objects.items())]


class OddChunks:
    """A source that gives its bytes in pieces of no particular size."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size_bytes(self) -> int:
        """How many there are."""
        return len(self._data)

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """All bytes, in pieces of 1, 2, 3, ... bytes."""
        start, step = 0, 1
        while start < len(self._data):
            yield self._data[start : start + min(step, chunk_bytes)]
            start, step = start + min(step, chunk_bytes), step + 1


class TierLayoutContract:
    """Subclass it and give the fixture ``layout``: the layout under test.

    Layouts that find no segments without a manifest skip the tests of ``discover``.
    """

    @pytest.fixture
    def layout(self) -> TierLayout:
        """The layout under test."""
        raise NotImplementedError("a subclass gives the fixture 'layout'")

    @pytest.fixture
    def objects(self) -> MemoryObjects:
        """Where objects go."""
        return MemoryObjects()

    @pytest.fixture
    def stored(self, layout: TierLayout, objects: MemoryObjects) -> StoredSegment:
        """A segment with every file, stored."""
        return layout.write(a_segment(), objects, None)

    def test_the_whole_log_is_read_back(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """From 0 to its size, in pieces that join to the file."""
        assert joined(layout.read(stored, 0, len(DATA), objects.fetch)) == DATA

    def test_a_log_of_many_pieces_is_read_back(self, layout: TierLayout, objects: MemoryObjects) -> None:
        """As a whole and in ranges: local data is deleted for what is stored."""
        data = random.Random(7).randbytes(LARGE)  # noqa: S311 - a test must be repeatable
        stored = layout.write(a_segment(data=data), objects, None)
        for start in (0, LARGE - 5):
            assert joined(layout.read(stored, start, LARGE, objects.fetch)) == data[start:]

    def test_the_hash_is_that_of_the_log_that_was_given(self, layout: TierLayout, objects: MemoryObjects) -> None:
        """The core hashes the log as the layout reads it, which has to be to its end."""
        log = HashedLog.of(a_segment().log, "log")
        stored = layout.write(dataclasses.replace(a_segment(), log=log), objects, None)
        assert stored.sha256 == log.sha256 == sha256(DATA).hexdigest()

    @pytest.mark.parametrize(
        ("start", "end"), [(0, 1), (0, 0), (5, 5), (1, 300), (65_000, 70_000), (len(DATA) - 1, len(DATA))]
    )
    def test_a_range_of_the_log_is_read_back(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects, start: int, end: int
    ) -> None:
        """Any [start, end), an empty one too."""
        assert joined(layout.read(stored, start, end, objects.fetch)) == DATA[start:end]

    @pytest.mark.parametrize(("start", "end"), [(0, len(DATA) + 1), (-1, 5), (9, 8), (len(DATA) + 1, len(DATA) + 2)])
    def test_a_range_outside_the_log_is_refused(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects, start: int, end: int
    ) -> None:
        """A typed error, before or while the pieces are taken."""
        with pytest.raises(StorageError):
            joined(layout.read(stored, start, end, objects.fetch))

    @pytest.mark.parametrize("file_kind", FILES)
    def test_a_small_file_is_read_back(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects, file_kind: FileKind
    ) -> None:
        """Each kind, also one of no bytes."""
        assert layout.read_index(stored, file_kind, objects.fetch) == FILES[file_kind]

    def test_views_are_as_good_as_bytes(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """A range reader that has more in memory than was asked for gives a view of it; found segments are the same, too."""

        def fetch(key: str, start: int, end: int) -> memoryview:
            return memoryview(objects.fetch(key, start, end))

        assert joined(layout.read(stored, 0, len(DATA), fetch)) == DATA
        for kind, data in FILES.items():
            assert layout.read_index(stored, kind, fetch) == data
        assert list(layout.discover(objects.infos(), fetch)) == list(layout.discover(objects.infos(), objects.fetch))

    def test_a_file_that_the_segment_lacks_is_none(self, layout: TierLayout, objects: MemoryObjects) -> None:
        """None, not an error and not no bytes."""
        stored = layout.write(a_segment(files={}), objects, None)
        assert layout.read_index(stored, FileKind.SNAPSHOT, objects.fetch) is None

    def test_a_segment_without_bytes_is_stored(self, layout: TierLayout, objects: MemoryObjects) -> None:
        """Its small files are there all the same."""
        stored = layout.write(a_segment(data=b""), objects, None)
        assert joined(layout.read(stored, 0, 0, objects.fetch)) == b""
        assert layout.read_index(stored, FileKind.TIME_INDEX, objects.fetch) == FILES[FileKind.TIME_INDEX]

    def test_the_entry_says_what_was_stored(self, stored: StoredSegment, objects: MemoryObjects) -> None:
        """The info as given, the hash of the log, and every object that was put."""
        assert stored.info == a_segment().info
        assert stored.sha256 == sha256(DATA).hexdigest()
        assert stored.layout == "", "the core fills it in"
        assert stored.keys == set(objects.objects), "an object that no slice names would be garbage"
        assert set(stored.slices) == {FileKind.LOG, *FILES}

    def test_slices_lie_inside_their_objects(self, stored: StoredSegment, objects: MemoryObjects) -> None:
        """Under keys that the core chose."""
        for place in stored.slices.values():
            assert is_segment_key(PREFIX, place.key)
            assert 0 <= place.position <= place.position + place.size_bytes <= len(objects.objects[place.key])

    def test_the_entry_survives_json(self, stored: StoredSegment) -> None:
        """Manifests hold it as JSON."""
        labelled = dataclasses.replace(stored, layout="contract@1")
        assert stored_from_json(json.loads(json.dumps(stored_to_json(labelled)))) == labelled

    def test_sources_are_read_again_when_an_upload_is_retried(self, layout: TierLayout) -> None:
        """What the broken tries gave leaves no trace in the hash."""
        objects = MemoryObjects(passes=3)
        stored = layout.write(a_segment(), objects, None)
        assert stored.sha256 == sha256(DATA).hexdigest()
        assert joined(layout.read(stored, 0, len(DATA), objects.fetch)) == DATA

    def test_pieces_of_any_size_are_taken(self, layout: TierLayout, objects: MemoryObjects) -> None:
        """A source gives at most what is asked for at once, often less."""
        source = dataclasses.replace(a_segment(), log=OddChunks(DATA))
        stored = layout.write(source, objects, None)
        assert joined(layout.read(stored, 0, len(DATA), objects.fetch)) == DATA

    def test_two_segments_share_nothing(self, layout: TierLayout, objects: MemoryObjects) -> None:
        """Layouts hold no state of a segment."""
        first, second = layout.write(a_segment(), objects, None), layout.write(a_segment(data=b"two"), objects, None)
        assert joined(layout.read(first, 0, len(DATA), objects.fetch)) == DATA
        assert joined(layout.read(second, 0, 3, objects.fetch)) == b"two"

    def test_damage_to_the_log_shows_when_all_of_it_is_read(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """A flipped bit is a typed error, whoever flipped it."""
        place = stored.slices[FileKind.LOG]
        damaged = bytearray(objects.objects[place.key])
        damaged[place.position + place.size_bytes // 2] ^= 0x10
        objects.objects[place.key] = bytes(damaged)
        with pytest.raises(CorruptObjectError):
            joined(layout.read(stored, 0, len(DATA), objects.fetch))

    def test_a_reply_of_another_size_is_corruption(self, layout: TierLayout, stored: StoredSegment) -> None:
        """The range reader promises exact sizes; a layout does not rely on it."""
        with pytest.raises(CorruptObjectError):
            joined(layout.read(stored, 10, 500, lambda _, start, end: bytes(end - start - 1)))

    def test_segments_are_found_without_a_manifest(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """The entries that ``write`` returned, from the objects alone."""
        found = found_or_skip(layout, objects)
        assert [dataclasses.replace(one, layout="") for one in found] == [stored]
        assert joined(layout.read(found[0], 0, len(DATA), objects.fetch)) == DATA

    def test_an_authenticator_tells_roots_and_keys_apart(self, layout: TierLayout) -> None:
        """The core keeps the id of the key, and 32 bytes."""
        found = layout.authenticator()
        if found is None:
            pytest.skip("the layout authenticates no manifests")
        key_id = found.key_id()
        assert 1 <= len(key_id) <= 256
        assert len(found.mac(key_id, b"root")) == 32
        assert found.mac(key_id, b"root") == found.mac(key_id, b"root") != found.mac(key_id, b"another root")
        assert isinstance(found.is_required("contract@1"), bool)
        with pytest.raises(ConfigError):
            found.mac(f"{key_id}, which is no key", b"root")

    def test_wrapping_keys_anew_changes_nothing_that_is_read(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """Objects stay as they are, and so does all that is said of the segment but the layout's own notes."""
        before = dict(objects.objects)
        renewed = layout.rewrapped(stored)
        assert dataclasses.replace(renewed, extra=stored.extra) == stored
        assert objects.objects == before
        assert joined(layout.read(renewed, 0, len(DATA), objects.fetch)) == DATA

    def test_what_is_no_segment_object_is_passed_over(self, layout: TierLayout, objects: MemoryObjects) -> None:
        """Short and foreign objects lie in buckets too."""
        layout.write(a_segment(), objects, None)
        found = found_or_skip(layout, objects)
        objects.objects |= {f"{PREFIX}segments/empty": b"", f"{PREFIX}segments/text": b"no segment at all" * 10}
        assert list(layout.discover(objects.infos(), objects.fetch)) == found

    # --- hostile objects: whoever can write to the bucket, and every broken disk below it ------------------------

    def test_a_cut_object_is_a_typed_error(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """Whichever object it is, and wherever it is cut: what is read is right, or refused."""
        for key, data in list(objects.objects.items()):
            for size_bytes in sorted({0, 1, len(data) // 3, len(data) // 2, len(data) - 1}):
                damaged = {**objects.objects, key: data[:size_bytes]}
                check_right_or_refused(layout, stored, damaged)

    def test_a_flipped_bit_is_harmless_or_a_typed_error(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """Spread over all bytes of all objects; reading it all gives what was stored, or refuses."""
        for key, data in list(objects.objects.items()):
            for position in range(0, len(data), max(1, len(data) // FLIPS)):
                damaged = bytearray(data)
                damaged[position] ^= 1 << position % 8
                check_right_or_refused(layout, stored, {**objects.objects, key: bytes(damaged)})

    def test_objects_that_changed_places_are_noticed(self, layout: TierLayout) -> None:
        """Two segments of the same sizes: each reads its own bytes, or nothing."""
        first, second = MemoryObjects(), MemoryObjects()
        stored = layout.write(a_segment(), first, None)
        layout.write(a_segment(data=DATA[::-1]), second, None)
        for mine, other in zip(first.objects, second.objects, strict=True):
            check_right_or_refused(layout, stored, {**first.objects, mine: second.objects[other]})
        swapped = dict(zip(first.objects, second.objects.values(), strict=True))
        with pytest.raises(CorruptObjectError):
            joined(layout.read(stored, 0, len(DATA), cut_fetch(swapped)))

    def test_a_layouts_notes_are_not_believed(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """Each of them replaced by values of every type and size: a typed error or the right bytes, in bounded memory."""
        assert stored.keys, "something was stored"
        tracemalloc.start()
        try:
            for lie in lies_about(dict(stored.extra)):
                check_right_or_refused(layout, dataclasses.replace(stored, extra=lie), objects.objects)
            assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
        finally:
            tracemalloc.stop()

    def test_a_slice_that_lies_is_a_typed_error(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """One that is too long, too short, elsewhere, or of an object that has nothing to do with it."""
        tracemalloc.start()
        try:
            for kind, place in stored.slices.items():
                for lie in (
                    dataclasses.replace(place, size_bytes=place.size_bytes + 1),
                    dataclasses.replace(place, size_bytes=max(0, place.size_bytes - 1)),
                    dataclasses.replace(place, size_bytes=1 << 60),
                    dataclasses.replace(place, position=place.position + 1),
                    dataclasses.replace(place, position=1 << 60),
                    dataclasses.replace(place, key=f"{PREFIX}segments/other"),
                ):
                    slices = {**stored.slices, kind: lie}
                    check_right_or_refused(layout, dataclasses.replace(stored, slices=slices), objects.objects)
            assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
        finally:
            tracemalloc.stop()

    def test_damaged_objects_do_not_stop_a_rebuild_untyped(self, layout: TierLayout, objects: MemoryObjects) -> None:
        """Every bit of an object's end: its segment is found as it was, passed over, or a typed error."""
        layout.write(a_segment(), objects, None)
        found = found_or_skip(layout, objects)
        for key, data in list(objects.objects.items()):
            for position in range(max(0, len(data) - 600), len(data), 7):
                damaged = bytearray(data)
                damaged[position] ^= 1 << position % 8
                holding = {**objects.objects, key: bytes(damaged)}
                infos = [ObjectInfo(name, len(held)) for name, held in sorted(holding.items())]
                with contextlib.suppress(StorageError):
                    assert list(layout.discover(infos, cut_fetch(holding))) in ([], found)


def check_right_or_refused(layout: TierLayout, stored: StoredSegment, objects: Mapping[str, bytes]) -> None:
    """Read everything that the entry names: each part is as it was stored, or a typed error."""
    fetch = cut_fetch(objects)
    with contextlib.suppress(StorageError):
        assert joined(layout.read(stored, 0, len(DATA), fetch)) == DATA
    for kind, data in FILES.items():
        with contextlib.suppress(StorageError):
            assert layout.read_index(stored, kind, fetch) == data


def cut_fetch(objects: Mapping[str, bytes]) -> RangeReader:
    """A range reader over objects that may be too short: what is not there is not given, as a store does it."""

    def fetch(key: str, start: int, end: int) -> bytes:
        if key not in objects:
            raise ObjectNotFoundError("no such object", key)
        return objects[key][start:end]

    return fetch


def lies_about(notes: dict[str, object]) -> Iterator[dict[str, object]]:
    """The notes with one value at a time, at any depth, replaced by others or left out."""
    for name, value in notes.items():
        for lie in LIES:
            yield {**notes, name: lie}
        yield {other: notes[other] for other in notes if other != name}
        if isinstance(value, dict):
            for inner in lies_about(value):
                yield {**notes, name: inner}
        if isinstance(value, list):
            for lied in lies_about(dict(enumerate(value))):  # type: ignore[arg-type]  # numbers for names, for a list
                yield {**notes, name: list(lied.values())}


def a_segment(*, data: bytes = DATA, files: dict[FileKind, bytes] | None = None) -> SegmentSource:
    """A closed segment of offsets 100 to 200, with every file unless told otherwise."""
    return made_segment(100, 200, data=data, files=FILES if files is None else files)


def joined(pieces: Iterator[memoryview]) -> bytes:
    """All pieces together."""
    return b"".join(pieces)


def found_or_skip(layout: TierLayout, objects: MemoryObjects) -> list[StoredSegment]:
    """What ``discover`` finds; skips the test if that is nothing."""
    found = list(layout.discover(objects.infos(), objects.fetch))
    if not found:
        pytest.skip("the layout finds no segments without a manifest")
    return found
