"""What holds for every codec."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from stratalog.errors import CorruptBatchError, DecompressedSizeError, StorageError
from stratalog.spi.formats import Codec

LIMIT_BYTES = 1 << 22
MAGICS = (0, 1, 2)


def samples() -> list[bytes]:
    """Contents that compress well, badly, and hardly at all; below, at and above the sizes of blocks."""
    chance = random.Random(7)  # noqa: S311 - the same bytes each time
    words = b"alpha beta gamma delta order click page view "
    return [
        b"",
        b"x",
        words * 3,
        bytes(chance.randbytes(1000)),
        words * 1500,
        bytes(chance.randbytes(100_000)),
        bytes(1 << 20),
    ]


class CodecContract:
    """Subclass this and give the fixture ``codec``.

    Attributes:
        magics: the record formats that the codec exists in.
        detects_damage: whether the stream carries a checksum over its contents.
        has_end: whether the stream says where it ends. Without, one that is cut between blocks passes for a whole one.
    """

    magics: tuple[int, ...] = MAGICS
    detects_damage: bool = False
    has_end: bool = True

    @pytest.fixture
    def codec(self) -> Codec:
        """The codec to check."""
        raise NotImplementedError("give the fixture `codec`")

    def test_id_fits_the_attributes(self, codec: Codec) -> None:
        """Bits 0 to 2; 0 is "no codec"."""
        assert 1 <= codec.id <= 7

    def test_what_was_compressed_comes_back(self, codec: Codec) -> None:
        """For every magic, with the default level."""
        for magic in self.magics:
            for data in samples():
                packed = codec.compress(data, level=None, magic=magic)
                assert bytes(codec.decompress(packed, limit_bytes=LIMIT_BYTES, magic=magic)) == data

    def test_every_level_comes_back(self, codec: Codec) -> None:
        """The ends and the middle of the range."""
        if codec.levels is None:
            pytest.skip("the codec has no levels")
        data = samples()[4]
        for level in {codec.levels[0], codec.levels[len(codec.levels) // 2], codec.levels[-1]}:
            packed = codec.compress(data, level=level, magic=2)
            assert bytes(codec.decompress(packed, limit_bytes=LIMIT_BYTES, magic=2)) == data

    def test_any_kind_of_buffer_is_taken_and_left_as_it_was(self, codec: Codec) -> None:
        """bytes, bytearray, memoryview, and a part of one."""
        data = samples()[2]
        for buffer in (data, bytearray(data), memoryview(data), memoryview(b"ab" + data + b"cd")[2:-2]):
            packed = codec.compress(buffer, level=None, magic=2)
            for held in (packed, bytearray(packed), memoryview(b"ab" + packed + b"cd")[2:-2]):
                before = bytes(held)
                assert bytes(codec.decompress(held, limit_bytes=LIMIT_BYTES, magic=2)) == data
                assert bytes(held) == before
            assert bytes(buffer) == data

    def test_the_limit_holds_to_the_byte(self, codec: Codec) -> None:
        """Exactly the limit is fine, one byte less is not."""
        nothing = codec.compress(b"", level=None, magic=2)
        assert bytes(codec.decompress(nothing, limit_bytes=0, magic=2)) == b""
        for data in samples()[1:]:
            packed = codec.compress(data, level=None, magic=2)
            assert len(codec.decompress(packed, limit_bytes=len(data), magic=2)) == len(data)
            with pytest.raises(DecompressedSizeError):
                codec.decompress(packed, limit_bytes=len(data) - 1, magic=2)

    def test_memory_goes_with_the_contents_and_the_limit(self, codec: Codec) -> None:
        """A high limit costs nothing by itself, a low one stops a bomb early."""
        small, bomb = samples()[2], bytes(16 << 20)
        for data, limit_bytes in ((small, 1 << 29), (bomb, 1 << 20)):
            packed = codec.compress(data, level=None, magic=2)
            tracemalloc.start()
            try:
                if data is small:
                    codec.decompress(packed, limit_bytes=limit_bytes, magic=2)
                else:
                    with pytest.raises(DecompressedSizeError):
                        codec.decompress(packed, limit_bytes=limit_bytes, magic=2)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert peak < min(limit_bytes, len(data)) + 2 * len(packed) + (4 << 20)

    def test_a_cut_stream_is_an_error(self, codec: Codec) -> None:
        """At every byte: never another exception, never other contents taken for the whole."""
        data = samples()[2]
        packed = codec.compress(data, level=None, magic=2)
        for size in range(len(packed)):
            try:
                found = bytes(codec.decompress(packed[:size], limit_bytes=LIMIT_BYTES, magic=2))
            except CorruptBatchError:
                continue
            assert not self.has_end
            assert found == data[: len(found)]
            assert found != data

    def test_a_flipped_bit_is_an_error_or_harmless(self, codec: Codec) -> None:
        """Every bit: a typed error, or a result inside the limit; with a checksum nothing but the same contents."""
        data = samples()[2]
        packed = codec.compress(data, level=None, magic=2)
        for bit in range(len(packed) * 8):
            damaged = bytearray(packed)
            damaged[bit // 8] ^= 1 << bit % 8
            try:
                found = bytes(codec.decompress(damaged, limit_bytes=LIMIT_BYTES, magic=2))
            except (CorruptBatchError, DecompressedSizeError):
                continue
            assert len(found) <= LIMIT_BYTES
            assert not self.detects_damage or found == data

    def test_noise_is_an_error(self, codec: Codec) -> None:
        """Random bytes, and random bytes behind a genuine start."""
        chance = random.Random(11)  # noqa: S311 - the same bytes each time
        start = codec.compress(samples()[2], level=None, magic=2)[:12]
        for _ in range(300):
            noise = chance.randbytes(chance.randrange(64))
            for data in (noise, start + noise):
                try:
                    found = codec.decompress(data, limit_bytes=LIMIT_BYTES, magic=2)
                except StorageError as error:
                    assert isinstance(error, CorruptBatchError | DecompressedSizeError)  # noqa: PT017 - or a result
                else:
                    assert len(found) <= LIMIT_BYTES
