"""Fuzzing of one record format with both twins (Python and compiled), in a separate process.

``run`` starts this file as a script. A failure shows how to repeat it: the seed, the mutant's bytes, and a smaller
mutant that fails in the same way. If the process crashes, the failure shows its last mutant. ``STRATALOG_FUZZ_SEED``
chooses the mutants, and ``STRATALOG_FUZZ_COUNT`` the number of scrambled mutants; the number of mutants with one wrong
field is a twenty-fifth of it.
"""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import pytest

import twins
from hostile_batches import Mutant, lie, scramble, shrink
from stratalog import Record, TimestampType
from stratalog.spi import BatchHeader, Fields, RecordFormat
from stratalog_formats.kernels.dispatch import PYTHON

SEED: Final = os.environ.get("STRATALOG_FUZZ_SEED", "stratalog")
CI_COUNT: Final = 500_000
COUNT: Final = int(os.environ.get("STRATALOG_FUZZ_COUNT") or (CI_COUNT if os.environ.get("CI") else 20_000))
LIES: Final = COUNT // 25
LIMIT_BYTES: Final = 1 << 16
MEMORY_BYTES: Final = LIMIT_BYTES + (4 << 20) + (1 << 20)  # the last is what half a million of them leave in the heap
SLOWEST_S: Final = 0.5  # of the processor's time: a machine that is busy with other things is no failure
_STUCK_S: Final = 120  # for a thousand mutants, which take a tenth of a second
_CHUNK: Final = 1000
_WARM: Final = 2000  # mutants before memory is measured
_JOURNAL_BYTES: Final = 1 << 16
_FIELDS: Final = (*[Fields.ALL] * 12, Fields.OFFSET, Fields.KEY | Fields.TIMESTAMP, Fields.VALUE, Fields.HEADERS)
_TOLERANT: Final = bool(os.environ.get("STRATALOG_SANITIZED"))  # a sanitizer keeps freed memory


# --- in a test ---------------------------------------------------------------------------------------------------


def run(name: str, kind: str, count: int, seed: str = SEED) -> Counter[str]:
    """Return the numbers of accepted, refused and stopped mutants. Fail the test if a mutant causes an error."""
    with tempfile.NamedTemporaryFile() as journal:
        journal.truncate(_JOURNAL_BYTES)
        command = [sys.executable, __file__, name, kind, seed, str(count), journal.name]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        last_mutant = Path(journal.name).read_bytes()
    if process.returncode:
        size = int.from_bytes(last_mutant[:4], "big")
        pytest.fail(
            f"{name} {kind} seed={seed} count={count} ended with {process.returncode}; the last mutant was\n"
            f"{last_mutant[4 : 4 + size].hex()}\n{process.stdout}\n{process.stderr}"
        )
    return Counter(json.loads(process.stdout))


# --- in the process of its own -----------------------------------------------------------------------------------


class MisbehaviourError(AssertionError):
    """The twins return different results, a twin takes too long, or a twin reports bytes that do not exist."""


