"""Known bugs of other log implementations, planted one at a time. The search for power losses must detect each bug."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from log_bed import LogBed
from power_search import PowerSearch
from stratalog.errors import StorageError
from stratalog.log.append import append
from stratalog.log.durability import sync
from stratalog.log.load import log_loader, producer_replay
from stratalog.log.state import roll
from stratalog.log.state.log_state import LogState
from stratalog.segment import recover
from stratalog.segment.appender import Appender
from stratalog.segment.framing import walk
from stratalog.segment.segment import Segment
from stratalog.testing.power_loss import PowerLossVfs

SEEDS = 8


def forget_the_folder(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a new segment is synced, but its folder is not (KAFKA-3968)."""
    patch.setattr(PowerLossVfs, "sync_folder", lambda *_: None)


def acknowledge_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a durable append returns before the sync."""
    patch.setattr(append, "sync_records", lambda *_: None)


def count_what_is_written_as_durable(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the recovery point moves although records below it are not durable (KAFKA-10101)."""
    patch.setattr(sync, "_sync_segment", lambda *_, **__: None)


def roll_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a new segment gets its name before the records of the previous segment are durable."""

    def begin_segment(state: LogState, _: Segment, base: int) -> tuple[Segment, Appender]:
        segment, appender = roll.next_segment(state, base)
        producer_replay.write_snapshot(state.files, base, state.writes.producers)
        state.writes.appender.finish()
        return segment, appender

    patch.setattr(roll, "_begin_segment", begin_segment)


def believe_all_bytes(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: recovery checks no CRC."""
    patch.setattr(recover, "walk", partial(walk, check_crc=False))


def load_as_after_a_clean_stop(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: an unclean log is loaded as a clean one (KAFKA-10471: the marker existed longer than the load)."""
    patch.setattr(log_loader._Loader, "_recover", log_loader._Loader._tail)  # noqa: SLF001 - plants a bug


PLANTED = [
    forget_the_folder,
    acknowledge_before_the_sync,
    count_what_is_written_as_durable,
    roll_before_the_sync,
    believe_all_bytes,
    load_as_after_a_clean_stop,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
@pytest.mark.long
def test_the_search_detects_planted_bugs(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, bed: LogBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)

    def search() -> None:
        for seed in range(SEEDS):
            PowerSearch(tmp_path / str(seed), bed.registry, seed).run()

    with pytest.raises((AssertionError, StorageError)):
        search()
