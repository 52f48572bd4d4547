"""The largest offsets: 2^63 - 1 is the largest possible log end."""

from __future__ import annotations

import pytest

from log_bed import LogBed, records
from stratalog.errors import OffsetsExhaustedError

LAST_END = (1 << 63) - 1


def test_offsets_run_out_before_they_wrap(bed: LogBed) -> None:
    bed.log_start = LAST_END - 3
    log = bed.open()
    assert log.append(records(1)).last_offset == LAST_END - 3
    with pytest.raises(OffsetsExhaustedError, match=str(LAST_END - 2)):
        log.append(records(3))
    assert log.healthy
    assert log.append(records(2)).last_offset == LAST_END - 1
    with pytest.raises(OffsetsExhaustedError):
        log.append_as_leader(bed.batch(0, records(1)))
    assert [record.offset for record in log.records()] == [LAST_END - 3, LAST_END - 2, LAST_END - 1]
    log = bed.open()
    assert log.offsets().log_end == LAST_END
    assert [record.offset for record in log.records()] == [LAST_END - 3, LAST_END - 2, LAST_END - 1]
    assert log.roll() == LAST_END
