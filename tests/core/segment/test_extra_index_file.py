"""The file of the extra indexes of a segment, as specified in docs/formats/extra.md."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest
from crc32c import crc32c

from stratalog.model.batches import Buffer
from stratalog.segment.extra_index_file import PackedExtras, pack_extras, unpack_extras
from stratalog.segment.section_file import Identity

IDENTITY = Identity(100, 250, 4096, 1_700_000_000_000, 0xDEADBEEF)
INDEXES = {"bloom@1": b"filter", "empty@12": b"", "range@2": bytes(300)}


def reading(data: bytes) -> Callable[[int, int], Buffer]:
    def read(position: int, size_bytes: int) -> Buffer:
        assert 0 <= position <= position + size_bytes <= len(data), "nothing outside is asked for"
        return memoryview(data)[position : position + size_bytes]

    return read


def unpacked(data: bytes) -> PackedExtras | None:
    return unpack_extras(reading(data), len(data))


def drawn() -> bytes:
    """Return such a file, encoded by hand from the specification."""
    directory = b"".join(
        struct.pack("<QIB", len(data), crc32c(data), len(label)) + label.encode() for label, data in INDEXES.items()
    )
    head = struct.pack("<IIqqqqI", len(directory), 3, 100, 250, 4096, 1_700_000_000_000, 0xDEADBEEF)
    crc = crc32c(directory + head + bytes(4) + b"STLGEXT1")
    return b"".join([*INDEXES.values(), directory, head, struct.pack("<I", crc), b"STLGEXT1"])


def test_packed_indexes_have_the_bytes_of_the_specification() -> None:
    assert b"".join(pack_extras(IDENTITY, INDEXES)) == drawn()


def test_packed_indexes_are_found() -> None:
    data = drawn()
    extras = unpacked(data)
    assert extras is not None
    assert extras.identity == IDENTITY
    assert {label: extras.index(label, reading(data)) for label in extras.sections} == INDEXES
    assert extras.index("bloom@2", reading(data)) is None


def test_no_index_is_fine() -> None:
    extras = unpacked(b"".join(pack_extras(IDENTITY, {})))
    assert extras is not None
    assert extras.sections == {}


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_file_with_a_truncated_end_is_not_unpacked(cut: int) -> None:
    assert unpacked(drawn()[:-cut]) is None


def test_each_changed_byte_is_noticed() -> None:
    """A changed byte of an index invalidates only this index. A changed byte after the indexes invalidates all."""
    data = drawn()
    sizes = [len(index) for index in INDEXES.values()]
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x41
        extras = unpacked(bytes(changed))
        if position >= sum(sizes):
            assert extras is None
        else:
            assert extras is not None
            indexes = [extras.index(label, reading(bytes(changed))) for label in INDEXES]
            assert indexes.count(None) == 1


def test_random_bytes_are_nothing_and_read_nothing_outside() -> None:
    chance = random.Random(3)  # noqa: S311 - the same in every run
    for size in range(200):
        assert unpacked(chance.randbytes(size)) is None
        assert unpacked(chance.randbytes(size) + b"STLGEXT1") is None


@pytest.mark.parametrize(("count", "label"), [(2, b"bloom@1"), (1, b"bl\xff\xffm@1"), (255, b"")])
def test_a_directory_with_wrong_contents_is_refused(count: int, label: bytes) -> None:
    directory = struct.pack("<QIB", 0, 0, len(label)) + label
    head = struct.pack("<IIqqqqI", len(directory), count, 100, 250, 4096, 0, 0)
    crc = crc32c(directory + head + bytes(4) + b"STLGEXT1")
    assert unpacked(directory + head + struct.pack("<I", crc) + b"STLGEXT1") is None


def test_an_index_with_a_wrong_size_is_none() -> None:
    """A directory with a valid CRC may still claim more bytes than the file has."""
    label = b"bloom@1"
    directory = struct.pack("<QIB", 1 << 62, 0, len(label)) + label
    head = struct.pack("<IIqqqqI", len(directory), 1, 100, 250, 4096, 1_700_000_000_000, 0xDEADBEEF)
    crc = crc32c(directory + head + bytes(4) + b"STLGEXT1")
    data = directory + head + struct.pack("<I", crc) + b"STLGEXT1"
    extras = unpacked(data)
    assert extras is not None
    assert extras.index("bloom@1", reading(data)) is None
