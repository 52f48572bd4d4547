"""The installed tier layouts, each opened at first use, and guards that check what plugins' layouts return."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from stratalog.errors import ConfigError, PluginError
from stratalog.model.arrow import arrow_schema
from stratalog.model.segment_info import FileKind
from stratalog.registry.guard import Guard
from stratalog.registry.guarded_parts import guarded_part
from stratalog.registry.resolve import Catalogue
from stratalog.spi.layouts import (
    ManifestAuthenticator,
    ObjectSink,
    RangeReader,
    SegmentSource,
    StoredSegment,
    TierLayout,
    Unauthenticated,
)
from stratalog.spi.objects import ObjectInfo
from stratalog.spi.providers import Provider, Section

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - only for type checkers

_STEP_BYTES: Final = 64 << 20  # for each 64 MiB, the deadline of ``write`` is longer by ``plugin.deadline.ms``


class GuardedLayout(TierLayout):
    """A layout that calls another layout, converts its errors to StorageErrors, and checks the types of its results.

    Attributes:
        guard: same as the argument.
    """

    def __init__(self, layout: TierLayout, guard: Guard) -> None:
        self._layout, self.guard = layout, guard

    @property
    def reader(self) -> TierLayout:
        """The layout to read segments with: this object, or the called layout itself if it comes with stratalog."""
        return self._layout if self.guard.is_bundled else self

    @property
    def takes_uncompressed(self) -> bool:
        """Return the checked result of ``TierLayout.takes_uncompressed``."""
        with self.guard.calling("takes_uncompressed"):
            takes_uncompressed = self._layout.takes_uncompressed
        return self.guard.of_type("takes_uncompressed", takes_uncompressed, bool)

    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        """Return the checked result of ``TierLayout.write``; the deadline of the call grows with the segment's size."""
        times = 1 + source.info.size_bytes // _STEP_BYTES
        entry = self.guard.call("write", lambda: self._layout.write(source, sink, section), times=times)
        return self.guard.of_type("write", entry, StoredSegment)

    def read(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        """Yield the pieces that ``TierLayout.read`` yields, after a check of their type."""
        for piece in self.guard.items("read", lambda: self._layout.read(segment, start, end, fetch)):
            with self.guard.calling("read"):
                view = memoryview(piece)  # raises if it is not a buffer
            yield view

    def read_index(self, segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
        """Return the checked result of ``TierLayout.read_index``."""
        with self.guard.calling("read_index"):
            data = self._layout.read_index(segment, kind, fetch)
        return None if data is None else self.guard.of_type("read_index", data, bytes)

    def read_arrow(
        self, segment: StoredSegment, start: int, end: int, columns: Sequence[str] | None, fetch: RangeReader
    ) -> Iterator[pyarrow.RecordBatch] | None:
        """Return the batches of ``TierLayout.read_arrow``, after a check of their schema; None if it returns None."""
        with self.guard.calling("read_arrow"):
            batches = self._layout.read_arrow(segment, start, end, columns, fetch)
        return None if batches is None else self._check_batches(batches, columns)

    def _check_batches(
        self, batches: Iterator[pyarrow.RecordBatch], columns: Sequence[str] | None
    ) -> Iterator[pyarrow.RecordBatch]:
        schema = arrow_schema(columns)
        with self.guard.calling("read_arrow"):
            for batch in batches:
                if batch.schema != schema:
                    self.guard.refuse("read_arrow", f"returned the columns {batch.schema.names}, not {schema.names}")
                yield batch

    def check(self, segment: StoredSegment, fetch: RangeReader) -> None:
        """Call ``TierLayout.check`` with a deadline."""
        result = self.guard.call("check", lambda: self._layout.check(segment, fetch))
        self.guard.check_none("check", result)

    def authenticator(self) -> ManifestAuthenticator | None:
        """Return the authenticator of the layout with checks of its results; None if the layout has none."""
        with self.guard.calling("authenticator"):
            authenticator = self._layout.authenticator()
        if authenticator is None:
            return None
        self.guard.check_type("authenticator", authenticator, ManifestAuthenticator)
        self.guard.check_type("authenticator", authenticator.unauthenticated, Unauthenticated)
        return guarded_part(authenticator, ManifestAuthenticator, self.guard)

    def rewrapped(self, segment: StoredSegment) -> StoredSegment:
        """Return ``TierLayout.rewrapped`` of a segment; raise PluginError if another field than ``extra`` differs."""
        renewed = self.guard.call("rewrapped", lambda: self._layout.rewrapped(segment))
        self.guard.check_type("rewrapped", renewed, StoredSegment)
        if renewed is not segment and (
            renewed.keys != segment.keys or dataclasses.replace(renewed, extra=segment.extra) != segment
        ):
            self.guard.refuse("rewrapped", "changed more than the layout's own notes about a segment")
        return renewed

    def discover(self, objects: Sequence[ObjectInfo], fetch: RangeReader) -> Iterator[StoredSegment]:
        """Yield the checked results of ``TierLayout.discover``."""
        for entry in self.guard.items("discover", lambda: self._layout.discover(objects, fetch)):
            yield self.guard.of_type("discover", entry, StoredSegment)


class LayoutTable:
    """Table of the layouts by name, as in topic settings, and by label (``name@version``), as in manifests.

    The methods raise UnknownComponentError if no installed layout has the name or label, and the errors of ``opener``
    if the layout cannot be opened. Thread-safe.

    Args:
        opener: opens a layout; called for a name until it succeeds once.
    """

    def __init__(self, catalogue: Catalogue[TierLayout], opener: Callable[[Provider[TierLayout]], TierLayout]) -> None:
        self._catalogue, self._opener = catalogue, opener
        self._by_name: dict[str, GuardedLayout] = {}  # under _lock
        self._lock = threading.Lock()

    def names(self) -> tuple[str, ...]:
        """Return the names of all installed layouts, sorted."""
        return tuple(offer.provider.name for offer in self._catalogue)

    def label(self, name: str) -> str:
        """Return the label ``name@version`` of segments that the layout called ``name`` writes."""
        return self._catalogue.by_name(name).label

    def by_name(self, name: str) -> GuardedLayout:
        """Return the layout called ``name``."""
        return self._open(self._catalogue.by_name(name))

    def by_label(self, label: str) -> GuardedLayout:
        """Return the layout that reads segments with this ``label`` (``name@version``)."""
        return self._open(self._catalogue.by_label(label))

    def all(self) -> tuple[GuardedLayout, ...]:
        """Return all installed layouts, except layouts that cannot be opened with the current settings."""
        layouts = list[GuardedLayout]()
        for offer in self._catalogue:
            with contextlib.suppress(ConfigError, PluginError):
                layouts.append(self._open(offer.provider))
        return tuple(layouts)

    def _open(self, provider: Provider[TierLayout]) -> GuardedLayout:
        with self._lock:
            if provider.name not in self._by_name:
                self._by_name[provider.name] = GuardedLayout(self._opener(provider), self._catalogue.guard(provider))
            return self._by_name[provider.name]
