"""Fetches of consumers that know only the formats V0 and V1."""

from __future__ import annotations

import pytest

from log_bed import LogBed, records
from stored_batches import batches_in
from stratalog.errors import UnsupportedCompressionError
from stratalog.model.messages.control import ControlType


def test_an_old_consumer_reads_a_log_fetch_by_fetch(bed: LogBed) -> None:
    """The first fetch begins inside a batch. Control batches are left out; next_offset is as for other consumers."""
    bed.write_segment(
        0,
        [
            bed.batch(0, records(4), producer=(5, 0, 0), transactional=True),
            bed.marker(4, 5, ControlType.COMMIT),
            bed.batch(5, records(3, start=5), codec="gzip"),
        ],
    )
    log = bed.open_reader(clean=False)
    for magic in (0, 1):
        offset, pairs = 2, []
        while True:
            with log.fetch(offset, max_bytes=1, isolation="log_end") as fetched:
                if not fetched.slices:
                    break
                old = fetched.converted(magic)
                assert (fetched.offset, fetched.converted(2).data) == (offset, fetched.read())
            offset = fetched.next_offset
            for batch, batch_records in batches_in(old.data, bed.components):
                assert batch.magic == magic
                pairs += [(record.offset, record.key) for record in batch_records]
        assert pairs == [(number, b"k%d" % number) for number in (2, 3, 5, 6, 7)]


def test_zstd_is_not_for_old_consumers(bed: LogBed) -> None:
    bed.write_segment(0, [bed.batch(0, records(2), codec="zstd")])
    with bed.open_reader(clean=False).fetch(0, isolation="log_end") as fetched:
        with pytest.raises(UnsupportedCompressionError):
            fetched.converted(1)
        assert fetched.converted(2).data == fetched.read()
