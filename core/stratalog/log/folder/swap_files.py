"""Renames that publish finished segments: ``.cleaned``, then ``.swap``, then their final names.

``replace_segments`` documents the order and the effects of a crash. ``swap_recovery`` completes or undoes the renames
when the log is opened.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.model.names import LOG_SUFFIX, SWAP_SUFFIX, segment_file
from stratalog.segment.cleaned_segment import CleanedSegment
from stratalog.spi.segment_store import LogFiles


def rename_to_swap(files: LogFiles, made: Sequence[CleanedSegment]) -> dict[str, str]:
    """Commit the finished segments ``made``, which ascend; return the new names of the first one's files by suffix.

    The last segment is renamed first, and each rename is durable before the next: while a segment is still
    ``.cleaned``, the next opening undoes the segments after it.
    """
    swaps = dict[str, str]()
    for one in reversed(made):
        swaps = {suffix: segment_file(one.base_offset, suffix) + SWAP_SUFFIX for suffix in one.suffixes}
        for suffix, name in swaps.items():
            files.rename(one.name(suffix), name)
        files.sync()
    return swaps


def rename_to_live(files: LogFiles, made: Sequence[CleanedSegment]) -> None:
    """Rename the segments to their final names, durably, after the files that they replace are durably removed.

    The logs are renamed one by one, because live segments between two ``.swap`` logs count as replaced. The indexes
    follow.
    """
    for one in made:
        name = segment_file(one.base_offset, LOG_SUFFIX)
        files.rename(name + SWAP_SUFFIX, name)
        files.sync()
    for one in made:
        for suffix in one.suffixes:
            name = segment_file(one.base_offset, suffix)
            files.rename(name + SWAP_SUFFIX, name)
    files.sync()
