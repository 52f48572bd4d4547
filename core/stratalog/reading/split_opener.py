"""Opening of the single segments that the pieces of a split name, without opening their logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final

from stratalog.config.settings_sources import Settings
from stratalog.config.topic import TopicConfig
from stratalog.env.closing import Closeable
from stratalog.errors import ConfigError, SegmentGoneError
from stratalog.log.folder.directory_state import read_topic_id
from stratalog.model.names import LOG_SUFFIX
from stratalog.reading.component_host import split_scheme
from stratalog.reading.open_reader import open_host, open_tier
from stratalog.reading.read_source import ReadSource
from stratalog.reading.reader import Reader
from stratalog.reading.split import Piece, Split
from stratalog.segment.readable import ReadableSegment
from stratalog.segment.segment import Segment
from stratalog.spi.segment_store import SegmentStore
from stratalog.tier.read.remote_segment import RemoteSegment
from stratalog.tier.tier import Tier

_REQUESTS_A_PIECE: Final = 8  # approximate; with larger requests, too many bytes outside of a piece are read
_SMALLEST_CHUNK_BYTES: Final = 1 << 16


class SplitOpener(Closeable):
    """Opens the segments of a split's pieces. Not thread-safe. A context manager.

    The directory and the tier are opened only when a piece needs them. ``cached_property`` is not used for that: before
    Python 3.12, it has one lock for all objects, and a scan in another thread would wait for the store.

    Args:
        source: source of the plan.
        split: the split to read; the sizes of its pieces determine the size of requests to the tier.
    """

    def __init__(self, source: ReadSource, split: Split) -> None:
        self._source = source
        self._settings = _adapt_settings(source.settings(), split)
        self._opened = ExitStack()
        self._host = open_host(self._settings)
        self._opened.callback(self._host.close)
        self.components = self._host.components(TopicConfig())
        self._opened_reader: Reader | None = None
        self._opened_store: SegmentStore | None = None
        self._opened_tier: Tier | None = None

    @contextmanager
    def segment(self, piece: Piece) -> Iterator[ReadableSegment]:
        """Return a context whose value is the segment of a piece; the segment is closed at the end.

        Raises:
            SegmentGoneError: since the plan was made, the file was deleted, replaced or truncated, or its topic was
                deleted and created again.
            LogDirNotFoundError: the folder of the log was deleted.
            ConfigError: the piece is in a tier, and the source has no tier.
            The errors of ``open_tier``.
        """
        stored_segment = piece.stored_segment()
        if stored_segment is not None:
            yield RemoteSegment(stored_segment, self._tier.log(piece.log, stored_segment.info.topic_id).fetcher)
            return
        assert isinstance(piece.place, str)  # the name of a local file
        files = self._store.open_log(str(piece.log))
        topic_id = read_topic_id(files)
        if topic_id is not None and topic_id != piece.topic_id:
            raise SegmentGoneError(
                "the topic was deleted and created again after the plan was made", files.path(piece.place)
            ).advised("plan the read again")
        log = files.open_segment(piece.place)
        segment = Segment(
            files,
            piece.base_offset,
            piece.end_offset,
            self.components,
            log,
            size_bytes=piece.size_bytes,
            names={LOG_SUFFIX: piece.place},
            start=piece.file_start,
        )
        try:
            planned_bytes = piece.file_bytes or piece.size_bytes
            if log.size_bytes < planned_bytes or (not piece.is_active and log.size_bytes != planned_bytes):
                raise SegmentGoneError(
                    "the segment was replaced or truncated after the plan was made", segment.label
                ).advised("plan the read again")
            yield segment
        finally:
            segment.close()

    @property
    def reader(self) -> Reader:
        """The reader of the whole source, opened at the first use; raises the errors of ``open_reader``."""
        if self._opened_reader is None:
            self._opened_reader = self._opened.enter_context(self._source.open())
        return self._opened_reader

    @property
    def _store(self) -> SegmentStore:
        if self._opened_store is None:
            store = self._host.segment_store(self._source.location, read_only=True)
            self._opened_store = self._opened.enter_context(store)
        return self._opened_store

    @property
    def _tier(self) -> Tier:
        if self._opened_tier is None:
            uri = self._source.location if split_scheme(self._source.location)[0] else self._source.tier
            if uri is None:
                raise ConfigError("the plan names segments of a tier, but the source has no tier")
            tier = open_tier(self._host, uri, self._source.tier_options, read_only=True)
            self._opened_tier = self._opened.enter_context(tier)
        return self._opened_tier

    def close(self) -> None:
        """Close everything that was opened. A second call does nothing."""
        self._opened.close()


def _adapt_settings(settings: Settings, split: Split) -> Settings:
    """Return settings for a split, with chunks and memory for prefetches that suit its largest piece.

    A prefetch does not know where a piece ends: up to an eighth of the piece may be read beyond its end.
    """
    widest = max((piece.span_bytes for piece in split.pieces), default=0)
    suitable_bytes = max(widest // _REQUESTS_A_PIECE, _SMALLEST_CHUNK_BYTES)
    limits = settings.limits
    chunk_bytes = min(limits.fetch_chunk_bytes, suitable_bytes)
    ahead_bytes = min(limits.prefetch_bytes, suitable_bytes) if 2 * suitable_bytes >= limits.fetch_chunk_bytes else 0
    return replace(settings, limits=replace(limits, fetch_chunk_bytes=chunk_bytes, prefetch_bytes=ahead_bytes))
