from __future__ import annotations

import pytest

from log_bed import LogBed, records
from stratalog.errors import ClosedError
from stratalog.segment.build import copy_batches
from stratalog.testing.faults import FaultyVfs


@pytest.mark.parametrize("renames", [1, 3, 5, 8])
def test_a_replacement_that_is_interrupted_takes_the_log_out_of_service(bed: LogBed, renames: int) -> None:
    """Some files may already have other names. Only the next opening completes or undoes the replacement."""
    bed.files_port = files = FaultyVfs()
    log = bed.open()
    log.append(records(3))
    log.roll()
    old, publisher = log.view().segments[0], log.maintenance.publisher()
    builder = publisher.begin(old.base_offset)
    copy_batches(old, builder, log.components)
    built = builder.finish(old.end_offset, old.modified_ms)
    seen = [0]

    def interrupt(operation: str, _: str) -> None:
        seen[0] += operation == "rename"
        if seen[0] == renames:
            raise KeyboardInterrupt

    files.rule = interrupt
    with pytest.raises(KeyboardInterrupt):
        publisher.replace(built, [old])
    files.rule = None
    with pytest.raises(ClosedError, match="KeyboardInterrupt"):
        log.append(records(1, start=3))
    assert log.close() is False
    again = bed.open(clean=False)
    assert [record.offset for record in again.records()] == [0, 1, 2]
    assert not [name for name in bed.names() if name.endswith((".cleaned", ".swap"))]
