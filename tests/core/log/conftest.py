from __future__ import annotations

import pytest

from log_bed import LogBed, records
from stratalog.config.topic import TopicConfig
from stratalog.testing.faults import FaultyVfs

BATCHES, EACH = 6, 3


@pytest.fixture
def files(bed: LogBed) -> FaultyVfs:
    """Return the bed's file system, which fails as the test plans it."""
    bed.files_port = vfs = FaultyVfs()
    return vfs


@pytest.fixture
def small(bed: LogBed) -> LogBed:
    """Return a bed with eighteen records in batches of three, two batches in each segment, closed cleanly."""
    bed.topic = TopicConfig(segment_bytes=400, index_interval_bytes=0)
    log = bed.open()
    for index in range(BATCHES):
        log.append(records(EACH, start=EACH * index, value_bytes=20))
    assert [segment.base_offset for segment in log.segments()] == [0, 6, 12]
    bed.close()
    return bed
