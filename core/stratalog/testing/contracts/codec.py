"""What holds for every codec."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from stratalog.errors import ConfigError, CorruptBatchError, DecompressedSizeError, StorageError
from stratalog.spi.codecs import Codec
from stratalog.testing.memory import peak_bytes

LIMIT_BYTES = 1 << 22
SPARE_BYTES = 4 << 20
"""What a codec may take beside the contents, or beside the limit if they would pass it."""
NOISE_BYTES = 1 << 18
"""What the interpreter takes meanwhile."""
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
        reads_joined: whether streams behind each other are one; otherwise what is behind the first is ignored.
        ignores_trailing: whether what is no stream behind one is ignored.
    """

    magics: tuple[int, ...] = MAGICS
    detects_damage: bool = False
    has_end: bool = True
    reads_joined: bool = True
    ignores_trailing: bool = False

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

    def hostile_streams(self) -> Mapping[str, bytes]:
        """Override: streams that lie about what they hold, by what they do."""
        return {}

    def test_every_level_comes_back(self, codec: Codec) -> None:
        """All of them; of a range too long for that, the highest hundred and some of the others."""
        if codec.levels is None:
            pytest.skip("the codec has no levels")
        data = samples()[2] * 20
        for level in {*codec.levels[-100:], *codec.levels[:: max(1, len(codec.levels) // 100)]}:
            packed = codec.compress(data, level=level, magic=2)
            assert bytes(codec.decompress(packed, limit_bytes=LIMIT_BYTES, magic=2)) == data

    def test_a_level_outside_the_range_is_refused(self, codec: Codec) -> None:
        """Typed: neither what the library says, nor its idea of the nearest level."""
        if codec.levels is None:
            pytest.skip("the codec has no levels")
        for level in (codec.levels[0] - 1, codec.levels[-1] + 1, 1 << 40):
            with pytest.raises(ConfigError, match=f"level={level}"):
                codec.compress(b"data", level=level, magic=2)

    def test_a_result_stays_as_it_is(self, codec: Codec) -> None:
        """Nothing is used again for the next call that an earlier one gave away."""
        packed = [codec.compress(data, level=None, magic=2) for data in samples()]
        found = [codec.decompress(stream, limit_bytes=LIMIT_BYTES, magic=2) for stream in packed]
        assert [bytes(data) for data in found] == samples()

    def test_threads_share_it(self, codec: Codec) -> None:
        """Each gets its own contents back."""
        inputs = [bytes([turn]) * 5000 + samples()[3] for turn in range(16)]

        def both_ways(data: bytes) -> bool:
            packed = [codec.compress(data, level=None, magic=2) for _ in range(20)]
            return all(bytes(codec.decompress(each, limit_bytes=LIMIT_BYTES, magic=2)) == data for each in packed)

        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(both_ways, inputs))

    def test_streams_behind_each_other(self, codec: Codec) -> None:
        """They are one, or the first alone counts."""
        parts = samples()[1:5]
        joined = b"".join(codec.compress(part, level=None, magic=2) for part in parts)
        found = bytes(codec.decompress(joined, limit_bytes=LIMIT_BYTES, magic=2))
        assert found == (b"".join(parts) if self.reads_joined else parts[0])

    def test_what_follows_the_stream(self, codec: Codec) -> None:
        """Ignored, or an error; never contents."""
        data = samples()[4]
        packed = codec.compress(data, level=None, magic=2)
        for end in (b"garbage", bytes(16), b"\xff" * 40):
            if self.ignores_trailing:
                assert bytes(codec.decompress(packed + end, limit_bytes=LIMIT_BYTES, magic=2)) == data
            else:
                with pytest.raises(CorruptBatchError):
                    codec.decompress(packed + end, limit_bytes=LIMIT_BYTES, magic=2)

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

    def test_a_bomb_costs_its_limit(self, codec: Codec) -> None:
        """Also what a library allocates by itself; with the whole allowed, it costs that once."""
        size = 48 << 20
        bomb = codec.compress(bytes(size), level=None, magic=2)
        codec.decompress(bomb, limit_bytes=size, magic=2)  # what is loaded at first use does not count
        for limit_bytes in (0, 1 << 20, size // 2, size - 1, size, 1 << 30):
            peak = peak_bytes(lambda: codec.decompress(bomb, limit_bytes=limit_bytes, magic=2))  # noqa: B023 - at once
            assert peak <= min(limit_bytes, size) + SPARE_BYTES + NOISE_BYTES

    def test_lies_cost_no_more_than_the_limit(self, codec: Codec) -> None:
        """Whatever a stream claims; and what is found keeps the limit."""
        for name, stream in self.hostile_streams().items():
            for limit_bytes in (0, 1 << 20, 1 << 25):
                sizes: list[int] = []

                def decompress(
                    limit_bytes: int = limit_bytes, stream: bytes = stream, sizes: list[int] = sizes
                ) -> None:
                    sizes.append(len(codec.decompress(stream, limit_bytes=limit_bytes, magic=2)))

                peak = peak_bytes(decompress)
                assert peak <= limit_bytes + SPARE_BYTES + NOISE_BYTES, name
                assert all(size <= limit_bytes for size in sizes), name

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
