from __future__ import annotations

from stratalog.log.read.tier_view import RemoteView, merged_epochs
from stratalog.model.offsets import EpochEntry
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID
from tier_bed import TierBed, made_segments


def view_of(*bounds: int, log_start: int = 0) -> RemoteView:
    log = TierBed().open().log(LOG, TOPIC_ID)
    log.offload(
        made_segments(*bounds),
        layout="pair",
        leader_epoch=0,
        log_start=log_start,
        high_watermark=1_000,
    )
    return log.view()


def test_each_offset_is_found_in_the_segment_that_holds_it() -> None:
    view = view_of(5, 10, 11, 30, log_start=5)
    segments = {offset: view.floor(offset) for offset in range(40)}
    assert {offset for offset, segment in segments.items() if segment is None} == {*range(5), *range(30, 40)}
    for offset, segment in segments.items():
        assert segment is None or segment.base_offset <= offset < segment.end_offset
    assert (view.start_offset, view.end_offset, view.high_watermark) == (5, 30, 1_000)


def test_an_empty_view_starts_and_ends_at_the_log_start() -> None:
    empty = RemoteView()
    assert (empty.start_offset, empty.end_offset, empty.floor(0)) == (0, 0, None)
    expired = RemoteView(version=3, log_start=40)
    assert (expired.start_offset, expired.end_offset) == (40, 40)


def test_epochs_of_neighbours_become_one_run() -> None:
    runs = [
        [EpochEntry(1, 0), EpochEntry(3, 5)],
        [EpochEntry(3, 10)],
        [],
        [EpochEntry(3, 20), EpochEntry(4, 25)],
    ]
    assert merged_epochs(runs) == (EpochEntry(1, 0), EpochEntry(3, 5), EpochEntry(4, 25))
