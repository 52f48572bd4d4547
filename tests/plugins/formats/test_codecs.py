"""The codecs of Kafka keep the contract of every codec, and its own rules."""

from __future__ import annotations

import gzip
import zlib

import cramjam
import lz4.frame
import pytest

from stratalog.spi import Codec, CorruptBatchError, DecompressedSizeError
from stratalog.testing.contracts import CodecContract
from stratalog_formats.codecs.gzip import GzipCodec
from stratalog_formats.codecs.lz4 import Lz4Codec
from stratalog_formats.codecs.snappy import SnappyCodec
from stratalog_formats.codecs.zstd import ZstdCodec

LIMIT_BYTES = 1 << 20
TEXT = b"alpha beta gamma " * 50


class TestGzip(CodecContract):
    detects_damage = True

    @pytest.fixture
    def codec(self) -> Codec:
        return GzipCodec()

    def test_members_behind_each_other_are_one_stream(self, codec: Codec) -> None:
        packed = gzip.compress(TEXT) + gzip.compress(b"more")
        assert bytes(codec.decompress(packed, limit_bytes=LIMIT_BYTES, magic=2)) == TEXT + b"more"

    def test_many_empty_members_are_read_in_one_pass(self, codec: Codec) -> None:
        """The rest is not copied for each member: 20,000 of them take no time to speak of, and change nothing."""
        packed = gzip.compress(b"") * 20_000 + gzip.compress(TEXT)
        assert bytes(codec.decompress(packed, limit_bytes=LIMIT_BYTES, magic=2)) == TEXT

    @pytest.mark.parametrize(
        "end", [b"\x1f", b"\x1f\x8b", b"\x1f\x8b\x08" + bytes(15), b"\x1f\x8b" + bytes(40), bytes(40)]
    )
    def test_what_is_no_member_behind_the_first_is_ignored(self, codec: Codec, end: bytes) -> None:
        """As Java does: it takes a header that it cannot read, and what is too short for a member, for the end."""
        packed = gzip.compress(TEXT) + end
        assert bytes(codec.decompress(packed, limit_bytes=LIMIT_BYTES, magic=2)) == TEXT

    def test_a_second_member_that_is_cut_is_an_error(self, codec: Codec) -> None:
        with pytest.raises(CorruptBatchError, match="cut off"):
            codec.decompress(gzip.compress(TEXT) + gzip.compress(TEXT)[:-1], limit_bytes=LIMIT_BYTES, magic=2)

    @pytest.mark.parametrize("reserved", [0, 0xE1])
    def test_every_optional_part_of_a_header_is_passed_over(self, codec: Codec, reserved: int) -> None:
        """Extra field, name, comment and the header's own CRC; flags that mean nothing are ignored, as Java does."""
        plain = gzip.compress(TEXT)
        head = plain[:3] + bytes((0x1E | reserved,)) + plain[4:10] + b"\x03\0abc" + b"name\0" + b"comment\0"
        checksum = (zlib.crc32(head) & 0xFFFF).to_bytes(2, "little")
        packed = head + checksum + plain[10:]
        assert bytes(codec.decompress(packed, limit_bytes=LIMIT_BYTES, magic=2)) == TEXT
        for size in range(len(head) + 2):
            with pytest.raises(CorruptBatchError):
                codec.decompress(packed[:size], limit_bytes=LIMIT_BYTES, magic=2)
        with pytest.raises(CorruptBatchError):
            codec.decompress(head + checksum[::-1] + plain[10:], limit_bytes=LIMIT_BYTES, magic=2)


class TestSnappy(CodecContract):
    has_end = False

    @pytest.fixture
    def codec(self) -> Codec:
        return SnappyCodec()

    @pytest.mark.parametrize("extra", range(4))
    def test_less_than_a_size_at_the_end_is_ignored(self, codec: Codec, extra: int) -> None:
        packed = codec.compress(TEXT * 100, level=None, magic=2) + b"\xff" * extra
        assert bytes(codec.decompress(packed, limit_bytes=LIMIT_BYTES, magic=2)) == TEXT * 100

    def test_one_raw_block_is_read_too(self, codec: Codec) -> None:
        """librdkafka wrote them."""
        block = bytes(cramjam.snappy.compress_raw(TEXT))
        assert bytes(codec.decompress(block, limit_bytes=LIMIT_BYTES, magic=1)) == TEXT
        with pytest.raises(DecompressedSizeError):
            codec.decompress(block, limit_bytes=len(TEXT) - 1, magic=1)


class TestLz4(CodecContract):
    @pytest.fixture
    def codec(self) -> Codec:
        return Lz4Codec()

    def test_magic_0_has_a_header_checksum_of_its_own(self, codec: Codec) -> None:
        """KAFKA-3160: it covers the frame's magic too. Newer formats refuse it, and take the right one."""
        old, new = (codec.compress(TEXT, level=None, magic=magic) for magic in (0, 2))
        assert (old[6], new[6]) == (0x1A, 0x82)
        assert old[:6] + old[7:] == new[:6] + new[7:]
        assert bytes(codec.decompress(old, limit_bytes=LIMIT_BYTES, magic=0)) == TEXT
        assert bytes(codec.decompress(new, limit_bytes=LIMIT_BYTES, magic=0)) == TEXT
        with pytest.raises(CorruptBatchError, match="checksum"):
            codec.decompress(old, limit_bytes=LIMIT_BYTES, magic=1)

    def test_an_empty_stored_block_is_the_end_mark(self, codec: Codec) -> None:
        """Kafka leaves out the bit of stored blocks before it looks for the end."""
        packed = codec.compress(TEXT, level=None, magic=2)
        assert packed[-4:] == bytes(4)
        ended = packed[:-4] + b"\0\0\0\x80"
        assert bytes(codec.decompress(ended + b"more", limit_bytes=LIMIT_BYTES, magic=2)) == TEXT

    @pytest.mark.parametrize("size", [4, 5, 6, 7])
    def test_blocks_of_every_size_are_read_with_or_without_checksums(self, codec: Codec, size: int) -> None:
        data = TEXT * 9000
        for checks in (False, True):
            packed = lz4.frame.compress(
                data, block_size=size, block_linked=False, content_checksum=checks, block_checksum=checks
            )
            assert bytes(codec.decompress(packed, limit_bytes=len(data), magic=2)) == data


class TestZstd(CodecContract):
    magics = (2,)

    @pytest.fixture
    def codec(self) -> Codec:
        return ZstdCodec()

    def test_a_bomb_is_stopped_at_the_limit(self, codec: Codec) -> None:
        packed = codec.compress(bytes(64 << 20), level=None, magic=2)
        assert len(packed) < 10_000
        with pytest.raises(DecompressedSizeError):
            codec.decompress(packed, limit_bytes=LIMIT_BYTES, magic=2)
