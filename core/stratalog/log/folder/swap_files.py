"""Renames that publish finished segments: from ``.cleaned`` names to ``.swap``, then to their final names.

The new files are first made durable under ``.cleaned`` names. Then all new segments except the first are renamed to
``.swap``, and after that the first segment. While a ``.cleaned`` file exists, the next opening of the log undoes the
new segments at and above the base offset of that file. After the first segment is renamed, the new segments are live.
Then the replaced files are renamed to ``.deleted``, then the new logs to their final names, and last the new indexes.
Each step is durable before the next begins, because a power loss may keep any subset of the names that were not synced.
``swap_recovery`` completes or undoes the renames when the log is opened.

Source: apache/kafka LocalLog.replaceSegments. Unlike Kafka, stratalog syncs the folder after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from stratalog.model.names import LOG_SUFFIX, SWAP_SUFFIX, segment_file
from stratalog.segment.build import BuiltSegment
from stratalog.spi.segment_store import LogFiles


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
