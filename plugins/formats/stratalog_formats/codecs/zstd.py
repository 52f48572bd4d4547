"""zstd, codec 4: frames behind each other, none in V0 and V1.

Frames say how large their contents are, which Kafka's stream writer cannot know: a reader then allocates just that, and
needs no window beside it.

Source: apache/kafka ZstdCompression, over zstd-jni's streams (window limit 128 MiB).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import ClassVar, Final, NamedTuple

import zstandard

from stratalog.spi import Buffer, Codec, CorruptBatchError, DecompressedSizeError
from stratalog_formats.codecs.levels import checked_level

_DEFAULT_LEVEL: Final = 3
_LEVELS: Final = range(-131072, 23)
_WINDOW_LIMIT_BYTES: Final = 1 << 27
_AT_ONCE_BYTES: Final = (
    1 << 21
)  # what may be taken without knowing that it is needed; the usual window of Kafka's writer
_IDLE_BYTES: Final = 1 << 22  # what a context may hold while it waits for its next use
_DESCRIPTOR: Final = 4  # the byte of the header that tells what it holds
_SIZE_OF_8_BYTES: Final = 0xC0
_RUN_BLOCK: Final = 1  # one byte, repeated
_COMPRESSED_BLOCK: Final = 2
_BLOCK: Final = Struct("<HB")  # of a block's header, 24 bits
_BLOCK_BYTES: Final = 1 << 17  # the most that a block holds
_SKIPPABLE: Final = b"\x2a\x4d\x18"  # behind a byte of 0x50 to 0x5f
_SKIPPABLE_LOW: Final = 0x5


class _Frame(NamedTuple):
    """A frame: its bytes, where it is, and what its headers say."""

    raw: memoryview
    position: int
    parameters: zstandard.FrameParameters
    most_bytes: int


class ZstdCodec(Codec):
    """Standard frames without checksum."""

    id: ClassVar[int] = 4
    levels: ClassVar[range | None] = _LEVELS

    def __init__(self) -> None:
        # Contexts cost more than a small batch to make, and serve one thread at a time: whoever needs one takes it out.
        self._packers = dict[int, list[zstandard.ZstdCompressor]]()
        self._unpackers = list[zstandard.ZstdDecompressor]()

    def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
        """One frame. ConfigError for a level outside ``levels``."""
        del magic
        wanted = checked_level("zstd", level, _LEVELS, _DEFAULT_LEVEL)
        idle = self._packers.setdefault(wanted, [])
        try:
            packer = idle.pop()
        except IndexError:
            packer = zstandard.ZstdCompressor(level=wanted)
        packed = packer.compress(data)
        if packer.memory_size() <= _IDLE_BYTES:
            idle.append(packer)
        return packed

    def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        """All frames behind each other."""
        del magic
        frames = _frames(memoryview(data))
        try:
            unpacker = self._unpackers.pop()
        except IndexError:
            unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW_LIMIT_BYTES)
        found = _contents(unpacker, frames, limit_bytes)
        if unpacker.memory_size() <= _IDLE_BYTES:
            self._unpackers.append(unpacker)
        return memoryview(found).toreadonly()


def _frames(view: memoryview) -> list[_Frame]:
    """The frames of ``view``, which must be whole frames and nothing else: the library does not check that.

    Only headers of frames and blocks are looked at (RFC 8878, 3.1.1).
    """
    if not view:
        raise CorruptBatchError("the zstd data is empty", "")
    frames: list[_Frame] = []
    position = 0
    while position < len(view):
        if view[position + 1 : position + 4].tobytes() == _SKIPPABLE and view[position] >> 4 == _SKIPPABLE_LOW:
            position += 8 + int.from_bytes(view[position + 4 : position + 8], "little")
        else:
            frames.append(_frame(view, position))
            position += len(frames[-1].raw)
        if position > len(view):
            raise CorruptBatchError("the zstd data is cut off", "", len(view))
    return frames


def _frame(view: memoryview, start: int) -> _Frame:
    head = view[start:] if start else view
    try:
        parameters = zstandard.get_frame_parameters(head)
        header_bytes = zstandard.frame_header_size(head)
    except zstandard.ZstdError as error:
        raise CorruptBatchError(f"bad zstd frame: {error}", "", start) from error
    if parameters.window_size > _WINDOW_LIMIT_BYTES:
        raise CorruptBatchError(f"the zstd frame needs a window of {parameters.window_size} bytes", "", start)
    end, most_bytes = _blocks_end(view, start + header_bytes)
    if parameters.has_checksum:
        end += 4
    if end > len(view):
        raise CorruptBatchError("the zstd data is cut off", "", len(view))
    if most_bytes < parameters.content_size != zstandard.CONTENTSIZE_UNKNOWN:
        said = parameters.content_size
        raise CorruptBatchError(f"a zstd frame of at most {most_bytes} bytes claims to hold {said}", "", start)
    return _Frame(view[start:end], start, parameters, most_bytes)


def _blocks_end(view: memoryview, position: int) -> tuple[int, int]:
    """Where the last block ends (past ``view`` if it is cut off), and how many bytes all may hold."""
    last = most_bytes = 0
    while not last:
        if position + _BLOCK.size > len(view):
            return len(view) + 1, most_bytes
        low, high = _BLOCK.unpack_from(view, position)
        last, kind, size = low & 1, low >> 1 & 3, low >> 3 | high << 13
        most_bytes += _BLOCK_BYTES if kind == _COMPRESSED_BLOCK else size
        position += _BLOCK.size + (1 if kind == _RUN_BLOCK else size)
    return position, most_bytes


def _contents(unpacker: zstandard.ZstdDecompressor, frames: list[_Frame], limit_bytes: int) -> Buffer:
    if len(frames) == 1:
        return _unpack(unpacker, frames[0], limit_bytes)
    found = bytearray()
    for frame in frames:
        found += _unpack(unpacker, frame, limit_bytes - len(found))
    return found


def _unpack(unpacker: zstandard.ZstdDecompressor, frame: _Frame, limit_bytes: int) -> Buffer:
    """The contents of a frame: in one step if their size is said, or may be taken to be what the blocks may hold."""
    size, window_bytes = frame.parameters.content_size, frame.parameters.window_size
    most_bytes = frame.most_bytes
    try:
        if 0 < size != zstandard.CONTENTSIZE_UNKNOWN:
            if size > limit_bytes:
                raise _too_large(frame, limit_bytes)
            return unpacker.decompress(frame.raw)
        if 0 < most_bytes <= min(limit_bytes, _AT_ONCE_BYTES):
            return unpacker.decompress(frame.raw, max_output_size=most_bytes)
        if min(window_bytes, most_bytes, limit_bytes) > _AT_ONCE_BYTES:
            size = sum(map(len, _pieces(unpacker, frame, limit_bytes)))
            return unpacker.decompress(_with_size(frame, size)) if size else b""
        return _gathered(_pieces(unpacker, frame, limit_bytes))
    except zstandard.ZstdError as error:
        raise CorruptBatchError(f"bad zstd data: {error}", "", frame.position) from error


def _pieces(unpacker: zstandard.ZstdDecompressor, frame: _Frame, limit_bytes: int) -> Iterator[bytes]:
    """The contents in pieces, and beside these a window, as the library holds one to make them."""
    size = 0
    for piece in unpacker.read_to_iter(frame.raw, write_size=_BLOCK_BYTES):
        size += len(piece)
        if size > limit_bytes:
            raise _too_large(frame, limit_bytes)
        yield piece


def _gathered(pieces: Iterator[bytes]) -> bytearray:
    found = bytearray()
    for piece in pieces:
        found += piece
    return found


def _with_size(frame: _Frame, size: int) -> bytes:
    """The frame, which does not say how large its contents are, saying so: no window is then held beside them."""
    end = zstandard.frame_header_size(frame.raw)
    head = bytearray(frame.raw[:end])
    head[_DESCRIPTOR] |= _SIZE_OF_8_BYTES
    return b"".join((head, size.to_bytes(8, "little"), frame.raw[end:]))


def _too_large(frame: _Frame, limit_bytes: int) -> DecompressedSizeError:
    return DecompressedSizeError(f"zstd data grows past {limit_bytes} bytes", "", frame.position)
