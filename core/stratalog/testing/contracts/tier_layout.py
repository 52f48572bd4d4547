"""Contract tests of tier layouts."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Final

import pytest

from stratalog.errors import ConfigError, CorruptObjectError, ObjectNotFoundError, StorageError
from stratalog.model.segment_info import FileKind
from stratalog.spi.layouts import HashedLog, RangeReader, SegmentSource, StoredSegment, TierLayout
from stratalog.spi.objects import ObjectInfo
from stratalog.testing.contracts.made_segments import PREFIX, MemoryObjects, OddChunks, made_segment
from stratalog.testing.memory import memory_below
from stratalog.tier.store.object_keys import is_segment_key

FILES: Final = {
    FileKind.OFFSET_INDEX: bytes(range(8)) * 5,
    FileKind.TIME_INDEX: b"time" * 3,
    FileKind.TRANSACTION_INDEX: b"",
    FileKind.SNAPSHOT: b"producers",
    FileKind.LEADER_EPOCHS: b"0\n1\n0 100\n",
    FileKind.EXTRA: b"what a plugin noted",
}
DATA: Final = bytes(range(256)) * 300  # larger than each range that the tests read, unless they read the whole log
LARGE: Final = (5 << 20) + 3
FLIPS: Final = 60  # number of bits of each object that the tests flip
LARGE_NUMBERS: Final = (1 << 20, 1 << 40, 1 << 62)
LIES: Final[tuple[object, ...]] = (
    -1, 0, 1, 7, *LARGE_NUMBERS, True, 0.5, "", "0" * 64, "x", None, [], {}, [[]], {"a": 1},
)  # fmt: skip
MOST_BYTES: Final = 32 << 20  # memory limit for reading damaged objects


class TierLayoutContract:
    """Contract of a tier layout: subclass it, name the class ``Test...``, and override the fixture ``layout``.

    The tests of ``discover`` are skipped if the layout finds no segments without a manifest.
    """

    @pytest.fixture
    def layout(self) -> TierLayout:
        """Return the layout to check; overridden by the subclass."""
        raise NotImplementedError("a subclass must define the fixture layout")

    @pytest.fixture
    def objects(self) -> MemoryObjects:
        """Return an empty sink and range reader in memory, for the objects that the layout writes."""
        return MemoryObjects()

    @pytest.fixture
    def stored(self, layout: TierLayout, objects: MemoryObjects) -> StoredSegment:
        """Return the entry of a segment that the layout wrote to ``objects``, with a file of each kind."""
        return layout.write(a_segment(), objects, None)

    def test_the_whole_log_is_read_back(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """``read`` from 0 to the log's size yields pieces whose concatenation is the whole log."""
        assert joined(layout.read(stored, 0, len(DATA), objects.fetch)) == DATA

    def test_a_log_of_many_pieces_is_read_back(self, layout: TierLayout, objects: MemoryObjects) -> None:
        """A large log is read back unchanged: the engine deletes local data after an upload."""
        data = random.Random(7).randbytes(LARGE)  # noqa: S311 - a test must be repeatable
        entry = layout.write(a_segment(data=data), objects, None)
        for start in (0, LARGE - 5):
            assert joined(layout.read(entry, start, LARGE, objects.fetch)) == data[start:]

    def test_the_hash_is_that_of_the_log_that_was_given(self, layout: TierLayout, objects: MemoryObjects) -> None:
        """``write`` reads the log to its end, and the entry has the hash of the bytes."""
        log = HashedLog.of(a_segment().log, "log")
        entry = layout.write(dataclasses.replace(a_segment(), log=log), objects, None)
        assert entry.sha256 == log.sha256 == sha256(DATA).hexdigest()

    @pytest.mark.parametrize(
        ("start", "end"), [(0, 1), (0, 0), (5, 5), (1, 300), (65_000, 70_000), (len(DATA) - 1, len(DATA))]
    )
    def test_a_range_of_the_log_is_read_back(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects, start: int, end: int
    ) -> None:
        """Every range [start, end) is read back, including an empty one."""
        assert joined(layout.read(stored, start, end, objects.fetch)) == DATA[start:end]

    @pytest.mark.parametrize(("start", "end"), [(0, len(DATA) + 1), (-1, 5), (9, 8), (len(DATA) + 1, len(DATA) + 2)])
    def test_a_range_outside_the_log_is_refused(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects, start: int, end: int
    ) -> None:
        """A range outside the log raises a StorageError, before the first piece or between pieces."""
        with pytest.raises(StorageError):
            joined(layout.read(stored, start, end, objects.fetch))

    @pytest.mark.parametrize("file_kind", FILES)
    def test_a_small_file_is_read_back(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects, file_kind: FileKind
    ) -> None:
        """A small file of each kind is read back, including an empty one."""
        assert layout.read_index(stored, file_kind, objects.fetch) == FILES[file_kind]

    def test_results_have_the_types_of_the_contract(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """``read`` yields memoryviews, and ``read_index`` returns bytes: the engine refuses other types."""
        assert {type(piece) for piece in layout.read(stored, 0, len(DATA), objects.fetch)} == {memoryview}
        assert isinstance(layout.read_index(stored, FileKind.SNAPSHOT, objects.fetch), bytes)

    def test_views_are_as_good_as_bytes(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """The layout returns the same results if the range reader returns views instead of bytes."""

        def fetch(key: str, start: int, end: int) -> memoryview:
            return memoryview(objects.fetch(key, start, end))

        assert joined(layout.read(stored, 0, len(DATA), fetch)) == DATA
        for kind, data in FILES.items():
            assert layout.read_index(stored, kind, fetch) == data
        assert list(layout.discover(objects.infos(), fetch)) == list(layout.discover(objects.infos(), objects.fetch))

    def test_a_file_that_the_segment_lacks_is_none(self, layout: TierLayout, objects: MemoryObjects) -> None:
        """``read_index`` returns None for a missing file. It raises no error and does not return empty bytes."""
        entry = layout.write(a_segment(files={}), objects, None)
        assert layout.read_index(entry, FileKind.SNAPSHOT, objects.fetch) is None

    def test_a_segment_without_bytes_is_stored(self, layout: TierLayout, objects: MemoryObjects) -> None:
        """The small files of a segment with an empty log are stored."""
        entry = layout.write(a_segment(data=b""), objects, None)
        assert joined(layout.read(entry, 0, 0, objects.fetch)) == b""
        assert layout.read_index(entry, FileKind.TIME_INDEX, objects.fetch) == FILES[FileKind.TIME_INDEX]

    def test_the_entry_says_what_was_stored(self, stored: StoredSegment, objects: MemoryObjects) -> None:
        """The entry contains the given info, the hash of the log, and every object that was written."""
        assert stored.info == a_segment().info
        assert stored.sha256 == sha256(DATA).hexdigest()
        assert stored.layout == "", "the core fills it in"
        assert stored.keys == set(objects.objects), "an object that no slice names would be garbage"
        assert set(stored.slices) == {FileKind.LOG, *FILES}

    def test_slices_lie_inside_their_objects(self, stored: StoredSegment, objects: MemoryObjects) -> None:
        """Slices refer to keys that the core chose, and end at or before the end of their objects."""
        for place in stored.slices.values():
            assert is_segment_key(PREFIX, place.key)
            assert 0 <= place.position <= place.position + place.size_bytes <= len(objects.objects[place.key])

    def test_the_entry_survives_json(self, stored: StoredSegment) -> None:
        """``from_json`` of the entry's ``to_json`` returns an equal entry."""
        labelled = dataclasses.replace(stored, layout="contract@1")
        assert StoredSegment.from_json(json.loads(json.dumps(labelled.to_json()))) == labelled

    def test_sources_are_read_again_when_an_upload_is_retried(self, layout: TierLayout) -> None:
        """If an upload is retried, the hash is correct: the bytes of failed attempts are not part of it."""
        objects = MemoryObjects(passes=3)
        entry = layout.write(a_segment(), objects, None)
        assert entry.sha256 == sha256(DATA).hexdigest()
        assert joined(layout.read(entry, 0, len(DATA), objects.fetch)) == DATA

    def test_pieces_of_any_size_are_taken(self, layout: TierLayout, objects: MemoryObjects) -> None:
        """``write`` accepts a source whose pieces are smaller than requested."""
        source = dataclasses.replace(a_segment(), log=OddChunks(DATA))
        entry = layout.write(source, objects, None)
        assert joined(layout.read(entry, 0, len(DATA), objects.fetch)) == DATA

    def test_two_segments_share_nothing(self, layout: TierLayout, objects: MemoryObjects) -> None:
        """A layout keeps no state of a segment: two segments written one after the other are both read back."""
        first, second = layout.write(a_segment(), objects, None), layout.write(a_segment(data=b"two"), objects, None)
        assert joined(layout.read(first, 0, len(DATA), objects.fetch)) == DATA
        assert joined(layout.read(second, 0, 3, objects.fetch)) == b"two"

    def test_damage_to_the_log_shows_when_all_of_it_is_read(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """``read`` of the whole log raises CorruptObjectError if a bit of the log was flipped."""
        place = stored.slices[FileKind.LOG]
        damaged = flipped(objects, place.key, place.position + place.size_bytes // 2)
        with pytest.raises(CorruptObjectError):
            joined(layout.read(stored, 0, len(DATA), cut_fetch(damaged)))

    def test_a_reply_of_another_size_is_corruption(self, layout: TierLayout, stored: StoredSegment) -> None:
        """``read`` raises CorruptObjectError if the range reader returns fewer bytes than requested."""
        with pytest.raises(CorruptObjectError):
            joined(layout.read(stored, 10, 500, lambda _, start, end: bytes(end - start - 1)))

    def test_segments_are_found_without_a_manifest(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """``discover`` returns the entries that ``write`` returned, although ``discover`` gets only the objects."""
        segments = found_or_skip(layout, objects)
        assert [dataclasses.replace(segment, layout="") for segment in segments] == [stored]
        assert joined(layout.read(segments[0], 0, len(DATA), objects.fetch)) == DATA

    def test_a_check_finds_nothing_in_sound_objects(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """``check`` returns None for the objects that ``write`` stored."""
        check: Callable[..., object] = layout.check
        assert check(stored, objects.fetch) is None

    def test_a_check_finds_a_damaged_further_object(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """``check`` raises a StorageError if a further object, which holds none of the files, is damaged or cut."""
        other_keys = stored.keys - {place.key for place in stored.slices.values()}
        if not other_keys:
            pytest.skip("the layout has no further objects")
        for key in other_keys:
            middle = len(objects.objects[key]) // 2
            cut_objects = {**objects.objects, key: objects.objects[key][:middle]}
            for damaged in (flipped(objects, key, middle), cut_objects):
                with pytest.raises(StorageError):
                    layout.check(stored, cut_fetch(damaged))

    def test_a_layout_says_if_it_takes_uncompressed_batches(self, layout: TierLayout) -> None:
        """``takes_uncompressed`` is a bool."""
        assert isinstance(layout.takes_uncompressed, bool)

    def test_columns_of_bytes_that_are_no_batches_are_left_to_the_core(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """``read_arrow`` returns None for bytes that are not batches. The core then reads the bytes as batches."""
        assert layout.read_arrow(stored, 100, 200, None, objects.fetch) is None

    def test_an_authenticator_distinguishes_roots_and_keys(self, layout: TierLayout) -> None:
        """An authenticator's MAC has 32 bytes and depends on the data; an unknown key id raises ConfigError."""
        authenticator = layout.authenticator()
        if authenticator is None:
            pytest.skip("the layout authenticates no manifests")
        key_id = authenticator.key_id()
        assert 1 <= len(key_id) <= 256
        assert len(authenticator.mac(key_id, b"root")) == 32
        assert (
            authenticator.mac(key_id, b"root")
            == authenticator.mac(key_id, b"root")
            != authenticator.mac(key_id, b"another root")
        )
        assert isinstance(authenticator.is_required("contract@1"), bool)
        with pytest.raises(ConfigError):
            authenticator.mac(f"{key_id}, which is not a key", b"root")

    def test_wrapping_keys_again_changes_no_read(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """``rewrapped`` changes only ``extra`` of the entry, and no object. The log is still read back."""
        before = dict(objects.objects)
        renewed = layout.rewrapped(stored)
        assert dataclasses.replace(renewed, extra=stored.extra) == stored
        assert objects.objects == before
        assert joined(layout.read(renewed, 0, len(DATA), objects.fetch)) == DATA

    def test_objects_that_are_no_segment_are_ignored(self, layout: TierLayout, objects: MemoryObjects) -> None:
        """``discover`` skips objects that are too short or that the layout did not write."""
        layout.write(a_segment(), objects, None)
        segments = found_or_skip(layout, objects)
        objects.objects |= {f"{PREFIX}segments/empty": b"", f"{PREFIX}segments/text": b"no segment at all" * 10}
        assert list(layout.discover(objects.infos(), objects.fetch)) == segments

    # --- damaged objects: changed by an attacker or by a broken disk ----------------------------------------------

    def test_a_cut_object_is_a_typed_error(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """For any object cut at any place, a read returns the right bytes or raises a StorageError."""
        for key, data in list(objects.objects.items()):
            for size_bytes in sorted({0, 1, len(data) // 3, len(data) // 2, len(data) - 1}):
                damaged = {**objects.objects, key: data[:size_bytes]}
                check_right_or_refused(layout, stored, damaged)

    def test_a_flipped_bit_is_harmless_or_a_typed_error(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """For flipped bits all over the objects, a read returns the right bytes or raises a StorageError."""
        for key, data in list(objects.objects.items()):
            for position in range(0, len(data), max(1, len(data) // FLIPS)):
                check_right_or_refused(layout, stored, flipped(objects, key, position))

    def test_objects_that_changed_places_are_noticed(self, layout: TierLayout) -> None:
        """With the objects of another segment, a read returns the segment's own bytes or raises a StorageError."""
        first, second = MemoryObjects(), MemoryObjects()
        entry = layout.write(a_segment(), first, None)
        layout.write(a_segment(data=DATA[::-1]), second, None)
        for first_key, second_key in zip(first.objects, second.objects, strict=True):
            check_right_or_refused(layout, entry, {**first.objects, first_key: second.objects[second_key]})
        swapped = dict(zip(first.objects, second.objects.values(), strict=True))
        with pytest.raises(CorruptObjectError):
            joined(layout.read(entry, 0, len(DATA), cut_fetch(swapped)))

    def test_a_layouts_notes_are_not_believed(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """For wrong values of any type and size in ``extra``, a read returns the right bytes or raises StorageError."""
        assert stored.keys, "something was stored"
        for lie in lies_about(dict(stored.extra), LIES):
            check_right_or_refused(layout, dataclasses.replace(stored, extra=lie), objects.objects)

    def test_large_numbers_in_a_layouts_notes_take_little_memory(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """For large numbers in ``extra``, the memory of a read stays below 32 MiB."""
        assert stored.keys, "something was stored"
        with memory_below(MOST_BYTES):
            for lie in lies_about(dict(stored.extra), LARGE_NUMBERS):
                check_right_or_refused(layout, dataclasses.replace(stored, extra=lie), objects.objects)

    def test_a_slice_with_wrong_positions_is_a_typed_error(
        self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects
    ) -> None:
        """For a slice with a wrong size, position or key, a read returns the right bytes or raises a StorageError."""
        with memory_below(MOST_BYTES):
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

    def test_damaged_objects_do_not_stop_a_rebuild_untyped(self, layout: TierLayout, objects: MemoryObjects) -> None:
        """For damage at the end of an object, ``discover`` finds or skips the segment, or raises a StorageError."""
        layout.write(a_segment(), objects, None)
        segments = found_or_skip(layout, objects)
        for key, data in list(objects.objects.items()):
            for position in range(max(0, len(data) - 600), len(data), 7):
                holding = flipped(objects, key, position)
                infos = [ObjectInfo(name, len(data_of_object)) for name, data_of_object in sorted(holding.items())]
                with contextlib.suppress(StorageError):
                    assert list(layout.discover(infos, cut_fetch(holding))) in ([], segments)


def check_right_or_refused(layout: TierLayout, entry: StoredSegment, objects: Mapping[str, bytes]) -> None:
    """Read the log and the files of ``entry``. Raise AssertionError if a read returns wrong bytes.

    A read may raise a StorageError.
    """
    fetch = cut_fetch(objects)
    with contextlib.suppress(StorageError):
        is_right = joined(layout.read(entry, 0, len(DATA), fetch)) == DATA
        assert is_right, "read returned wrong bytes"  # a bool, because pytest takes minutes to compare the two values
    for kind, data in FILES.items():
        with contextlib.suppress(StorageError):
            is_right = layout.read_index(entry, kind, fetch) == data
            assert is_right, f"read_index returned wrong bytes of {kind}"


def flipped(objects: MemoryObjects, key: str, position: int) -> dict[str, bytes]:
    """Return the objects with one flipped bit in the byte at ``position`` of the object ``key``."""
    damaged = bytearray(objects.objects[key])
    damaged[position] ^= 1 << position % 8
    return {**objects.objects, key: bytes(damaged)}


def cut_fetch(objects: Mapping[str, bytes]) -> RangeReader:
    """Return a range reader of ``objects``. It returns fewer bytes than requested if an object is too short."""

    def fetch(key: str, start: int, end: int) -> bytes:
        if key not in objects:
            raise ObjectNotFoundError("no such object", key)
        return objects[key][start:end]

    return fetch


def lies_about(notes: dict[str, object], lies: Iterable[object]) -> Iterator[dict[str, object]]:
    """Yield copies of ``notes``. In each copy, one value at any depth is missing, or is one of ``lies``."""
    for name, value in notes.items():
        for lie in lies:
            yield {**notes, name: lie}
        yield {other_name: notes[other_name] for other_name in notes if other_name != name}
        if isinstance(value, dict):
            for inner in lies_about(value, lies):
                yield {**notes, name: inner}
        if isinstance(value, list):
            for lied in lies_about(dict(enumerate(value)), lies):  # type: ignore[arg-type]  # items by position
                yield {**notes, name: list(lied.values())}


def a_segment(*, data: bytes = DATA, files: dict[FileKind, bytes] | None = None) -> SegmentSource:
    """Return a closed segment of the offsets [100, 200), with a small file of each kind unless ``files`` is given."""
    return made_segment(100, 200, data=data, files=FILES if files is None else files)


def joined(pieces: Iterator[memoryview]) -> bytes:
    """Return the concatenated bytes of all pieces."""
    return b"".join(pieces)


def found_or_skip(layout: TierLayout, objects: MemoryObjects) -> list[StoredSegment]:
    """Return the segments that ``discover`` finds; skip the test if it finds none."""
    segments = list(layout.discover(objects.infos(), objects.fetch))
    if not segments:
        pytest.skip("the layout finds no segments without a manifest")
    return segments
