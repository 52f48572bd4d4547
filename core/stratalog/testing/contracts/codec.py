"""Contract tests of codecs."""

from __future__ import annotations

import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from stratalog.errors import ConfigError, CorruptBatchError, DecompressedSizeError, StorageError
from stratalog.spi.codecs import Codec
from stratalog.testing.memory import memory_below, peak_bytes

LIMIT_BYTES = 1 << 22
SPARE_BYTES = 4 << 20
"""Memory (bytes) that a codec may use in addition to its result, or to the limit if the result would exceed it."""
NOISE_BYTES = 1 << 18
"""Memory in bytes that the interpreter may use during a call."""
MAGICS = (0, 1, 2)


def samples() -> list[bytes]:
    """Return test data that compresses well or not at all, of sizes below and above usual block sizes."""
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
    """Contract of a codec: subclass it, name the class ``Test...``, and override the fixture ``codec``.

    Attributes:
        magics: magics of the record formats that support the codec.
        detects_damage: True if a stream carries a checksum of its contents.
        has_end: True if a stream marks its end. If False, a stream that is cut between two blocks decompresses without
            an error.
        reads_joined: True if ``decompress`` returns the contents of all concatenated streams. If False, it returns the
            contents of the first stream only.
        ignores_trailing: True if ``decompress`` ignores bytes after a stream that are not a stream.
    """

    magics: tuple[int, ...] = MAGICS
    detects_damage: bool = False
    has_end: bool = True
    reads_joined: bool = True
    ignores_trailing: bool = False

    @pytest.fixture
    def codec(self) -> Codec:
        """Return the codec to check; overridden by the subclass."""
        raise NotImplementedError("define the fixture `codec`")

    def test_id_fits_the_attributes(self, codec: Codec) -> None:
        """The codec id fits into bits 0 to 2 of the batch attributes; id 0 means "no codec"."""
        assert 1 <= codec.id <= 7

    def test_compressed_bytes_come_back(self, codec: Codec) -> None:
        """``decompress`` returns the bytes that ``compress`` got, for each of ``magics``, with the default level."""
        for magic in self.magics:
            for data in samples():
                compressed = codec.compress(data, level=None, magic=magic)
                assert bytes(codec.decompress(compressed, limit_bytes=LIMIT_BYTES, magic=magic)) == data

    def test_results_have_the_types_of_the_contract(self, codec: Codec) -> None:
        """``compress`` returns bytes, and ``decompress`` a memoryview: the engine refuses other types."""
        compressed = codec.compress(b"data", level=None, magic=self.magics[-1])
        assert isinstance(compressed, bytes)
        assert isinstance(codec.decompress(compressed, limit_bytes=LIMIT_BYTES, magic=self.magics[-1]), memoryview)

    def hostile_streams(self) -> Mapping[str, bytes]:
        """Return streams with wrong sizes or other false values in their headers, by a name for error texts."""
        return {}

    def test_every_level_comes_back(self, codec: Codec) -> None:
        """``decompress`` returns the contents for every level. If there are many levels, only some are tested."""
        if codec.levels is None:
            pytest.skip("the codec has no levels")
        data = samples()[2] * 20
        for level in {*codec.levels[-100:], *codec.levels[:: max(1, len(codec.levels) // 100)]}:
            compressed = codec.compress(data, level=level, magic=2)
            assert bytes(codec.decompress(compressed, limit_bytes=LIMIT_BYTES, magic=2)) == data

    def test_a_level_outside_the_range_is_refused(self, codec: Codec) -> None:
        """``compress`` raises ConfigError for an invalid level; it does not use the nearest valid level."""
        if codec.levels is None:
            pytest.skip("the codec has no levels")
        for level in (codec.levels[0] - 1, codec.levels[-1] + 1, 1 << 40):
            with pytest.raises(ConfigError, match=f"level={level}"):
                codec.compress(b"data", level=level, magic=2)

    def test_a_result_stays_as_it_is(self, codec: Codec) -> None:
        """A later call does not overwrite the memory of an earlier result."""
        streams = [codec.compress(data, level=None, magic=2) for data in samples()]
        results = [codec.decompress(stream, limit_bytes=LIMIT_BYTES, magic=2) for stream in streams]
        assert [bytes(data) for data in results] == samples()

    def test_threads_share_it(self, codec: Codec) -> None:
        """Several threads can use one codec at the same time."""
        inputs = [bytes([turn]) * 5000 + samples()[3] for turn in range(16)]

        def both_ways(data: bytes) -> bool:
            streams = [codec.compress(data, level=None, magic=2) for _ in range(20)]
            return all(bytes(codec.decompress(stream, limit_bytes=LIMIT_BYTES, magic=2)) == data for stream in streams)

        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(both_ways, inputs))

    def test_streams_behind_each_other(self, codec: Codec) -> None:
        """All concatenated streams are decompressed, or only the first if ``reads_joined`` is False."""
        parts = samples()[1:5]
        streams = b"".join(codec.compress(part, level=None, magic=2) for part in parts)
        contents = bytes(codec.decompress(streams, limit_bytes=LIMIT_BYTES, magic=2))
        assert contents == (b"".join(parts) if self.reads_joined else parts[0])

    def test_bytes_after_the_stream_are_never_contents(self, codec: Codec) -> None:
        """Bytes after a stream are ignored or raise CorruptBatchError; they are never returned as contents."""
        data = samples()[4]
        stream = codec.compress(data, level=None, magic=2)
        for end in (b"garbage", bytes(16), b"\xff" * 40):
            if self.ignores_trailing:
                assert bytes(codec.decompress(stream + end, limit_bytes=LIMIT_BYTES, magic=2)) == data
            else:
                with pytest.raises(CorruptBatchError):
                    codec.decompress(stream + end, limit_bytes=LIMIT_BYTES, magic=2)

    def test_any_kind_of_buffer_is_taken_and_left_as_it_was(self, codec: Codec) -> None:
        """``compress`` and ``decompress`` accept any kind of buffer and do not change it."""
        data = samples()[2]
        for buffer in (data, bytearray(data), memoryview(data), memoryview(b"ab" + data + b"cd")[2:-2]):
            stream = codec.compress(buffer, level=None, magic=2)
            for stream_buffer in (stream, bytearray(stream), memoryview(b"ab" + stream + b"cd")[2:-2]):
                before = bytes(stream_buffer)
                assert bytes(codec.decompress(stream_buffer, limit_bytes=LIMIT_BYTES, magic=2)) == data
                assert bytes(stream_buffer) == before
            assert bytes(buffer) == data

    def test_the_limit_holds_to_the_byte(self, codec: Codec) -> None:
        """``decompress`` returns contents of exactly ``limit_bytes``, and refuses contents that are one byte longer."""
        nothing = codec.compress(b"", level=None, magic=2)
        assert bytes(codec.decompress(nothing, limit_bytes=0, magic=2)) == b""
        for data in samples()[1:]:
            stream = codec.compress(data, level=None, magic=2)
            assert len(codec.decompress(stream, limit_bytes=len(data), magic=2)) == len(data)
            with pytest.raises(DecompressedSizeError):
                codec.decompress(stream, limit_bytes=len(data) - 1, magic=2)

    def test_memory_goes_with_the_contents_and_the_limit(self, codec: Codec) -> None:
        """A high ``limit_bytes`` allocates no memory by itself. With a low limit, ``decompress`` stops early."""
        small, bomb = samples()[2], bytes(16 << 20)
        for data, limit_bytes in ((small, 1 << 29), (bomb, 1 << 20)):
            stream = codec.compress(data, level=None, magic=2)
            with memory_below(min(limit_bytes, len(data)) + 2 * len(stream) + (4 << 20)):
                if data is small:
                    codec.decompress(stream, limit_bytes=limit_bytes, magic=2)
                else:
                    with pytest.raises(DecompressedSizeError):
                        codec.decompress(stream, limit_bytes=limit_bytes, magic=2)

    def test_a_bomb_costs_its_limit(self, codec: Codec) -> None:
        """``decompress`` uses at most about ``limit_bytes`` of memory, including memory that a C library allocates."""
        size = 48 << 20
        bomb = codec.compress(bytes(size), level=None, magic=2)
        codec.decompress(bomb, limit_bytes=size, magic=2)  # warm up the library
        for limit_bytes in (0, 1 << 20, size // 2, size - 1, size, 1 << 30):
            peak = peak_bytes(lambda: codec.decompress(bomb, limit_bytes=limit_bytes, magic=2))  # noqa: B023 - at once
            assert peak <= min(limit_bytes, size) + SPARE_BYTES + NOISE_BYTES

    def test_wrong_sizes_take_at_most_the_limit(self, codec: Codec) -> None:
        """For every size that a stream claims, memory and result stay within ``limit_bytes``."""
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
        """A stream cut at any byte raises CorruptBatchError, or returns a prefix if ``has_end`` is False."""
        data = samples()[2]
        stream = codec.compress(data, level=None, magic=2)
        for size in range(len(stream)):
            try:
                contents = bytes(codec.decompress(stream[:size], limit_bytes=LIMIT_BYTES, magic=2))
            except CorruptBatchError:
                continue
            assert not self.has_end
            assert contents == data[: len(contents)]
            assert contents != data

    def test_a_flipped_bit_is_an_error_or_harmless(self, codec: Codec) -> None:
        """Each flipped bit raises CorruptBatchError or DecompressedSizeError, or the result stays within the limit.

        With ``detects_damage``, a result can only be the original contents.
        """
        data = samples()[2]
        stream = codec.compress(data, level=None, magic=2)
        for bit in range(len(stream) * 8):
            damaged = bytearray(stream)
            damaged[bit // 8] ^= 1 << bit % 8
            try:
                contents = bytes(codec.decompress(damaged, limit_bytes=LIMIT_BYTES, magic=2))
            except (CorruptBatchError, DecompressedSizeError):
                continue
            assert len(contents) <= LIMIT_BYTES
            assert not self.detects_damage or contents == data

    def test_noise_is_an_error(self, codec: Codec) -> None:
        """Random bytes raise a typed error or return at most ``limit_bytes``, even after a valid start of a stream."""
        chance = random.Random(11)  # noqa: S311 - the same bytes each time
        start = codec.compress(samples()[2], level=None, magic=2)[:12]
        for _ in range(300):
            noise = chance.randbytes(chance.randrange(64))
            for data in (noise, start + noise):
                try:
                    contents = codec.decompress(data, limit_bytes=LIMIT_BYTES, magic=2)
                except StorageError as error:
                    assert isinstance(error, CorruptBatchError | DecompressedSizeError)  # noqa: PT017 - or a result
                else:
                    assert len(contents) <= LIMIT_BYTES
