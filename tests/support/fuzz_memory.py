"""Memory cost of hostile entries: the growth of a process's peak resident memory, including memory outside of Python.

``measure`` runs this file as a script, which forks a child for every case. A child begins with the memory of its
parent. The difference between the child's peak and that memory is the cost of the case.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

import twins
from entry_parts import seal, varint
from forked import fork_with_pipe
from stratalog import Record
from stratalog.spi import BatchHeader, Codec, RecordFormat
from stratalog_formats.kernels.dispatch import PYTHON, Kernels

LIMIT_BYTES: Final = 8 << 20
CAP_BYTES: Final = LIMIT_BYTES + (4 << 20)
_HUGE: Final = b"\xfe\xff\xff\xff\x0f"  # a varint: 2147483647
_INT32: Final = Struct(">i")
_MOST: Final = (1 << 31) - 1


class Cost(NamedTuple):
    """Result of a case: the class of the error or "", and the growth of the peak in bytes."""

    twin: str
    case: str
    error: str
    grown_bytes: int


# --- in a test ---------------------------------------------------------------------------------------------------


def measure() -> list[Cost]:
    """Return the cost of each case for each twin."""
    # glibc returns freed memory to the system at once. Otherwise a child could reuse memory that the parent freed, and
    # its peak would not grow.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    process = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return [Cost(*json.loads(line)) for line in process.stdout.splitlines()]


# --- cases -------------------------------------------------------------------------------------------------------


def cases() -> Iterator[tuple[str, str, bytes]]:
    """Yield the name of each case, the name of its record format, and its entry."""
    for name in ("v0", "v1", "v2"):
        form = twins.formats(PYTHON)[name]
        for label, codec in [("plain", None), *((label, twins.CODECS[label]) for label in _labels(name))]:
            for story, contents, count in _batches() if name == "v2" else _messages(form):
                if codec is not None or name == "v2":
                    yield f"{name} {label}: {story}", name, _entry(name, contents, count, codec)
            if codec is not None:
                bomb = form.encode([Record(value=bytes(4 * LIMIT_BYTES))], BatchHeader(), codec, None)
                yield f"{name} {label}: a bomb", name, bytes(bomb)
    claimed = bytes.fromhex("28b52ffd e0 0000000000010000 010000")  # 2^40 bytes
    windowed = bytes.fromhex("28b52ffd 00 88 010000")  # a window of 128 MiB
    yield "v2 zstd: a content size that lies", "v2", _packed_entry("v2", claimed, 1, 4)
    yield "v2 zstd: a window that nothing needs", "v2", _packed_entry("v2", windowed, 1, 4)
    for name in ("v0", "v1", "v2"):
        yield f"{name} snappy: a raw block that lies", name, _packed_entry(name, b"\xff\xff\xff\xff\x07\0", 1, 2)


def _labels(name: str) -> list[str]:
    return [label for label, codec in twins.CODECS.items() if name == "v2" or codec.id < 4]


def _batches() -> Iterator[tuple[str, bytes, int]]:
    """Yield hostile records sections of magic 2: the name, the bytes, and the record count of the batch header."""
    zeros = bytes(LIMIT_BYTES - 100)
    yield "a count that lies, within the size", zeros, len(zeros) // 7
    yield "a count that lies", zeros, _MOST
    yield "a negative count", zeros, -1
    yield "a record length that lies", _HUGE + b"\0\0\0\1\1\0", 1
    yield "a key length that lies", b"\x14\0\0\0" + _HUGE + b"\1\0", 1
    yield "a value length that lies", b"\x14\0\0\0\1" + _HUGE + b"\0", 1
    yield "a header count that lies", b"\x14\0\0\0\1\1" + _HUGE, 1
    yield "a header key length that lies", b"\x18\0\0\0\1\1\2" + _HUGE + b"\1", 1
    yield "a header value length that lies", b"\x18\0\0\0\1\1\2\0" + _HUGE, 1
    # Valid records before the wrong one also need memory for their columns: 48 bytes for each in one twin, 90 in the
    # other.
    many = b"\x0c\0\0\0\1\1\0" * 99_999 + b"\x0c\0\0\0\1\1\2"
    yield "the last of many records lies", many, 100_000
    room = LIMIT_BYTES - 100
    head = b"\0\0\0\1\1" + varint(room - 20)
    yield "a header count that lies, within the size", varint(room) + head + bytes(room - len(head)), 1


def _messages(form: RecordFormat) -> Iterator[tuple[str, bytes, int]]:
    """Yield hostile contents of a wrapper message: the name, the bytes, and 0 in place of a record count."""
    message = bytearray(form.encode([Record(value=bytes(LIMIT_BYTES - 200))], BatchHeader(), None, None))
    yield "a message as large as the limit that is cut", bytes(message[:-1]), 0
    for story, position, number in (("a size", 8, _MOST), ("a key length", len(message) - LIMIT_BYTES + 192, _MOST)):
        lying = bytearray(message)
        _INT32.pack_into(lying, position, number)
        yield f"{story} that lies", bytes(lying), 0
    yield "nothing but zeros", bytes(LIMIT_BYTES - 100), 0


def _entry(name: str, contents: bytes, count: int, codec: Codec | None) -> bytes:
    magic = int(name[1])
    compressed = contents if codec is None else codec.compress(contents, level=None, magic=magic)
    return _packed_entry(name, compressed, count, codec.id if codec else 0)


def _packed_entry(name: str, compressed: bytes, count: int, codec_id: int) -> bytes:
    """Return a batch or a wrapper message that is valid except for its content ``compressed``."""
    magic = int(name[1])
    if magic == 2:
        entry = bytearray(61) + compressed
        entry[22] = codec_id
        _INT32.pack_into(entry, 57, count)
    else:
        entry = bytearray(26 if magic else 18) + b"\xff\xff\xff\xff" + _INT32.pack(len(compressed)) + compressed
        entry[17] = codec_id
    entry[16] = magic
    _INT32.pack_into(entry, 8, len(entry) - 12)
    seal(entry)
    return bytes(entry)


# --- in the process of its own -----------------------------------------------------------------------------------


def main() -> None:
    """Print the cost of each case for each twin, one JSON array for each line."""
    every = list(cases())
    for kernels in twins.twins():
        for case, name, data in every:
            print(json.dumps(_cost(kernels, case, name, data)), flush=True)  # noqa: T201 - what the parent reads


def _cost(kernels: Kernels, case: str, name: str, data: bytes) -> Cost:
    form = twins.formats(kernels)[name]

    def work(writing: int) -> None:
        before = _peak_bytes()
        error = _outcome(form, data)
        os.write(writing, json.dumps([error, _peak_bytes() - before]).encode())

    child, reading = fork_with_pipe(work)
    with open(reading, "rb") as file:  # noqa: PTH123 - a descriptor, no path
        error, grown_bytes = json.loads(file.read())
    os.waitpid(child, 0)
    return Cost(kernels.name, case, error, grown_bytes)


def _outcome(form: RecordFormat, data: bytes) -> str:
    """Return the class name of the error that refuses the entry, or "".

    Only one decoded chunk is in memory at a time.
    """
    table = form.scan(data, 0, len(data), check_crc=True)
    try:
        for columns in form.decode(data, table, limit_bytes=LIMIT_BYTES):
            del columns
    except twins.TYPED as refused:
        return type(refused).__name__
    return "" if len(table) else table.stop.name


def _peak_bytes() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
