"""Renames that publish finished segments: ``.cleaned``, then ``.swap``, then their final names.

``replace`` describes the order and what a crash leaves; ``swap`` finishes or undoes it when the log is opened.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.model.names import LOG_SUFFIX, SWAP_SUFFIX, segment_file
from stratalog.segment.cleaned_segment import CleanedSegment
from stratalog.spi.segment_store import LogFiles


def rename_to_swap(files: LogFiles, made: Sequence[CleanedSegment]) -> dict[str, str]:
    """Decide that ``made``, finished and ascending, count from now on; by suffix, the names of the first one's files.

    The last of them first, each durable before the next: while any is ``.cleaned``, those behind it are undone.
    """
    swaps = dict[str, str]()
    for one in reversed(made):
        swaps = {suffix: segment_file(one.base_offset, suffix) + SWAP_SUFFIX for suffix in one.suffixes}
        for suffix, name in swaps.items():
            files.rename(one.name(suffix), name)
        files.sync()
    return swaps


def rename_to_live(files: LogFiles, made: Sequence[CleanedSegment]) -> None:
    """Give them their final names, once those of what they replace are gone for good; durable on return.

    Log by log, since what lies between two that are ``.swap`` passes for replaced; then the indexes.
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
