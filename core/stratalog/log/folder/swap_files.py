"""Renames that publish finished segments: from ``.cleaned`` names to ``.swap``, then to their final names.

The new files are first made durable under ``.cleaned`` names. Then all new segments except the first are renamed to
``.swap``, and after that the first segment. While a ``.cleaned`` file exists, the next opening of the log undoes the
new segments at and above the base offset of that file. After the first segment is renamed, the new segments are live.
Then the replaced files are renamed to ``.deleted``, then the new logs to their final names, and last the new indexes.
Each step is durable before the next begins, because a power loss may keep any subset of the names that were not synced.
When the log is opened, ``plan_swap`` completes or undoes interrupted renames. The commit point is the last rename of a
file from ``.cleaned`` to ``.swap``. Before this rename, the old segments are live; after it, the new segments are live.

Source: apache/kafka LocalLog.replaceSegments; LogLoader, passes 1 to 4. Unlike Kafka, stratalog syncs the folder after
each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from stratalog.model.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    parse_segment_file,
    segment_file,
)
from stratalog.segment.build import BuiltSegment
from stratalog.spi.segment_store import LogFiles

INDEX_SUFFIXES: Final = frozenset(SEGMENT_SUFFIXES) - {LOG_SUFFIX}
_DELETED_CHECKPOINT: Final = (
    ".checkpoint.deleted"  # in the folder of a cluster metadata log; recovery keeps such a file
)


def swap_in(
    files: LogFiles, new_segments: Sequence[BuiltSegment], take_over: Callable[[Sequence[BuiltSegment]], Iterable[str]]
) -> list[str]:
    """Rename finished segments to their final names, in place of old segments: all or none, even after a crash.

    After an error, delete no file: only the next opening of the log can complete or undo the change.

    Args:
        files: the log's folder.
        new_segments: the new segments, ascending, under ``.cleaned`` names.
        take_over: called when the new segments count as part of the log, with the new segments under ``.swap`` names.
            It renames the files of the replaced segments to ``.deleted`` and returns the new names.

    Returns:
        The names that ``take_over`` returned.

    Raises:
        LogDirError: a rename or a sync failed.
    """
    swaps = [_replace_names(segment, SWAP_SUFFIX) for segment in new_segments]
    for segment, swap in zip(reversed(new_segments), reversed(swaps), strict=True):
        if segment is new_segments[0] and len(new_segments) > 1:
            files.sync()
        for suffix, name in segment.names.items():
            files.rename(name, swap.names[suffix])
    files.sync()
    deleted_files = list(take_over(swaps))
    files.sync()
    for swap in swaps:  # sync each rename: after a crash, live segments between two ``.swap`` logs are removed
        files.rename(swap.names[LOG_SUFFIX], segment_file(swap.base_offset, LOG_SUFFIX))
        files.sync()
    for swap in swaps:
        for suffix, name in swap.names.items():
            if suffix != LOG_SUFFIX:
                files.rename(name, segment_file(swap.base_offset, suffix))
    files.sync()
    return deleted_files


def _replace_names(segment: BuiltSegment, state: str) -> BuiltSegment:
    """Return ``segment`` with the file names of ``state``, such as ``.swap``. Rename no file."""
    names = {suffix: segment_file(segment.base_offset, suffix) + state for suffix in segment.names}
    return replace(segment, names=names)


@dataclass(frozen=True, slots=True)
class SwapPlan:
    """Files to remove and to rename after an interrupted replacement, and the segment files that are live afterwards.

    The order matters, because a crash may interrupt the plan. First remove ``undone``, durably: without the
    ``.cleaned`` files beside them, these ``.swap`` files of an uncommitted replacement would count as committed. Then
    remove ``orphans``, which are indexes without a ``.log`` file, durably: without the ``.log.deleted`` file of an
    interrupted deletion, the next opening would report a missing ``.log`` file. Then do ``removals``, then ``renames``,
    logs before their indexes: while a ``.log.swap`` file exists, the next opening removes files with final names in its
    offset range.

    ``live`` maps each final name to the current name of the file. A reader uses ``live``, because it must not rename
    files.
    """

    undone: tuple[str, ...]
    orphans: tuple[str, ...]
    removals: tuple[str, ...]
    renames: tuple[tuple[str, str], ...]
    live: dict[str, str]

    @property
    def changes(self) -> bool:
        """True if the plan changes any file."""
        return bool(self.undone or self.orphans or self.removals or self.renames)


def plan_swap(
    names: Sequence[str], next_offset: Callable[[str], int], first_end: Callable[[str], int] | None = None
) -> SwapPlan:
    """Return the renames and deletions that complete or undo an interrupted replacement of segments. Change no file.

    Args:
        names: the names of all files.
        next_offset: returns the first offset after the records of a ``.log.swap`` file, given its name.
        first_end: returns the first offset after the first batch of a ``.log`` file, given its name. With it, the plan
            removes a segment that was split, even if the first new segment begins above the base offset of the split
            one. Kafka would keep both. If it is None, such a segment is kept.
    """
    parsed_names = {name: file_name for name in names if (file_name := parse_segment_file(name)) is not None}
    deleted_names = [name for name in names if name.endswith(DELETED_SUFFIX) and not name.endswith(_DELETED_CHECKPOINT)]
    cleaned_names = [name for name, file_name in parsed_names.items() if file_name.state == CLEANED_SUFFIX]
    first_cleaned = min((parsed_names[name].base_offset for name in cleaned_names), default=None)
    swap_names = [name for name, file_name in parsed_names.items() if file_name.state == SWAP_SUFFIX]
    undone = [
        name for name in swap_names if first_cleaned is not None and parsed_names[name].base_offset >= first_cleaned
    ]
    committed = sorted(
        set(swap_names).difference(undone), key=lambda name: (parsed_names[name].suffix != LOG_SUFFIX, name)
    )
    new_logs = [name for name in committed if parsed_names[name].suffix == LOG_SUFFIX]
    low = min((parsed_names[name].base_offset for name in new_logs), default=0)
    high = max((next_offset(name) for name in new_logs), default=0)
    lower_names = [
        name
        for name, file_name in parsed_names.items()
        if file_name.suffix == LOG_SUFFIX and not file_name.state and file_name.base_offset < low
    ]
    split = max(lower_names, key=lambda name: parsed_names[name].base_offset, default=None)
    if split is not None and first_end is not None and first_end(split) > low:
        low = parsed_names[split].base_offset
    live, replaced_names = {}, []
    for name, file_name in parsed_names.items():
        if not file_name.state:
            if low <= file_name.base_offset < high:
                replaced_names.append(name)
            else:
                live[name] = name
    renames = [(name, segment_file(parsed_names[name].base_offset, parsed_names[name].suffix)) for name in committed]
    live.update({final: name for name, final in renames})
    orphans = sorted(final for final in live if _lacks_log(final, live))
    return SwapPlan(
        tuple(sorted(undone)),
        tuple(live.pop(final) for final in orphans),
        (*sorted(deleted_names), *sorted(cleaned_names), *sorted(replaced_names)),
        tuple(pair for pair in renames if pair[1] in live),
        live,
    )


def _lacks_log(name: str, live: Mapping[str, str]) -> bool:
    """Return True if the file is an index without its log: a deletion removes the log first."""
    parsed = parse_segment_file(name)
    return (
        parsed is not None
        and parsed.suffix in INDEX_SUFFIXES
        and segment_file(parsed.base_offset, LOG_SUFFIX) not in live
    )
