"""Kafka's codecs pass the contract of codecs, and follow the rules of Kafka's own implementations."""

from __future__ import annotations

import gzip
import random
from collections.abc import Mapping

import cramjam
import lz4.block
import lz4.frame
import pytest
import zstandard

import hostile_streams
from stratalog.errors import CorruptBatchError, DecompressedSizeError
from stratalog.spi import Codec
from stratalog.testing.contracts import CodecContract
from stratalog_formats.codecs.gzip import GzipCodec
from stratalog_formats.codecs.lz4 import Lz4Codec
from stratalog_formats.codecs.snappy import SnappyCodec
from stratalog_formats.codecs.zstd import ZstdCodec

LIMIT_BYTES = 1 << 20
TEXT = b"alpha beta gamma " * 50


class TestGzip(CodecContract):
    detects_damage = True
    ignores_trailing = True

    @pytest.fixture
    def codec(self) -> Codec:
        return GzipCodec()

    def hostile_streams(self) -> Mapping[str, bytes]:
        return hostile_streams.gzip_streams()

    def test_members_behind_each_other_are_one_stream(self, codec: Codec) -> None:
        stream = gzip.compress(TEXT) + gzip.compress(b"more")
        assert bytes(codec.decompress(stream, limit_bytes=LIMIT_BYTES, magic=2)) == TEXT + b"more"

    def test_many_empty_members_are_read_in_one_pass(self, codec: Codec) -> None:
        """The rest of the input is not copied for each member, so that 20,000 members need little time."""
        stream = gzip.compress(b"") * 20_000 + gzip.compress(TEXT)
        assert bytes(codec.decompress(stream, limit_bytes=LIMIT_BYTES, magic=2)) == TEXT

    @pytest.mark.parametrize(
        "end", [b"\x1f", b"\x1f\x8b", b"\x1f\x8b\x08" + bytes(15), b"\x1f\x8b" + bytes(40), bytes(40)]
    )
    def test_bytes_behind_the_first_gzip_member_are_ignored(self, codec: Codec, end: bytes) -> None:
        """Java's GZIPInputStream, too, ends at an invalid header, and at bytes that are too few for a member."""
        stream = gzip.compress(TEXT) + end
        assert bytes(codec.decompress(stream, limit_bytes=LIMIT_BYTES, magic=2)) == TEXT

    def test_a_second_member_that_is_cut_is_an_error(self, codec: Codec) -> None:
        with pytest.raises(CorruptBatchError, match="cut off"):
            codec.decompress(gzip.compress(TEXT) + gzip.compress(TEXT)[:-1], limit_bytes=LIMIT_BYTES, magic=2)

    @pytest.mark.parametrize("reserved", [0, 0xE1])
    def test_every_optional_part_of_a_header_is_passed_over(self, codec: Codec, reserved: int) -> None:
        """The header has an extra field, a name, a comment and its own CRC.

        Like Java, the codec ignores reserved flags.
        """
        head, checksum, body = hostile_streams.gzip_with_every_part(TEXT, reserved=reserved)
        assert bytes(codec.decompress(head + checksum + body, limit_bytes=LIMIT_BYTES, magic=2)) == TEXT
        for size in range(len(head) + 2):
            with pytest.raises(CorruptBatchError):
                codec.decompress((head + checksum + body)[:size], limit_bytes=LIMIT_BYTES, magic=2)
        with pytest.raises(CorruptBatchError):
            codec.decompress(head + checksum[::-1] + body, limit_bytes=LIMIT_BYTES, magic=2)

    def test_members_of_equal_size_are_kept_apart(self, codec: Codec) -> None:
        """The fast library decompresses only the first member, and takes its size from the end of the last one.

        Here both sizes are equal, so the size does not show that there are two members.
        """
        for second in (TEXT, TEXT[::-1]):
            stream = gzip.compress(TEXT) + gzip.compress(second)
            assert bytes(codec.decompress(stream, limit_bytes=LIMIT_BYTES, magic=2)) == TEXT + second

    def test_a_start_of_a_member_may_be_contents(self, codec: Codec) -> None:
        """Level 0 stores the contents unchanged. Contents that look like a member must not be read as one."""
        size = (1 << 16) - 1
        data = bytearray(random.Random(3).randbytes(size))  # noqa: S311 - the same bytes each time
        data[500:507] = size.to_bytes(4, "little") + b"\x1f\x8b\x08"
        stream = gzip.compress(data, 0)
        assert data[500:507] in stream
        assert bytes(codec.decompress(stream, limit_bytes=LIMIT_BYTES, magic=2)) == data

    def test_levels_are_those_of_zlib(self, codec: Codec) -> None:
        """For these data, a higher level never gives a larger result. The default level is 6."""
        data = random.Random(5).randbytes(200).hex().encode() * 20 + TEXT  # noqa: S311 - the same bytes each time
        sizes = [len(codec.compress(data, level=level, magic=2)) for level in (1, 6, 9)]
        assert sizes == sorted(sizes, reverse=True)
        assert codec.compress(data, level=None, magic=2) == codec.compress(data, level=6, magic=2)


