"""Finishing or undoing what a crash interrupted: ``.deleted``, ``.cleaned`` and ``.swap`` files.

The commit point of a replacement is the rename of the last new segment to ``.swap``: before it the old segments stay,
after it the new ones take over.

Source: apache/kafka LogLoader, passes 1 to 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stratalog.model.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    parse_segment_file,
    segment_file,
)


@dataclass(frozen=True, slots=True)
class SwapPlan:
    """What to remove and rename, and the segment files that are live afterwards.

    ``live`` maps each final name to the name the file has now: a reader that may not rename reads through it.
    """

    removals: tuple[str, ...]
    renames: tuple[tuple[str, str], ...]
    live: dict[str, str]


def plan_swap(names: Iterable[str], next_offset: Callable[[str], int]) -> SwapPlan:
    """Decide over the files of a log's folder. Touches nothing.

    Args:
        names: of all files.
        next_offset: given the name of a ``.log.swap`` file, the first offset after its records.
    """
    parsed = [(name, found) for name in names if (found := parse_segment_file(name)) is not None]
    removals = {name for name in names if name.endswith(DELETED_SUFFIX)}
    cleaned = [(name, found) for name, found in parsed if found.state == CLEANED_SUFFIX]
    first_cleaned = min((found.base_offset for _, found in cleaned), default=None)
    removals.update(name for name, _ in cleaned)
    swaps = []
    for name, found in parsed:
        if found.state != SWAP_SUFFIX:
            continue
        if first_cleaned is not None and found.base_offset >= first_cleaned:
            removals.add(name)
        else:
            swaps.append((name, found))
    new_logs = [(name, found) for name, found in swaps if found.suffix == LOG_SUFFIX]
    if new_logs:
        low = min(found.base_offset for _, found in new_logs)
        high = max(next_offset(name) for name, _ in new_logs)
        removals.update(name for name, found in parsed if not found.state and low <= found.base_offset < high)
    renames = tuple((name, segment_file(found.base_offset, found.suffix)) for name, found in swaps)
    live = {name: name for name, found in parsed if not found.state and name not in removals}
    live.update({final: name for name, final in renames})
    return SwapPlan(tuple(sorted(removals)), renames, live)
