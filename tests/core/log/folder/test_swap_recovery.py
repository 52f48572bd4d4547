from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pytest

from stratalog.log.folder.folder import missing_logs
from stratalog.log.folder.swap_files import SwapPlan, plan_swap
from stratalog.model.names import LOG_SUFFIX, SEGMENT_SUFFIXES, parse_segment_file, segment_file


def files(*bases: int, state: str = "", suffixes: Iterable[str] = SEGMENT_SUFFIXES) -> frozenset[str]:
    """Return the names of all files of segments with these base offsets; ``state`` is a suffix such as ``.swap``."""
    return frozenset(segment_file(base, suffix) + state for base in bases for suffix in suffixes)


def named(*names: str) -> frozenset[str]:
    """Return full names of files from short ones: ``00000000000000000005.index.swap`` from ``5.index.swap``."""
    return frozenset(f"{int(base):020d}.{suffix}" for base, suffix in (name.split(".", 1) for name in names))


@dataclass(frozen=True)
class Crash:
    """Files that a crash left in a folder, and the live segments after the repair.

    ``ends`` maps the base offsets of new segments to their end offsets. The base offsets of old segments are 0, 3 and 6
    by default.
    """

    name: str
    before: frozenset[str]
    after: frozenset[str]
    ends: Mapping[int, int]


OLD = files(0, 3, 6)
MERGED = {0: 6}  # the segments 0 and 3 are replaced by one segment, which ends at 6
CRASHES = [
    Crash("nothing happened", OLD, OLD, {}),
    Crash("writing the new segment", OLD | files(0, state=".cleaned"), OLD, {}),
    Crash("writing the new segment, log alone", OLD | named("0.log.cleaned"), OLD, {}),
    Crash(
        "renaming one segment to .swap, log done",
        OLD | named("0.log.swap", "0.index.cleaned", "0.timeindex.cleaned", "0.txnindex.cleaned"),
        OLD,
        MERGED,
    ),
    Crash(
        "renaming one segment to .swap, last index not done",
        OLD | named("0.log.swap", "0.index.swap", "0.timeindex.swap", "0.txnindex.cleaned"),
        OLD,
        MERGED,
    ),
    Crash(
        "several new segments, the highest done",
        OLD | files(4, state=".swap") | files(0, 2, state=".cleaned"),
        OLD,
        {4: 6},
    ),
    Crash(
        "several new segments, all but the lowest done",
        OLD | files(2, 4, state=".swap") | files(0, state=".cleaned"),
        OLD,
        {2: 4, 4: 6},
    ),
    Crash("all new segments are .swap", OLD | files(0, state=".swap"), files(0, 6), MERGED),
    Crash(
        "a split, all new segments are .swap",
        OLD | files(0, 2, 4, state=".swap"),
        files(0, 2, 4, 6),
        {0: 2, 2: 4, 4: 6},
    ),
    Crash(
        "an old segment is .deleted",
        files(0, 6) | files(3, state=".deleted") | files(0, state=".swap"),
        files(0, 6),
        MERGED,
    ),
    Crash(
        "an old segment is half .deleted",
        files(0, 6) | named("3.log.deleted", "3.index", "3.timeindex") | files(0, state=".swap"),
        files(0, 6),
        MERGED,
    ),
    Crash(
        "an old segment above the new end is half .deleted",
        files(0, 6) | named("3.log.deleted", "3.index", "3.timeindex", "3.txnindex") | files(0, state=".swap"),
        files(0, 6),
        {0: 2},
    ),
    Crash(
        "all old ones .deleted, the new log renamed",
        files(6)
        | files(0, 3, state=".deleted")
        | named("0.log", "0.index.swap", "0.timeindex.swap", "0.txnindex.swap"),
        files(0, 6),
        {},
    ),
    Crash(
        "a split, the first new segment renamed",
        files(0, 6) | files(0, 3, state=".deleted") | files(2, 4, state=".swap"),
        files(0, 2, 4, 6),
        {2: 4, 4: 6},
    ),
    Crash("new ones live, old ones .deleted", files(0, 6) | files(3, state=".deleted"), files(0, 6), {}),
    Crash(
        "retention, half done", files(3, 6) | named("0.log.deleted", "0.index.deleted", "0.timeindex"), files(3, 6), {}
    ),
    Crash("roll: the log is there, its indexes are not", OLD | named("9.log"), OLD | named("9.log"), {}),
    Crash("truncation: later segments .deleted", files(0) | files(3, 6, state=".deleted"), files(0), {}),
    Crash(
        "new data that ends below the old: later segments stay", OLD | files(0, state=".swap"), files(0, 3, 6), {0: 3}
    ),
    Crash(
        "a swap of an empty segment replaces its base alone by name",
        files(3) | files(0, state=".swap"),
        files(0, 3),
        {0: 0},
    ),
]


def plan(case: Crash, names: Iterable[str]) -> SwapPlan:
    def next_offset(name: str) -> int:
        name_parts = parse_segment_file(name)
        assert name_parts is not None
        assert (name_parts.suffix, name_parts.state) == (LOG_SUFFIX, ".swap")
        return case.ends[name_parts.base_offset]

    return plan_swap(sorted(names), next_offset)


def steps(swap_plan: SwapPlan) -> list[tuple[str, str | None]]:
    """Return each removal (name and None) and each rename (old and new name), in the order of the plan."""
    return [(name, None) for name in (*swap_plan.undone, *swap_plan.orphans, *swap_plan.removals)] + list(
        swap_plan.renames
    )