def examine(forms: list[RecordFormat], data: bytes, *, check_crc: bool, fields: Fields) -> str:
    """Return the result of ``data`` if all twins agree: "accepted", "refused" or "stopped"."""
    start = time.thread_time()
    verdict = twins.judged(forms[0], data, check_crc=check_crc, limit_bytes=LIMIT_BYTES, fields=fields)
    for form in forms[1:]:
        twin_verdict = twins.judged(form, data, check_crc=check_crc, limit_bytes=LIMIT_BYTES, fields=fields)
        if twin_verdict != verdict:
            raise MisbehaviourError(f"the twins differ:\n{verdict}\n{twin_verdict}")
    if time.thread_time() - start > SLOWEST_S:
        raise MisbehaviourError(f"took {time.thread_time() - start:.3f} s")
    twins.check_sense(verdict, len(data))
    if len(verdict) == twins.SCANNED:
        return "stopped"
    if data[len(data) // 2] % 4 == 0:  # slow too
        first_table, *other_tables = [
            twins.arrowed(form, data, check_crc=check_crc, limit_bytes=LIMIT_BYTES) for form in forms
        ]
        if any(twin_verdict != first_table for twin_verdict in other_tables):
            raise MisbehaviourError(f"the twins make different tables:\n{first_table}\n{other_tables}")
    if verdict[-1]:
        return "refused"
    if data[-1] % 4 == 0:  # slow, and any criterion will do
        stamp_ms = 7000 if data[-1] % 8 else None
        first_output, *other_outputs = [
            twins.rewritten(form, data, check_crc=check_crc, limit_bytes=LIMIT_BYTES, stamp_ms=stamp_ms)
            for form in forms
        ]
        if any(twin_verdict != first_output for twin_verdict in other_outputs):
            raise MisbehaviourError(f"the twins write differently:\n{first_output}\n{other_outputs}")
    return "accepted"


def campaign(name: str, kind: str, seed: str, count: int, journal: mmap.mmap) -> Counter[str]:
    """Examine ``count`` mutants, and count the results.

    The journal has the mutant that is being examined: its size in 4 bytes, then its bytes.
    """
    forms = [twins.formats(kernels)[name] for kernels in twins.twins()]
    chance, make, result_counts = Random(f"{seed} {name} {kind}"), _maker(name, kind), Counter[str]()  # noqa: S311 - repeatable
    peak = 0
    for number in range(count):
        if number % _CHUNK == 0:
            faulthandler.dump_traceback_later(_STUCK_S, exit=True)
        if number == _WARM:
            peak = _peak_bytes()
        mutant = make(chance)
        data = mutant.data
        journal[: 4 + len(data)] = len(data).to_bytes(4, "big") + data
        fields, check_crc = _FIELDS[number % len(_FIELDS)], kind == "lie" or number % 3 == 0
        try:
            result_counts[examine(forms, data, check_crc=check_crc, fields=fields)] += 1
        except Exception as error:  # noqa: BLE001 - any error is reported with the mutant
            small = shrink(data, _fails_as(error, forms, check_crc=check_crc, fields=fields))
            sys.exit(
                f"mutant {number}: {mutant.story} ({check_crc=}, {fields=})\n{type(error).__name__}: {error}\n"
                f"smaller: {small.hex()}"
            )
    faulthandler.cancel_dump_traceback_later()
    if count > _WARM and not _TOLERANT and _peak_bytes() - peak > MEMORY_BYTES:
        sys.exit(f"memory grew by {_peak_bytes() - peak} bytes")
    return result_counts


def _fails_as(
    error: Exception, forms: list[RecordFormat], *, check_crc: bool, fields: Fields
) -> Callable[[bytes], bool]:
    def fails(data: bytes) -> bool:
        try:
            examine(forms, data, check_crc=check_crc, fields=fields)
        except Exception as other:  # noqa: BLE001 - whatever it was the first time
            return type(other) is type(error)
        return False

    return fails


def _maker(name: str, kind: str) -> Callable[[Random], Mutant]:
    uncompressed, compressed = corpus(name)
    if kind == "lie":
        return lambda chance: lie(uncompressed, twins.codecs_of(name), chance)
    return lambda chance: scramble(uncompressed + compressed, chance)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# --- what is mutated ---------------------------------------------------------------------------------------------


def corpus(name: str) -> tuple[list[bytes], list[bytes]]:
    """Return small valid inputs of a format: uncompressed ones, and ones that are compressed with each codec."""
    form = twins.formats(PYTHON)[name]
    header = BatchHeader(base_offset=10, leader_epoch=3)
    stamped = BatchHeader(base_offset=70, timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=5000)
    pairs = (("h", b"v"), ("größe", None)) if name == "v2" else ()
    varied = [
        Record(timestamp_ms=1000, key=b"key", value=b"value" * 3),
        Record(timestamp_ms=1200, value=b"", headers=pairs),
        Record(timestamp_ms=900, key=b"", headers=pairs[:1]),
        Record(timestamp_ms=90_000, key=b"k", value=b"v"),
    ]
    alike = [Record(timestamp_ms=1000 + n, key=b"k", value=b"v") for n in range(12)]
    uncompressed = [form.encode(varied, header, None, None), form.encode(varied[:1], stamped, None, None)]
    if name == "v2":
        markers = BatchHeader(producer_id=7, producer_epoch=1, base_sequence=4, transactional=True, control=True)
        uncompressed += [
            form.encode(alike, header, None, None),
            form.encode([Record(timestamp_ms=200 * n) for n in range(9)], header, None, None),
            form.encode([Record(timestamp_ms=70 * n, value=bytes(70)) for n in range(9)], header, None, None),
            form.encode(alike[:1], markers, None, None) + form.encode(alike[:2], stamped, None, None),
        ]
    compressed = [
        form.encode(records, header, codec, None) for codec in twins.codecs_of(name) for records in (varied, alike)
    ]
    return list(map(bytes, uncompressed)), list(map(bytes, compressed))


def main() -> None:
    """Run ``fuzz_campaign.py FORMAT KIND SEED COUNT JOURNAL``, and print the counts of the results as JSON."""
    name, kind, seed, count, path = sys.argv[1:]
    faulthandler.enable()
    with Path(path).open("r+b") as file, mmap.mmap(file.fileno(), 0) as journal:
        result_counts = campaign(name, kind, seed, int(count), journal)
    sys.stdout.write(json.dumps(result_counts))


if __name__ == "__main__":
    main()
