"""Finishing or undoing what a crash interrupted: ``.deleted``, ``.cleaned`` and ``.swap`` files.

The commit point of a replacement is the rename of the last new segment to ``.swap``: before it the old segments stay,
after it the new ones take over.

Source: apache/kafka LogLoader, passes 1 to 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stratalog.model.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    SegmentFileName,
    parse_segment_file,
    segment_file,
)

INDEX_SUFFIXES: Final = frozenset(SEGMENT_SUFFIXES) - {LOG_SUFFIX}
_DELETED_CHECKPOINT: Final = ".checkpoint.deleted"  # of a cluster metadata log; not this log's to remove


@dataclass(frozen=True, slots=True)
class SwapPlan:
    """What to remove and rename, and the segment files that are live afterwards.

    The order matters to a crash in the middle: first ``undone``, the ``.swap`` files of a replacement that was not
    committed, durably, for once the ``.cleaned`` files beside them are gone they would pass for a committed one. Then
    ``removals``, then ``renames``, logs before their indexes: while a log is still ``.swap``, the final names below it
    belong to the old segments and are removed again.

    ``live`` maps each final name to the name the file has now: a reader that may not rename reads through it.
    """

    undone: tuple[str, ...]
    removals: tuple[str, ...]
    renames: tuple[tuple[str, str], ...]
    live: dict[str, str]

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.undone or self.removals or self.renames)


def plan_swap(
    names: Sequence[str], next_offset: Callable[[str], int], first_end: Callable[[str], int] | None = None
) -> SwapPlan:
    """Decide over the files of a log's folder. Touches nothing.

    Args:
        names: of all files.
        next_offset: given the name of a ``.log.swap`` file, the first offset after its records.
        first_end: given the name of a ``.log`` file, the first offset after its first batch. What replaces a segment that
            was split is named by the first offset in it, which may be above the segment's base; Kafka then keeps both.
    """
    parsed = {name: found for name in names if (found := parse_segment_file(name)) is not None}
    deleted = [name for name in names if name.endswith(DELETED_SUFFIX) and not name.endswith(_DELETED_CHECKPOINT)]
    cleaned = [name for name, found in parsed.items() if found.state == CLEANED_SUFFIX]
    first_cleaned = min((parsed[name].base_offset for name in cleaned), default=None)
    swaps = [name for name, found in parsed.items() if found.state == SWAP_SUFFIX]
    undone = [name for name in swaps if first_cleaned is not None and parsed[name].base_offset >= first_cleaned]
    committed = sorted(set(swaps).difference(undone), key=lambda name: (parsed[name].suffix != LOG_SUFFIX, name))
    new_logs = [name for name in committed if parsed[name].suffix == LOG_SUFFIX]
    low = min((parsed[name].base_offset for name in new_logs), default=0)
    high = max((next_offset(name) for name in new_logs), default=0)
    lower = [name for name, found in parsed.items() if _is_live_log(found) and found.base_offset < low]
    split = max(lower, key=lambda name: parsed[name].base_offset, default=None)
    if split is not None and first_end is not None and first_end(split) > low:
        low = parsed[split].base_offset
    live, replaced = {}, []
    for name, found in parsed.items():
        if not found.state:
            if low <= found.base_offset < high:
                replaced.append(name)
            else:
                live[name] = name
    renames = [(name, segment_file(parsed[name].base_offset, parsed[name].suffix)) for name in committed]
    live.update({final: name for name, final in renames})
    orphans = [final for final in live if _lacks_log(final, live)]
    return SwapPlan(
        tuple(sorted(undone)),
        (*sorted(deleted), *sorted(cleaned), *sorted(replaced), *sorted(live.pop(final) for final in orphans)),
        tuple(pair for pair in renames if pair[1] in live),
        live,
    )


def _is_live_log(found: SegmentFileName) -> bool:
    return found.suffix == LOG_SUFFIX and not found.state


def _lacks_log(name: str, live: Mapping[str, str]) -> bool:
    """Whether this is an index without its log: the log goes first when a segment is deleted."""
    found = parse_segment_file(name)
    return (
        found is not None and found.suffix in INDEX_SUFFIXES and segment_file(found.base_offset, LOG_SUFFIX) not in live
    )