def carried_out(names: Iterable[str], changes: Iterable[tuple[str, str | None]]) -> set[str]:
    remaining = set(names)
    for old, new in changes:
        remaining.remove(old)
        if new is not None:
            remaining.add(new)
    return remaining


@pytest.mark.parametrize("case", CRASHES, ids=lambda case: case.name)
def test_an_interrupted_swap_is_finished_or_undone(case: Crash) -> None:
    swap_plan = plan(case, case.before)
    assert set(swap_plan.live) == case.after
    assert carried_out(case.before, steps(swap_plan)) == case.after


@pytest.mark.parametrize("case", CRASHES, ids=lambda case: case.name)
def test_a_reader_finds_the_live_files_under_the_names_they_have(case: Crash) -> None:
    swap_plan = plan(case, case.before)
    assert set(swap_plan.live.values()) <= case.before
    current_names = {final: name for name, final in swap_plan.renames}
    assert swap_plan.live == {name: current_names.get(name, name) for name in case.after}


@pytest.mark.parametrize("case", CRASHES, ids=lambda case: case.name)
def test_a_crash_of_the_repair_itself_is_repaired(case: Crash) -> None:
    """An earlier version of Kafka removed .cleaned files first. An incomplete replacement then counted as committed."""
    all_steps = steps(plan(case, case.before))
    logs = {name for name in case.after if name.endswith(LOG_SUFFIX)}
    for step_count in range(len(all_steps) + 1):
        remaining = carried_out(case.before, all_steps[:step_count])
        second_plan = plan(case, remaining)
        assert {name for name in second_plan.live if name.endswith(LOG_SUFFIX)} == logs
        # an offset or time index may be lost, because it can be rebuilt; a log or a transaction index must stay
        assert {name for name in case.after if name.endswith(".txnindex")} <= set(second_plan.live)
        assert set(second_plan.live) <= case.after


@pytest.mark.parametrize("case", CRASHES, ids=lambda case: case.name)
def test_a_repaired_folder_needs_no_repair(case: Crash) -> None:
    assert steps(plan(case, case.after)) == []


@pytest.mark.parametrize("case", CRASHES, ids=lambda case: case.name)
def test_the_plan_does_not_hang_on_the_order_of_names(case: Crash) -> None:
    swap_plan = plan_swap(sorted(case.before, reverse=True), lambda name: case.ends[int(name[:20])])
    assert swap_plan == plan(case, case.before)


def test_snapshots_in_the_range_are_deleted_with_the_old_segments() -> None:
    snapshots = named("0.snapshot", "3.snapshot", "6.snapshot", "9.snapshot")
    swap_plan = plan_swap(sorted(OLD | snapshots | files(0, state=".swap")), lambda _: 6)
    assert {name for name in swap_plan.live if name.endswith(".snapshot")} == named("6.snapshot", "9.snapshot")


def test_foreign_files_are_left_alone() -> None:
    foreign = [
        "leader-epoch-checkpoint",
        "leader-epoch-checkpoint.tmp",
        "partition.metadata",
        "notes.txt",
        "00000000000000000006-0000000002.checkpoint",
        "00000000000000000006-0000000002.checkpoint.deleted",
    ]
    swap_plan = plan_swap([*sorted(OLD), *foreign], lambda _: 0)
    assert steps(swap_plan) == []
    assert set(swap_plan.live) == OLD


def test_every_other_deleted_file_is_removed() -> None:
    deleted_files = [
        "00000000000000000003.snapshot.deleted",
        "00000000000000000003.bloom.deleted",
        "leader-epoch-checkpoint.deleted",
    ]
    assert plan_swap([*sorted(OLD), *deleted_files], lambda _: 0).removals == tuple(sorted(deleted_files))


def test_the_next_open_reports_no_missing_file_of_a_deletion_that_was_interrupted_twice() -> None:
    names = OLD - named("0.log") | named("0.log.deleted")
    changes = steps(plan_swap(sorted(names), lambda _: 0))
    for count in range(len(changes) + 1):
        left = carried_out(names, changes[:count])
        assert missing_logs(left, left) == {}


def test_other_files_with_the_name_of_a_segment_report_no_missing_log() -> None:
    assert missing_logs(named("0.extra", "0.bak", "0.snapshot"), OLD - named("0.log")) == {}


def test_an_index_of_a_plugin_moves_with_its_segment() -> None:
    swap_plan = plan_swap(sorted(named("0.log.swap", "0.bloom.swap", "0.bloom", "0.log")), lambda _: 3)
    assert swap_plan.removals == tuple(sorted(named("0.bloom", "0.log")))
    assert dict(swap_plan.renames) == {
        segment_file(0, suffix) + ".swap": segment_file(0, suffix) for suffix in (".log", ".bloom")
    }


@pytest.mark.parametrize(("first_end", "replaced"), [(3, True), (2, False)])
def test_a_split_segment_is_deleted_even_if_its_base_is_below_that_of_the_first_piece(
    first_end: int, *, replaced: bool
) -> None:
    """Kafka names a piece by its first record and decides by file names alone.

    After a crash, Kafka therefore keeps both the old segment and the pieces.
    """
    before = files(0, 9) | files(2, 4, state=".swap")
    swap_plan = plan_swap(sorted(before), lambda name: {2: 4, 4: 9}[int(name[:20])], lambda _: first_end)
    assert (files(0) <= set(swap_plan.removals)) is replaced
    assert set(swap_plan.live) == files(2, 4, 9) | (frozenset() if replaced else files(0))
