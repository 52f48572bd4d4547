"""zstd, codec 4: concatenated frames. Record formats V0 and V1 do not support zstd.

Unlike Kafka, stratalog writes frames that contain the size of their contents. A reader can allocate exactly this size,
and needs no memory for a window.

Source: apache/kafka ZstdCompression, over zstd-jni's streams (window limit 128 MiB).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import ClassVar, Final, NamedTuple

import zstandard

from stratalog.errors import CorruptBatchError, DecompressedSizeError
from stratalog.spi import Buffer, Codec
from stratalog_formats.codecs.levels import check_level

_DEFAULT_LEVEL: Final = 3
_LEVELS: Final = range(-131072, 23)
_WINDOW_LIMIT_BYTES: Final = 1 << 27
# Largest window that may be allocated in addition to the contents. Kafka's writer usually has a window of this size.
_RING_BYTES: Final = 1 << 21
_IDLE_BYTES: Final = 1 << 22  # limit of memory that an idle context may hold
_DESCRIPTOR: Final = 4  # position of the header byte that describes the other header fields
_SIZE_OF_8_BYTES: Final = 0xC0
_RUN_BLOCK: Final = 1  # type of a block that is one repeated byte
_COMPRESSED_BLOCK: Final = 2
_BLOCK: Final = Struct("<HB")  # a block's header, 24 bits
_BLOCK_BYTES: Final = 1 << 17  # largest content of a block
_SKIPPABLE: Final = b"\x2a\x4d\x18"  # magic of a skippable frame, after one byte from 0x50 to 0x5f
_SKIPPABLE_HIGH: Final = 0x5


class _Frame(NamedTuple):
    """A frame: its bytes, the fields of its header, and the largest possible size of its contents."""

    raw: memoryview
    parameters: zstandard.FrameParameters
    most_bytes: int

    @property
    def needs_window(self) -> bool:
        """True if decompression needs a window above 2 MiB, because the frame lacks the size of its contents."""
        window_bytes = min(self.parameters.window_size, self.most_bytes)
        return self.parameters.content_size == zstandard.CONTENTSIZE_UNKNOWN and window_bytes > _RING_BYTES


class ZstdCodec(Codec):
    """Codec for zstd. It writes frames without a checksum."""

    id: ClassVar[int] = 4
    levels: ClassVar[range | None] = _LEVELS

    def __init__(self) -> None:
        # Creating a context takes longer than compressing a small batch. One thread at a time may use a context:
        # a call removes it from the list.
        self._packers = dict[int, list[zstandard.ZstdCompressor]]()
        self._unpackers = list[zstandard.ZstdDecompressor]()

    def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
        """Return ``data`` compressed to one frame."""
        del magic
        level = check_level("zstd", level, _LEVELS, _DEFAULT_LEVEL)
        idle = self._packers.setdefault(level, [])
        try:
            packer = idle.pop()
        except IndexError:
            packer = zstandard.ZstdCompressor(level=level)
        frame = packer.compress(data)
        if packer.memory_size() <= _IDLE_BYTES:
            idle.append(packer)
        return frame

    def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        """Return the contents of all concatenated frames."""
        del magic
        view = memoryview(data)
        if not view:
            raise CorruptBatchError("the zstd data is empty", "")
        first = _frame(view, 0)
        try:
            if first and len(first.raw) == len(view):
                contents = self._decompress_frame(first, limit_bytes)
            else:
                contents = _decompress_frames(view, limit_bytes)
        except zstandard.ZstdError as error:
            raise CorruptBatchError(f"bad zstd data: {error}", "") from error
        return memoryview(contents).toreadonly()

    def _decompress_frame(self, frame: _Frame, limit_bytes: int) -> Buffer:
        """Return the contents of one frame. Raise DecompressedSizeError if they exceed ``limit_bytes``.

        If the library cannot decompress the frame in one call, use ``_decompress_frames``.
        """
        stated_bytes, most_bytes = frame.parameters.content_size, frame.most_bytes
        if stated_bytes == zstandard.CONTENTSIZE_UNKNOWN:
            in_one_call = 0 < most_bytes <= limit_bytes and not frame.needs_window
        else:
            in_one_call = stated_bytes > 0  # the library does not verify a size of 0
            if stated_bytes > limit_bytes:
                raise _too_large(limit_bytes)
        if not in_one_call:
            return _decompress_frames(frame.raw, limit_bytes)
        try:
            unpacker = self._unpackers.pop()
        except IndexError:
            unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW_LIMIT_BYTES)
        contents = unpacker.decompress(frame.raw, max_output_size=most_bytes)
        if unpacker.memory_size() <= _IDLE_BYTES:
            self._unpackers.append(unpacker)
        return contents


def _decompress_frames(view: memoryview, limit_bytes: int) -> bytearray:
    """Return the contents of all frames. Raise DecompressedSizeError if they exceed ``limit_bytes``.

    The first of two passes only computes the size of the result.
    """
    raw: Buffer = view
    if sum(frame.needs_window for frame in _frames(view)):  # ``sum``, unlike ``any``, checks every frame
        raw = _add_missing_sizes(view, limit_bytes)
    contents = bytearray(_measure(raw, limit_bytes))
    size = 0
    with memoryview(contents) as output, _reader(raw) as reader:
        while read_bytes := reader.readinto(output[size:]):
            size += read_bytes
    return contents


def _measure(raw: Buffer, limit_bytes: int) -> int:
    size, piece = 0, bytearray(_BLOCK_BYTES)
    with _reader(raw) as reader:
        while read_bytes := reader.readinto(piece):
            size += read_bytes
            if size > limit_bytes:
                raise _too_large(limit_bytes)
    return size


def _reader(raw: Buffer) -> zstandard.ZstdDecompressionReader:
    """Return a reader with its own context. The window of the context is freed together with the reader."""
    unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW_LIMIT_BYTES)
    return unpacker.stream_reader(raw, read_across_frames=True)


def _add_missing_sizes(view: memoryview, limit_bytes: int) -> bytearray:
    """Return the frames of ``view`` except skippable frames; headers of frames that need a window get a size."""
    frames = bytearray()
    for frame in _frames(view):
        frames += _with_size(frame, _measure(frame.raw, limit_bytes)) if frame.needs_window else frame.raw
    return frames


def _frames(view: memoryview) -> Iterator[_Frame]:
    """Yield the frames of ``view`` except skippable frames. Raise CorruptBatchError if a frame is damaged."""
    position = 0
    while position < len(view):
        frame = _frame(view, position)
        if frame:
            yield frame
            position += len(frame.raw)
        else:
            position += 8 + int.from_bytes(view[position + 4 : position + 8], "little")
            if position > len(view):
                raise _cut_off(view)


def _frame(view: memoryview, start: int) -> _Frame | None:
    """Return the frame at ``start``; None for a skippable frame. The method reads only headers (RFC 8878, 3.1.1).

    Raise CorruptBatchError if the frame is damaged, cut off, or needs a window above 128 MiB.
    """
    if view[start] >> 4 == _SKIPPABLE_HIGH and view[start + 1 : start + 4].tobytes() == _SKIPPABLE:
        return None
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
        raise _cut_off(view)
    if most_bytes < parameters.content_size != zstandard.CONTENTSIZE_UNKNOWN:
        stated_bytes = parameters.content_size
        raise CorruptBatchError(f"a zstd frame of at most {most_bytes} bytes claims to hold {stated_bytes}", "", start)
    return _Frame(view[start:end], parameters, most_bytes)


def _blocks_end(view: memoryview, position: int) -> tuple[int, int]:
    """Return the end of a frame's last block, and the largest possible contents size.

    The end of a truncated frame is after ``view``.
    """
    last = most_bytes = 0
    while not last:
        if position + _BLOCK.size > len(view):
            return len(view) + 1, most_bytes
        low, high = _BLOCK.unpack_from(view, position)
        last, kind, size = low & 1, low >> 1 & 3, low >> 3 | high << 13
        most_bytes += _BLOCK_BYTES if kind == _COMPRESSED_BLOCK else size
        position += _BLOCK.size + (1 if kind == _RUN_BLOCK else size)
    return position, most_bytes


def _with_size(frame: _Frame, size: int) -> bytes:
    """Return the frame with the size of its contents added to its header."""
    end = zstandard.frame_header_size(frame.raw)
    head = bytearray(frame.raw[:end])
    head[_DESCRIPTOR] |= _SIZE_OF_8_BYTES
    return b"".join((head, size.to_bytes(8, "little"), frame.raw[end:]))


def _cut_off(view: memoryview) -> CorruptBatchError:
    return CorruptBatchError("the zstd data is cut off", "", len(view))


def _too_large(limit_bytes: int) -> DecompressedSizeError:
    return DecompressedSizeError(f"zstd data grows past {limit_bytes} bytes", "")
