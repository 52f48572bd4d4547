"""The plugin interface: hook specs, providers, component classes, and the values that they exchange.

A plugin imports from ``stratalog``, ``stratalog.errors`` and ``stratalog.spi`` only.
"""

from __future__ import annotations

from stratalog.config.topic import TopicConfig
from stratalog.env import Clock, Env, Vfs
from stratalog.env.handles import HandlePool
from stratalog.env.vfs import FileStat
from stratalog.extensions import extension
from stratalog.model.arrow import ArrowBuffers, arrow_batches
from stratalog.model.batches import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    NO_EPOCH,
    NO_PRODUCER,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchTable,
    Buffer,
    RecordBatch,
    ScanStop,
)
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
from stratalog.model.offsets import EpochEntry, OffsetPosition, TimestampOffset
from stratalog.model.prepared import PreparedBatches, Rules
from stratalog.model.records import Fields, Headers
from stratalog.model.segment_info import AbortedTransaction, FileKind, FileSlice, ObjectSlice, SegmentInfo
from stratalog.spi.cleanup import (
    Action,
    CleanupPolicy,
    DeletePrefix,
    Keep,
    LogSummary,
    RecordFilter,
    Rewrite,
    RewriteJob,
    SegmentSummary,
)
from stratalog.spi.codecs import Codec, CodecTable
from stratalog.spi.commands import CommandOutput, config_option, option_group, stop_event, tier_option
from stratalog.spi.extra import ExtraIndex, ExtraIndexBuilder, ExtraIndexReader
from stratalog.spi.formats import BatchHeader, RecordFormat, Verdict
from stratalog.spi.hooks import hookimpl
from stratalog.spi.indexes import IndexBuilder, IndexFormat, IndexReader, IndexRole
from stratalog.spi.layouts import (
    HashedLog,
    LayoutLookup,
    ManifestAuthenticator,
    ObjectSink,
    RangeReader,
    SegmentSource,
    StoredSegment,
    TierLayout,
    Unauthenticated,
)
from stratalog.spi.objects import (
    ByteSource,
    BytesSource,
    Capability,
    Created,
    ObjectInfo,
    ObjectStore,
    UnfinishedUpload,
)
from stratalog.spi.providers import OpenContext, Provider, Section, key
from stratalog.spi.segment_store import IndexFile, LogFiles, SegmentFile, SegmentStore
from stratalog.spi.service_contract import Command, Service

__all__ = [
    "CODEC_MASK", "CONTROL_BIT", "DELETE_HORIZON_BIT", "NO_EPOCH", "NO_PRODUCER", "NO_TIMESTAMP", "TIMESTAMP_TYPE_BIT",
    "TRANSACTIONAL_BIT", "AbortedTransaction", "Action", "ArrowBuffers", "Backpressure", "BatchHeader", "BatchTable",
    "Buffer", "ByteSource", "BytesSource", "Capability", "CleanupPolicy", "Clock", "Codec", "CodecTable", "Command",
    "CommandOutput", "Created", "DeletePrefix", "Env", "EpochEntry", "EpochFenced", "ExtraIndex", "ExtraIndexBuilder",
    "ExtraIndexReader", "Fields", "FileKind", "FileSlice", "FileStat", "HandlePool", "HashedLog", "Headers",
    "IndexBuilder", "IndexFile", "IndexFormat", "IndexReader", "IndexRole", "Keep", "LayoutLookup", "LogCleaned",
    "LogDirOffline", "LogFiles", "LogOpened", "LogRecovered", "LogSummary", "LogUncleanable", "ManifestAuthenticator",
    "ObjectInfo", "ObjectSink", "ObjectSlice", "ObjectStore", "OffsetPosition", "OpenContext", "PreparedBatches",
    "Provider", "RangeReader", "RecordBatch", "RecordFilter", "RecordFormat", "Rewrite", "RewriteJob", "Rules",
    "ScanStop", "Section", "SegmentEvicted", "SegmentFile", "SegmentInfo", "SegmentOffloaded", "SegmentRolled",
    "SegmentSource", "SegmentStore", "SegmentSummary", "SegmentsDeleted", "Service", "StoredSegment", "TierAvailable",
    "TierLayout", "TierUnavailable", "TimestampOffset", "TinySegments", "TopicConfig", "Unauthenticated",
    "UnfinishedUpload", "Verdict", "Vfs", "arrow_batches", "config_option", "extension", "hookimpl", "key",
    "option_group", "stop_event", "tier_option",
]  # fmt: skip