class TestSnappy(CodecContract):
    has_end = False

    @pytest.fixture
    def codec(self) -> Codec:
        return SnappyCodec()

    def hostile_streams(self) -> Mapping[str, bytes]:
        return hostile_streams.snappy_streams()

    @pytest.mark.parametrize("extra", range(4))
    def test_less_than_a_size_at_the_end_is_ignored(self, codec: Codec, extra: int) -> None:
        stream = codec.compress(TEXT * 100, level=None, magic=2) + b"\xff" * extra
        assert bytes(codec.decompress(stream, limit_bytes=LIMIT_BYTES, magic=2)) == TEXT * 100

    def test_one_raw_block_is_read_too(self, codec: Codec) -> None:
        """librdkafka writes raw blocks without the header of xerial."""
        block = bytes(cramjam.snappy.compress_raw(TEXT))
        assert bytes(codec.decompress(block, limit_bytes=LIMIT_BYTES, magic=1)) == TEXT
        with pytest.raises(DecompressedSizeError):
            codec.decompress(block, limit_bytes=len(TEXT) - 1, magic=1)

    def test_streams_may_start_again_between_blocks(self, codec: Codec) -> None:
        """A block may be followed by the header of another stream.

        The first header may have any version, later ones must have version 1 or above.
        """
        head, stream = b"\x82SNAPPY\0", codec.compress(TEXT, level=None, magic=2)
        first = head + bytes(8) + stream[16:]
        assert bytes(codec.decompress(first, limit_bytes=LIMIT_BYTES, magic=2)) == TEXT
        assert bytes(codec.decompress(stream + stream, limit_bytes=LIMIT_BYTES, magic=2)) == TEXT * 2
        for invalid_header in (head + bytes(8), stream[:15], b"\x82SNAPPX\0" + stream[8:]):
            with pytest.raises(CorruptBatchError):
                codec.decompress(stream + invalid_header, limit_bytes=LIMIT_BYTES, magic=2)
        assert bytes(codec.decompress(stream[:16], limit_bytes=0, magic=2)) == b""

    def test_more_blocks_than_the_codec_keeps_in_memory_are_read(self, codec: Codec) -> None:
        """The stream has more blocks than the codec keeps in memory between its two passes."""
        letters = [bytes([n % 256]) for n in range(3000)]
        blocks = [bytes(cramjam.snappy.compress_raw(letter)) for letter in letters]
        stream = b"\x82SNAPPY\0" + bytes(8) + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)
        assert bytes(codec.decompress(stream, limit_bytes=3000, magic=2)) == b"".join(letters)
        with pytest.raises(DecompressedSizeError):
            codec.decompress(stream, limit_bytes=2999, magic=2)


class TestLz4(CodecContract):
    reads_joined = False
    ignores_trailing = True

    @pytest.fixture
    def codec(self) -> Codec:
        return Lz4Codec()

    def hostile_streams(self) -> Mapping[str, bytes]:
        return hostile_streams.lz4_streams()

    def test_magic_0_has_a_header_checksum_of_its_own(self, codec: Codec) -> None:
        """KAFKA-3160: with magic 0, the header checksum also covers the frame's magic.

        Readers of magic 0 accept both checksums; readers of later magics accept only the correct one.
        """
        old, new = (codec.compress(TEXT, level=None, magic=magic) for magic in (0, 2))
        assert (old[6], new[6]) == (0x1A, 0x82)
        assert old[:6] + old[7:] == new[:6] + new[7:]
        assert bytes(codec.decompress(old, limit_bytes=LIMIT_BYTES, magic=0)) == TEXT
        assert bytes(codec.decompress(new, limit_bytes=LIMIT_BYTES, magic=0)) == TEXT
        with pytest.raises(CorruptBatchError, match="checksum"):
            codec.decompress(old, limit_bytes=LIMIT_BYTES, magic=1)

    def test_an_empty_stored_block_is_the_end_mark(self, codec: Codec) -> None:
        """Like Kafka, the codec ignores the bit of stored blocks when it compares the size with 0, the end mark."""
        frame = codec.compress(TEXT, level=None, magic=2)
        assert frame[-4:] == bytes(4)
        ended_frame = frame[:-4] + b"\0\0\0\x80"
        assert bytes(codec.decompress(ended_frame + b"more", limit_bytes=LIMIT_BYTES, magic=2)) == TEXT

    @pytest.mark.parametrize("size", [4, 5, 6, 7])
    def test_blocks_of_every_size_are_read_with_or_without_checksums(self, codec: Codec, size: int) -> None:
        data = TEXT * 9000
        for checks in (False, True):
            frame = lz4.frame.compress(
                data, block_size=size, block_linked=False, content_checksum=checks, block_checksum=checks
            )
            assert bytes(codec.decompress(frame, limit_bytes=len(data), magic=2)) == data

    def test_a_wrong_block_checksum_is_an_error_a_wrong_content_checksum_is_not(self, codec: Codec) -> None:
        """Like Kafka, the codec verifies the checksums of blocks, and ignores the checksum of the content."""
        for kind, is_checked in (("block_checksum", True), ("content_checksum", False)):
            frame = bytearray(lz4.frame.compress(TEXT, block_linked=False, **{kind: True}))
            frame[-5 if is_checked else -1] ^= 1
            if is_checked:
                with pytest.raises(CorruptBatchError, match="block checksum"):
                    codec.decompress(frame, limit_bytes=LIMIT_BYTES, magic=2)
            else:
                assert bytes(codec.decompress(frame, limit_bytes=LIMIT_BYTES, magic=2)) == TEXT

    def test_a_size_in_front_of_a_block_is_no_part_of_one(self, codec: Codec) -> None:
        """If a block is invalid, the library reads its first bytes as a size and decompresses the rest.

        Kafka does not, and neither must the codec.
        """
        block = lz4.block.compress(TEXT, store_size=False)
        frame = hostile_streams.lz4_frame([(block, False)])
        assert bytes(codec.decompress(frame, limit_bytes=LIMIT_BYTES, magic=2)) == TEXT
        for size in (len(TEXT), 1 << 16):
            lying = hostile_streams.lz4_frame([(size.to_bytes(4, "little") + block, False)])
            with pytest.raises(CorruptBatchError):
                codec.decompress(lying, limit_bytes=LIMIT_BYTES, magic=2)

    def test_blocks_that_begin_with_a_small_number(self, codec: Codec) -> None:
        """The first bytes of a compressed block of zeros look like a size, but are part of the block."""
        for data in (bytes(5), bytes(8) + TEXT, bytes(60), bytes(300_000)):
            frame = codec.compress(data, level=None, magic=2)
            assert bytes(codec.decompress(frame, limit_bytes=len(data), magic=2)) == data

    def test_each_level_except_the_default_is_the_high_compression(self, codec: Codec) -> None:
        """As in Kafka, level 9 selects the fast compressor, and all other levels, also 1 and 2, the high compressor."""
        data = random.Random(7).randbytes(3000).hex().encode() * 3  # noqa: S311 - the same bytes each time
        fast = codec.compress(data, level=9, magic=2)
        assert fast == codec.compress(data, level=None, magic=2)
        assert all(len(codec.compress(data, level=level, magic=2)) < len(fast) for level in (1, 2, 3, 8, 10, 17))


