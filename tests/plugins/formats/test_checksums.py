"""The checksums of the compiled scan, in each implementation for a processor, compared with those of libraries."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from types import ModuleType

import pytest
from crc32c import crc32c

from stratalog.extensions import absence, extension

NAME = "stratalog_formats.kernels.scan_c"
SIZES = [*range(1300), 6143, 6144, 6145, 12_300, 65_536, 100_003]
SHIFTS = range(4)


@pytest.fixture(params=["folding", "instruction", "tables"])
def kernel(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    module = extension(NAME)
    if module is None:
        pytest.skip(f"{NAME} is {absence(NAME)}")
    module.choose_checksums(request.param == "folding", request.param != "tables")
    yield module
    module.choose_checksums(True, True)


def some_bytes(size: int) -> bytes:
    return random.Random(size).randbytes(size)  # noqa: S311 - any bytes do


def test_every_size_has_the_checksum_that_the_libraries_give(kernel: ModuleType) -> None:
    data = some_bytes(max(SIZES) + len(SHIFTS))
    for size in SIZES:
        for shift in SHIFTS:
            part = memoryview(data)[shift : shift + size]
            assert kernel.checksum_32c(part) == crc32c(part), (size, shift)
            assert kernel.checksum_32(part) == zlib.crc32(part), (size, shift)


@pytest.mark.parametrize("size", [1, 100, 511, 512, 700, 5000])
def test_a_flipped_bit_anywhere_changes_both(kernel: ModuleType, size: int) -> None:
    data = bytearray(some_bytes(size))
    sums = (kernel.checksum_32c(data), kernel.checksum_32(data))
    for bit in range(0, 8 * size, 7):
        data[bit >> 3] ^= 1 << (bit & 7)
        assert kernel.checksum_32c(data) != sums[0]
        assert kernel.checksum_32(data) != sums[1]
        data[bit >> 3] ^= 1 << (bit & 7)
