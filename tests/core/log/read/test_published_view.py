from __future__ import annotations

import gc

import pytest

from log_bed import LogBed, records
from stratalog.segment.segment import Segment


@pytest.mark.usefixtures("only_new_objects")
def test_a_view_that_was_replaced_is_not_kept(bed: LogBed) -> None:
    """Otherwise an idle log would keep deleted segments and their indexes in memory."""
    log = bed.open()
    log.append(records(2))
    log.roll()
    log.append(records(2, start=2))
    label = log.view().segments[0].label
    log.maintenance.raise_log_start(2)
    assert log.maintenance.evict(2) == 1
    gc.collect()
    assert not [item for item in gc.get_objects() if isinstance(item, Segment) and item.label == label]
