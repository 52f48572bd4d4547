"""The measured operations, and the check of their results, which is the same for all sides."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from codec_parts.formats import BATCHES, LIMIT_BYTES
from codec_parts.workloads import Workload, canonical, row_of
from harness import WrongOutcomeError

GATHERED_TIMES: Final = 16


class Operation(StrEnum):
    """One kind of work on a workload."""

    COLUMNS = "columns"
    GATHERED = "gathered"
    ARROW = "arrow"
    OBJECTS = "objects"
    TOUCHED = "touched"
    SCAN = "scan"
    ENCODE = "encode"
    ENCODE_COLUMNS = "encode-columns"

    @property
    def does(self) -> str:
        """Description of the operation for people."""
        return _DOES[self]


_DOES = {
    Operation.COLUMNS: "decode to columns, CRC checked",
    Operation.GATHERED: f"decode {GATHERED_TIMES} buffers to columns and keep all of them, CRC checked",
    Operation.ARROW: "decode to Arrow, CRC checked",
    Operation.OBJECTS: "iterate record objects, CRC checked",
    Operation.TOUCHED: "iterate record objects and read five fields of each, CRC checked",
    Operation.SCAN: "scan batches, CRC checked",
    Operation.ENCODE: "encode records to batches",
    Operation.ENCODE_COLUMNS: "encode columns to batches",
}


def check(side: str, operation: Operation, workload: Workload, outcome: bytes) -> None:
    """Compare the outcome of a side with the workload.

    Args:
        side: name of the side, for the error.
        operation: the operation of the side.
        workload: the input of the operation.
        outcome: rows or offsets in their canonical form; encoded batches if the operation encodes.

    Raises:
        WrongOutcomeError: the outcome is not the expected one.
    """
    if operation is Operation.SCAN:
        expected = workload.bounds
    elif operation in {Operation.ENCODE, Operation.ENCODE_COLUMNS}:
        expected, outcome = workload.encoded_rows, _decode_rows(side, outcome)
    else:
        expected = workload.rows * (GATHERED_TIMES if operation is Operation.GATHERED else 1)
    if outcome != expected:
        position = next(
            (
                position
                for position, (actual_byte, expected_byte) in enumerate(zip(outcome, expected, strict=False))
                if actual_byte != expected_byte
            ),
            min(len(outcome), len(expected)),
        )
        actual_part, expected_part = (data[max(0, position - 40) : position + 40] for data in (outcome, expected))
        raise WrongOutcomeError(f"{side} does not {operation.does}: {actual_part!r} instead of {expected_part!r}")


def _decode_rows(side: str, data: bytes) -> bytes:
    """Return the rows of encoded batches in their canonical form.

    Raises:
        WrongOutcomeError: a batch is incomplete or has a wrong CRC.
    """
    table = BATCHES.scan(data, 0, len(data), check_crc=True)
    if table.stop_position != len(data):
        raise WrongOutcomeError(f"{side} encodes batches of which one is bad: {table.stop} {table.reason}")
    decoded = BATCHES.decode(data, table, limit_bytes=LIMIT_BYTES)
    return canonical(row_of(record) for columns in decoded for record in columns.to_records())