class TestZstd(CodecContract):
    magics = (2,)

    @pytest.fixture
    def codec(self) -> Codec:
        return ZstdCodec()

    def hostile_streams(self) -> Mapping[str, bytes]:
        return hostile_streams.zstd_streams()

    def test_a_bomb_is_stopped_at_the_limit(self, codec: Codec) -> None:
        frame = codec.compress(bytes(64 << 20), level=None, magic=2)
        assert len(frame) < 10_000
        with pytest.raises(DecompressedSizeError):
            codec.decompress(frame, limit_bytes=LIMIT_BYTES, magic=2)

    @pytest.mark.long
    def test_frames_with_and_without_size_are_read(self, codec: Codec) -> None:
        """Reads frames with and without size and checksum, single and joined, and skippable frames between them."""
        data = random.Random(9).randbytes(300_000) + TEXT * 20_000  # noqa: S311 - the same bytes each time
        skipped = b"\x5f\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
        frames = [
            zstandard.ZstdCompressor(level=level, write_content_size=has_size, write_checksum=has_size).compress(data)
            for level in (1, 22)
            for has_size in (False, True)
        ]
        for frame in frames:
            assert bytes(codec.decompress(frame, limit_bytes=len(data), magic=2)) == data
            assert bytes(codec.decompress(skipped + frame, limit_bytes=len(data), magic=2)) == data
            with pytest.raises(DecompressedSizeError):
                codec.decompress(frame + skipped, limit_bytes=len(data) - 1, magic=2)
        stream = skipped.join(frames)
        assert bytes(codec.decompress(stream, limit_bytes=4 * len(data), magic=2)) == data * 4
        with pytest.raises(DecompressedSizeError):
            codec.decompress(stream, limit_bytes=4 * len(data) - 1, magic=2)

    def test_a_large_window_is_no_reason_to_refuse(self, codec: Codec) -> None:
        """Like Kafka's reader, the codec accepts windows up to 128 MiB."""
        data = TEXT * 6000
        for window_log, is_fine in ((27, True), (28, False)):
            parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=window_log)
            packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
            frame = packer.compress(data) + packer.flush()
            if is_fine:
                assert bytes(codec.decompress(frame, limit_bytes=len(data), magic=2)) == data
                assert bytes(codec.decompress(frame * 2, limit_bytes=2 * len(data), magic=2)) == data * 2
            else:
                with pytest.raises(CorruptBatchError, match="window"):
                    codec.decompress(frame, limit_bytes=len(data), magic=2)

    def test_a_wrong_checksum_is_an_error(self, codec: Codec) -> None:
        frame = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(TEXT))
        frame[-1] ^= 1
        with pytest.raises(CorruptBatchError):
            codec.decompress(frame, limit_bytes=LIMIT_BYTES, magic=2)
