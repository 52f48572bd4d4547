"""Replay of the producer state from whole tables of batches. Batches that are skipped change nothing."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from log_bed import LogBed, records
from stratalog.log.load.producer_replay import replay, replay_table
from stratalog.model.batches import BatchTable, ScanStop
from stratalog.model.messages.control import ControlType
from stratalog.producers.state import ProducerState
from stratalog.segment.framing import scan

Batch = tuple[int, int, bool, ControlType | None]
"""Producer id and epoch, whether it is transactional, and the kind of the marker if it is one."""

batches = st.lists(
    st.tuples(
        st.sampled_from([-1, 1, 1, 2, 3]),
        st.sampled_from([0, 0, 0, 1]),
        st.booleans(),
        st.sampled_from([None, None, None, None, ControlType.COMMIT, ControlType.ABORT]),
    ),
    min_size=1,
    max_size=40,
)


def encoded(bed: LogBed, specs: list[Batch]) -> bytes:
    pieces, offset = [], 0
    for number, (producer_id, epoch, transactional, marker) in enumerate(specs):
        if marker is not None and producer_id >= 0:
            pieces.append(bed.marker(offset, producer_id, marker, producer_epoch=epoch))
            offset += 1
            continue
        producer = (producer_id, epoch, number) if producer_id >= 0 else (-1, -1, -1)
        count = number % 3 + 1
        pieces.append(
            bed.batch(
                offset,
                records(count, start=offset, timestamp_ms=1_700_000_000_000 - 7 * number),
                producer=producer,
                transactional=transactional and producer_id >= 0,
            )
        )
        offset += count
    return b"".join(pieces)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the test uses the bed only to encode batches
@given(listed=batches, cut=st.integers(0, 40))
def test_a_table_leaves_what_its_rows_leave(bed: LogBed, listed: list[Batch], cut: int) -> None:
    data = encoded(bed, listed)
    (table,) = scan(bed.components.formats, data, 0, len(data), check_crc=True).tables
    row_state, table_state = ProducerState(), ProducerState()
    ended = [replay(row_state, data, batch, bed.components) for batch in table]
    entries: list[object] = [None] * len(table)
    for start, part in ((0, table.take(0, min(cut, len(table)))), (cut, table.take(cut, len(table)))):
        if len(part):
            for row, entry in replay_table(table_state, data, part, bed.components).items():
                entries[start + row] = entry
    assert entries == ended
    assert table_state.end_offset == row_state.end_offset
    assert {p.producer_id: p for p in table_state.producers.values()} == row_state.producers
    assert table_state.entries() == row_state.entries()
    assert table_state.first_unstable(0) == row_state.first_unstable(0)


def test_flags_of_older_magics_mean_nothing(bed: LogBed) -> None:
    rows = [(0, 50, 5, 5, -1, -1, -1, -1, -1, -1, 1, 0xFF, 0)]
    state = ProducerState()
    assert replay_table(state, b"", BatchTable.from_rows(1, rows, ScanStop.END, 50), bed.components) == {}
    assert (state.end_offset, state.producers) == (6, {})
