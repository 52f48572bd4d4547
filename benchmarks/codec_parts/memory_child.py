"""Measure the memory of one operation in a separate process.

memory_child.py read WAY FOLDER | hostile FILE LIMIT_BYTES: prints one JSON object, ``null`` if the system does not
report the peak.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import stratalog
from codec_parts.formats import BATCHES
from codec_parts.hostile import healthy
from harness import UnsupportedPlatformError, peak_of
from stratalog.errors import StorageError
from stratalog.model.arrow import to_arrow

if TYPE_CHECKING:
    import pyarrow as pa

_STEP_RECORDS: Final = 100_000
_WARM_UP_RECORDS: Final = 1000


def read(way: str, folder: str) -> dict[str, object]:
    """Read a log in steps, and return its number of rows, the size of the largest result, and the peak of memory.

    Each result is dropped before the next step. Sizes are in bytes. ``way`` is "columns" or "to_arrow".
    """
    with stratalog.open_reader(folder) as reader:
        log = reader.log("t", 0)
        log.to_arrow(0, _WARM_UP_RECORDS)

        def steps() -> Iterator[pa.Table]:
            if way == "columns":
                for columns in log.columns():
                    yield to_arrow([columns], 0)
                return
            for start in range(0, log.offsets().log_end, _STEP_RECORDS):
                yield log.to_arrow(start, min(start + _STEP_RECORDS, log.offsets().log_end))

        def everything() -> tuple[int, int]:
            rows = largest = 0
            for table in steps():
                rows, largest = rows + table.num_rows, max(largest, table.nbytes)
            return rows, largest

        peak = peak_of(everything)
        rows, largest = peak.result
        if rows != log.offsets().log_end:
            raise AssertionError(f"{rows} rows of {log.offsets().log_end} records")
        return {"rows": rows, "result_bytes": largest, "peak_bytes": peak.bytes}


def hostile(file: str, limit_bytes: int) -> dict[str, object]:
    """Decode one harmful batch, and return the outcome and the peak of memory in bytes."""
    data, example = Path(file).read_bytes(), healthy()
    decode(example, limit_bytes)
    peak = peak_of(lambda: decode(data, limit_bytes))
    return {"outcome": peak.result, "peak_bytes": peak.bytes}


def decode(data: bytes, limit_bytes: int) -> str:
    """Return the number of records of a batch, or the error of its decoding, as text."""
    try:
        table = BATCHES.scan(data, 0, len(data), check_crc=True)
        if not len(table):
            return f"{table.stop}: {table.reason}"
        return f"{sum(columns.count for columns in BATCHES.decode(data, table, limit_bytes=limit_bytes)):,} records"
    except StorageError as error:
        return type(error).__name__


def main(arguments: list[str]) -> None:
    """Run the measurement that the command line selects, and print its result as JSON."""
    measured: dict[str, object] | None
    try:
        measured = read(*arguments[1:]) if arguments[0] == "read" else hostile(arguments[1], int(arguments[2]))
    except UnsupportedPlatformError:
        measured = None
    print(json.dumps(measured))


if __name__ == "__main__":
    main(sys.argv[1:])
