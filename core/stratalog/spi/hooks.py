"""The hook specs: hooks that offer components, and hooks that listen to events.

A plugin is a module (or object) with some of these functions, decorated with ``hookimpl``. The order of plugins has no
meaning.

Hooks that offer components are called once per engine, when it is constructed, before any directory is opened. Hooks of
plugins that come with stratalog run on the thread that opens the engine. Hooks of other plugins run on a separate
thread and have the deadline ``plugin.deadline.ms``. The listeners of a plugin run one at a time on a thread of the
plugin, with no lock held, after the event. If a listener raises an error, the error is logged and counted, and the
other listeners still run. All hooks belong to version 1 of the plugin interface, whose entry-point group is
``stratalog.v1``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pluggy

from stratalog.model.events import (
    Backpressure,
    EpochFenced,
    LogCleaned,
    LogDirOffline,
    LogOpened,
    LogRecovered,
    LogUncleanable,
    SegmentEvicted,
    SegmentOffloaded,
    SegmentRolled,
    SegmentsDeleted,
    TierAvailable,
    TierUnavailable,
    TinySegments,
)
from stratalog.spi.cleanup import CleanupPolicy
from stratalog.spi.codecs import Codec
from stratalog.spi.extra import ExtraIndex
from stratalog.spi.formats import RecordFormat
from stratalog.spi.indexes import IndexFormat
from stratalog.spi.layouts import TierLayout
from stratalog.spi.objects import ObjectStore
from stratalog.spi.providers import Provider
from stratalog.spi.segment_store import SegmentStore
from stratalog.spi.service_contract import Command, Service

CONTRACT_GROUP: Final = "stratalog.v1"
PROJECT: Final = "stratalog"

hookspec: Final = pluggy.HookspecMarker(PROJECT)
hookimpl: Final = pluggy.HookimplMarker(PROJECT)

# --- components --------------------------------------------------------------------------------------------------


@hookspec
def stratalog_record_formats() -> Iterable[Provider[RecordFormat]]:
    """Return the providers of the plugin's record formats.

    The topic setting ``record.version`` selects the format of appended batches, by name. A reader uses the format of
    the magic in each batch.
    """
    return ()


@hookspec
def stratalog_codecs() -> Iterable[Provider[Codec]]:
    """Return the providers of the plugin's codecs.

    The topic setting ``compression.type`` selects the codec of appended batches. A reader uses the codec in the
    attributes of each batch.
    """
    return ()


@hookspec
def stratalog_index_formats() -> Iterable[Provider[IndexFormat[object]]]:
    """Return the providers of the plugin's index formats. The topic setting ``index.formats`` selects them by name."""
    return ()


@hookspec
def stratalog_extra_indexes() -> Iterable[Provider[ExtraIndex]]:
    """Return the providers of the plugin's extra indexes.

    The topic setting ``index.extra`` selects the indexes to build, by name. A reader uses the extra indexes that a
    segment has, independent of the setting.
    """
    return ()


@hookspec
def stratalog_segment_stores() -> Iterable[Provider[SegmentStore]]:
    """Return the providers of the plugin's stores for log directories.

    The URI scheme of a log directory selects the store; a path without a scheme selects the store for ``file``.
    """
    return ()


@hookspec
def stratalog_object_stores() -> Iterable[Provider[ObjectStore]]:
    """Return the providers of the plugin's object stores for tiers. The scheme of the tier's URI selects the store."""
    return ()


@hookspec
def stratalog_tier_layouts() -> Iterable[Provider[TierLayout]]:
    """Return the providers of the plugin's tier layouts.

    The topic setting ``tier.layout`` selects the layout of new segments, by name. A reader uses the layout that the
    segment's manifest entry names.
    """
    return ()


@hookspec
def stratalog_cleanup_policies() -> Iterable[Provider[CleanupPolicy]]:
    """Return the providers of the plugin's cleanup policies. The topic setting ``cleanup.policy`` names them."""
    return ()


@hookspec
def stratalog_services() -> Iterable[Provider[Service]]:
    """Return the providers of the plugin's services. The engine setting ``services`` selects them by name."""
    return ()


@hookspec
def stratalog_commands() -> Iterable[Command]:
    """Return the plugin's commands for the command line.

    Only the command line calls this hook; an engine does not.
    """
    return ()


# --- listeners ---------------------------------------------------------------------------------------------------


@hookspec
def stratalog_on_log_opened(event: LogOpened) -> None:
    """Listen to LogOpened: a log was opened and serves readers."""


@hookspec
def stratalog_on_log_recovered(event: LogRecovered) -> None:
    """Listen to LogRecovered: a log that was not closed cleanly was checked and, if necessary, truncated."""


@hookspec
def stratalog_on_segment_rolled(event: SegmentRolled) -> None:
    """Listen to SegmentRolled: the active segment of a log was closed, and a new active segment was created."""


@hookspec
def stratalog_on_segment_offloaded(event: SegmentOffloaded) -> None:
    """Listen to SegmentOffloaded: a closed segment was uploaded to the tier, and the manifest names it."""


@hookspec
def stratalog_on_segment_evicted(event: SegmentEvicted) -> None:
    """Listen to SegmentEvicted: a segment was removed from local disk; the tier still has its records."""


@hookspec
def stratalog_on_log_cleaned(event: LogCleaned) -> None:
    """Listen to LogCleaned: a compaction round over the local part or the tier part of a log was completed."""


@hookspec
def stratalog_on_log_uncleanable(event: LogUncleanable) -> None:
    """Listen to LogUncleanable: compaction of the local or tier part of a log stops until the log is opened again."""


@hookspec
def stratalog_on_segments_deleted(event: SegmentsDeleted) -> None:
    """Listen to SegmentsDeleted: retention deleted segments of a log permanently, on local disk and in the tier."""


@hookspec
def stratalog_on_epoch_fenced(event: EpochFenced) -> None:
    """Listen to EpochFenced: another writer took over the tier of a log and fenced this engine."""


@hookspec
def stratalog_on_log_dir_offline(event: LogDirOffline) -> None:
    """Listen to LogDirOffline: a log directory with all its logs is out of service, because a read or write failed."""


@hookspec
def stratalog_on_backpressure(event: Backpressure) -> None:
    """Listen to Backpressure: an append would exceed ``local.hard.limit.bytes``; ``tier.outage.policy`` applies to it.

    The event occurs at the first such append to a log. The next event occurs only after at least one append to the log
    was within the limit.
    """


@hookspec
def stratalog_on_tiny_segments(event: TinySegments) -> None:
    """Listen to TinySegments: a topic was created or altered with segments so small that the tier is expensive.

    The requests that upload a segment cost more than a tenth of the storage of the segment for a month.
    """


@hookspec
def stratalog_on_tier_unavailable(event: TierUnavailable) -> None:
    """Listen to TierUnavailable: the tier's store is unavailable or not trusted. The engine continues without it."""


@hookspec
def stratalog_on_tier_available(event: TierAvailable) -> None:
    """Listen to TierAvailable: the tier's store is available again."""
