"""``stratalog verify --deep``: damage that is found only by decoding every record."""

from __future__ import annotations

import json

import pytest

from entry_parts import seal
from log_bed import LogBed, records
from stratalog.cli.app import run

COUNT_POSITION = 57
LAST_DELTA_POSITION = 23


def verify(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[dict[str, object]]]:
    code = run(["verify", *map(str, arguments), "--json"])
    captured = capsys.readouterr()
    assert captured.err == ""
    return code, [json.loads(line) for line in captured.out.splitlines()]


def write(bed: LogBed, second: bytes) -> None:
    """Write a log of two batches. ``second`` has valid framing and a valid CRC, but its records may be wrong."""
    bed.write_segment(0, [bed.batch(0, records(3)), second])
    bed.open(clean=False)
    bed.close()


@pytest.mark.parametrize(
    ("magic", "codec"), [(2, "gzip"), (2, "snappy"), (2, "lz4"), (2, "zstd"), (1, "gzip"), (0, "lz4")]
)
def test_a_batch_that_does_not_decompress_is_found_though_its_crc_is_right(
    bed: LogBed, capsys: pytest.CaptureFixture[str], magic: int, codec: str
) -> None:
    batch = bytearray(bed.batch(3, records(50, start=3), magic=magic, codec=codec))
    batch[-40:-8] = bytes(32)
    seal(batch)
    write(bed, bytes(batch))
    code, shallow_items = verify(capsys, bed.directory)
    assert (code, [item for item in shallow_items if "problem" in item]) == (0, [])
    code, items = verify(capsys, bed.directory, "--deep")
    assert code == 1
    (problem,) = (item for item in items if "problem" in item)
    assert problem["problem"] == "damage"
    assert problem["file"] == str(bed.path(0))
    assert problem["position"] == len(bed.batch(0, records(3)))
    assert "ends at offset 52 are wrong" in str(problem["text"])
    assert items[-1]["records"] == 3


def test_a_header_that_counts_wrongly_is_found(bed: LogBed, capsys: pytest.CaptureFixture[str]) -> None:
    batch = bytearray(bed.batch(3, records(5, start=3)))
    batch[COUNT_POSITION + 3] -= 1
    seal(batch)
    write(bed, bytes(batch))
    assert verify(capsys, bed.directory, "--deep")[0] == 1


def test_records_outside_the_offsets_of_their_batch_are_found(bed: LogBed, capsys: pytest.CaptureFixture[str]) -> None:
    batch = bytearray(bed.batch(3, records(5, start=3)))
    batch[LAST_DELTA_POSITION + 3] -= 2
    seal(batch)
    write(bed, bytes(batch))
    assert verify(capsys, bed.directory)[0] == 0
    code, items = verify(capsys, bed.directory, "--deep")
    assert code == 1
    assert "3 to 7 in a batch of 3 to 5" in str(items[0]["text"])


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("codec", [None, "gzip"])
def test_good_records_are_counted(
    bed: LogBed, capsys: pytest.CaptureFixture[str], magic: int, codec: str | None
) -> None:
    write(bed, bed.batch(3, records(50, start=3), magic=magic, codec=codec))
    code, items = verify(capsys, bed.directory, "--deep")
    assert (code, items[-1]["records"]) == (0, 53)


def test_text_output_shows_the_number_of_records_that_were_read(
    bed: LogBed, capsys: pytest.CaptureFixture[str]
) -> None:
    write(bed, bed.batch(3, records(50, start=3), codec="zstd"))
    assert run(["verify", str(bed.directory), "--deep"]) == 0
    assert "53 records" in capsys.readouterr().out
