from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from log_bed import LogBed
from stratalog.model.batches import Buffer
from stratalog.segment.segment import Segment

MakeSegment = Callable[[Sequence[Buffer], int, int], Segment]


@pytest.fixture
def make_segment(bed: LogBed) -> Iterator[MakeSegment]:
    """Yield the function ``make(batches, base_offset, end_offset)``.

    It returns a segment over a new ``.log`` file without indexes.
    """
    with ExitStack() as stack:

        def make(batches: Sequence[Buffer], base_offset: int, end_offset: int) -> Segment:
            bed.write_segment(base_offset, batches)
            log = bed.files().open_segment(bed.path(base_offset).name)
            segment = Segment(bed.files(), base_offset, end_offset, bed.components, log)
            stack.callback(segment.close)
            return segment

        yield make
