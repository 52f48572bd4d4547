"""The codecs of Kafka keep the contract of every codec, and its own rules."""

from __future__ import annotations

import gzip

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


class TestSnappy(CodecContract):
    @pytest.fixture
    def codec(self) -> Codec:
        return SnappyCodec()


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
