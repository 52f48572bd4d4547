"""Codecs that break one rule each."""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from contract_mutants import ContractMutants, MutantError, altered
from stratalog.errors import CorruptBatchError, DecompressedSizeError
from stratalog.spi import Buffer, Codec
from stratalog.testing.contracts import CodecContract
from stratalog_formats.codecs.gzip import GzipCodec

_HEAD: Final = b"\x1f\x8b"
_HEAD_BYTES: Final = 10
_GZIP: Final = 31  # bits of a window, with the header of gzip


class GzipContract(CodecContract):
    """The codec contract for gzip."""

    detects_damage = True
    ignores_trailing = True

    def hostile_streams(self) -> Mapping[str, bytes]:
        """Return a small stream that decompresses to 32 MiB."""
        return {"bomb": gzip.compress(bytes(32 << 20))}


def _compress(data: Buffer, level: int | None = None, magic: int = 2) -> bytes:
    return GzipCodec().compress(data, level=level, magic=magic)


def _decompress(data: Buffer, limit_bytes: int, magic: int = 2) -> memoryview:
    return GzipCodec().decompress(data, limit_bytes=limit_bytes, magic=magic)


def _first(data: Buffer) -> tuple[bytes, bytes, bool]:
    """Return the contents of the first gzip stream, the bytes after it, and True if the stream is complete."""
    stream = zlib.decompressobj(_GZIP)
    return stream.decompress(data), stream.unused_data, stream.eof


def _made(**changes: Any) -> Callable[[Path], Codec]:
    def make(folder: Path) -> Codec:
        del folder
        return altered(GzipCodec(), **changes)  # type: ignore[no-any-return] # the same class

    return make


def _packs(change: Callable[[Buffer, int | None, int], Buffer]) -> Callable[[Path], Codec]:
    """Return a function that makes codecs that change the data before they compress it."""

    def compress(_: Codec, data: Buffer, *, level: int | None, magic: int) -> bytes:
        return _compress(change(data, level, magic), level, magic)

    return _made(compress=compress)


def _unpacks(change: Callable[[Buffer, int], Buffer]) -> Callable[[Path], Codec]:
    """Return a function that makes codecs whose ``decompress`` returns the result of ``change``."""

    def decompress(_: Codec, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        del magic
        return memoryview(change(data, limit_bytes))

    return _made(decompress=decompress)


def _nearest_level(_: Codec, data: Buffer, *, level: int | None, magic: int) -> bytes:
    return _compress(data, None if level is None else min(max(level, 0), 9), magic)


def _in_one_room(folder: Path) -> Codec:
    room = bytearray(2 << 20)

    def decompress(data: Buffer, limit_bytes: int) -> Buffer:
        decompressed = _decompress(data, limit_bytes)
        room[: len(decompressed)] = decompressed
        return memoryview(room)[: len(decompressed)]

    return _unpacks(decompress)(folder)


def _for_one_thread(folder: Path) -> Codec:
    owner = threading.get_ident()
    return _packs(lambda data, _, __: data if threading.get_ident() == owner else bytes(data)[:-1])(folder)


def _first_stream(data: Buffer, limit_bytes: int) -> Buffer:
    decompressed, remaining_data, _ = _first(data) if bytes(data[:2]) == _HEAD else (b"", b"", True)
    return decompressed if remaining_data.startswith(_HEAD) else _decompress(data, limit_bytes)


def _with_the_rest(data: Buffer, limit_bytes: int) -> Buffer:
    decompressed = bytes(_decompress(data, limit_bytes))
    remaining_data = _first(data)[1]
    return decompressed if remaining_data.startswith(_HEAD) else decompressed + remaining_data


def _wipes(_: Codec, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
    decompressed = bytes(_decompress(data, limit_bytes, magic))
    if isinstance(data, bytearray):
        data[:] = bytes(len(data))
    return memoryview(decompressed)


def _as_bytes(_: Codec, data: Buffer, *, limit_bytes: int, magic: int) -> bytes:
    return bytes(_decompress(data, limit_bytes, magic))


def _reserves(data: Buffer, limit_bytes: int) -> Buffer:
    room = bytearray(limit_bytes)
    del room
    return _decompress(data, limit_bytes)


def _all_at_once(least_bytes: int) -> Callable[[Buffer, int], Buffer]:
    """Return a function that decompresses large inputs completely before it checks ``limit_bytes``."""

    def decompress(data: Buffer, limit_bytes: int) -> Buffer:
        if len(data) < least_bytes:
            return _decompress(data, limit_bytes)
        decompressed = _decompress(data, 1 << 30)
        if len(decompressed) > limit_bytes:
            raise DecompressedSizeError(f"{len(decompressed)} bytes are above {limit_bytes}", "", 0)
        return decompressed

    return decompress


def _empty_if_cut(data: Buffer, limit_bytes: int) -> Buffer:
    try:
        return _decompress(data, limit_bytes)
    except CorruptBatchError:
        if len(data) > _HEAD_BYTES and bytes(data[:2]) == _HEAD and not _first(data)[2]:
            return b""
        raise


def _without_the_crc(data: Buffer, limit_bytes: int) -> Buffer:
    try:
        return _decompress(data, limit_bytes)
    except CorruptBatchError:
        try:
            stream = zlib.decompressobj(-15)
            decompressed = stream.decompress(data[_HEAD_BYTES:])
        except zlib.error:
            raise CorruptBatchError("no stream", "", 0) from None
        if not stream.eof or len(stream.unused_data) < 8:
            raise
        return decompressed


def _untyped(data: Buffer, limit_bytes: int) -> Buffer:
    try:
        return _decompress(data, limit_bytes)
    except CorruptBatchError as error:
        if len(data) > 2 and bytes(data[:2]) != _HEAD:
            raise MutantError("noise") from error
        raise


MUTANTS: Final = ContractMutants(
    contract=GzipContract,
    fixture="codec",
    sound=_made(),
    mutants={
        "test_id_fits_the_attributes": _made(id=9),
        "test_compressed_bytes_come_back": _packs(lambda data, _, magic: data if magic else bytes(data)[:-1]),
        "test_results_have_the_types_of_the_contract": _made(decompress=_as_bytes),
        "test_every_level_comes_back": _packs(lambda data, level, _: data if level != 9 else bytes(data)[:-1]),
        "test_a_level_outside_the_range_is_refused": _made(compress=_nearest_level),
        "test_a_result_stays_as_it_is": _in_one_room,
        "test_threads_share_it": _for_one_thread,
        "test_streams_behind_each_other": _unpacks(_first_stream),
        "test_bytes_after_the_stream_are_never_contents": _unpacks(_with_the_rest),
        "test_any_kind_of_buffer_is_taken_and_left_as_it_was": _made(decompress=_wipes),
        "test_the_limit_holds_to_the_byte": _unpacks(lambda data, limit_bytes: _decompress(data, limit_bytes + 1)),
        "test_memory_goes_with_the_contents_and_the_limit": _unpacks(_reserves),
        "test_a_bomb_costs_its_limit": _unpacks(_all_at_once(40_000)),
        "test_wrong_sizes_take_at_most_the_limit": _unpacks(_all_at_once(20_000)),
        "test_a_cut_stream_is_an_error": _unpacks(_empty_if_cut),
        "test_a_flipped_bit_is_an_error_or_harmless": _unpacks(_without_the_crc),
        "test_noise_is_an_error": _unpacks(_untyped),
    },
)
