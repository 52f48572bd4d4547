from __future__ import annotations

import threading

import pytest

from sim_objects import ObjectFault, SimObjectStore, SimRequest
from stratalog.errors import CorruptManifestError, FencedEpochError, StoreTimeoutError
from stratalog.log.read.tier_view import RemoteLog
from stratalog.model.offsets import EpochEntry
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID
from stratalog.tier.store.object_keys import log_prefix, manifest_key
from stratalog.tier.tier_log import TierLog
from tier_bed import TierBed, made_segments


def offload(log: TierLog, *bounds: int, epoch: int = 0) -> None:
    log.offload(
        made_segments(*bounds, leader_epoch=epoch),
        layout="pair",
        leader_epoch=epoch,
        log_start=0,
        high_watermark=max(bounds),
    )


def test_the_head_is_searched_at_first_use_and_then_kept() -> None:
    bed = TierBed()
    offload(bed.open().log(LOG, TOPIC_ID), 0, 10)
    store = SimObjectStore(bed.bucket)
    tier = bed.open(store, read_only=True)
    store.counts.clear()
    log: RemoteLog = tier.log(LOG, TOPIC_ID)
    assert not store.counts
    view = log.view()
    assert log.view() is view
    assert sum(store.counts.values()) == 2


def test_an_empty_log_is_not_asked_for_again_and_again() -> None:
    store = SimObjectStore()
    log = TierBed().open(store).log(LOG, TOPIC_ID)
    store.counts.clear()
    assert log.view().version == 0
    assert log.view() is log.view()
    assert log.root is None
    assert sum(store.counts.values()) == 1


def test_a_refresh_shows_what_others_committed_and_older_views_stay() -> None:
    bed = TierBed()
    writer, reader = bed.open().log(LOG, TOPIC_ID), bed.open(read_only=True).log(LOG, TOPIC_ID)
    offload(writer, 0, 10)
    old = reader.view()
    assert reader.refresh() is old
    offload(writer, 10, 20)
    assert reader.view() is old
    new = reader.refresh()
    assert (old.end_offset, new.end_offset, reader.view()) == (10, 20, new)


def test_a_failed_refresh_keeps_what_was_known() -> None:
    bed = TierBed()
    offload(bed.open().log(LOG, TOPIC_ID), 0, 10)
    store = SimObjectStore(bed.bucket)
    reader = bed.open(store, read_only=True).log(LOG, TOPIC_ID)
    view = reader.view()
    store.faults = lambda _: ObjectFault.NOT_APPLIED
    with pytest.raises(StoreTimeoutError):
        reader.refresh()
    assert reader.view() is view


def test_a_damaged_head_is_an_error_and_not_an_empty_log() -> None:
    bed = TierBed()
    bed.bucket.write(manifest_key(log_prefix(LOG, TOPIC_ID), 1), b"{}")
    with pytest.raises(CorruptManifestError):
        bed.open().log(LOG, TOPIC_ID).view()


def test_epochs_are_those_of_all_segments() -> None:
    bed = TierBed()
    log = bed.open().log(LOG, TOPIC_ID)
    offload(log, 0, 10, 20, epoch=1)
    offload(log, 20, 30, epoch=4)
    assert log.view().leader_epochs == (EpochEntry(1, 0), EpochEntry(4, 20))


def test_a_fenced_writer_is_reported_even_if_nothing_is_left_to_move() -> None:
    bed = TierBed()
    old, new = bed.open().log(LOG, TOPIC_ID), bed.open().log(LOG, TOPIC_ID)
    offload(old, 0, 10, epoch=1)
    offload(new, 10, 20, epoch=2)
    with pytest.raises(FencedEpochError):
        offload(old, 10, 20, epoch=1)


def test_the_view_is_published_segment_by_segment_and_read_without_waiting() -> None:
    """During an upload, another thread can read the last commit and refresh to newer ones."""
    bed = TierBed()
    store = SimObjectStore(bed.bucket)
    log = bed.open(store).log(LOG, TOPIC_ID)
    log.view()
    upload_begun, may_upload = threading.Event(), threading.Event()

    def hold(request: SimRequest) -> None:
        if request.kind == "put_file" and f"{10:020d}" in request.key:
            upload_begun.set()
            assert may_upload.wait(10)

    store.before = hold
    writer = threading.Thread(target=offload, args=(log, 0, 10, 20))
    writer.start()
    assert upload_begun.wait(10)
    assert log.view().end_offset == 10
    assert log.refresh().end_offset == 10
    assert log.expire(3, leader_epoch=0, reason="a test").log_start == 3
    may_upload.set()
    writer.join()
    assert (log.view().log_start, log.view().end_offset) == (3, 20)
