"""Plugins for engines. Each breaks one rule."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from contract_mutants import ContractMutants, altered, result_of
from stratalog.errors import CorruptIndexError, CorruptObjectError, StorageError
from stratalog.spi import (
    Action,
    Buffer,
    CleanupPolicy,
    Codec,
    DeletePrefix,
    IndexFormat,
    LogSummary,
    OpenContext,
    Provider,
    RangeReader,
    SegmentStore,
    StoredSegment,
    TierLayout,
    TopicConfig,
    hookimpl,
)
from stratalog.testing.contracts import EngineContract, EngineSetup
from stratalog_compaction.delete import DeletePolicy
from stratalog_formats.indexes.offset import OffsetIndex, OffsetReader
from stratalog_formats.layouts.plain import PlainLayout
from stratalog_local.store import LocalLogFiles, LocalStore

_DAY_MS: Final = 86_400_000
_PIECE_BYTES: Final = 1 << 20
_CHECKED: Final = 40  # calls of a codec, about as many as the appends of the test make


class Plugin:
    """Plugin that offers one component of one kind under the name ``mine``.

    Args:
        kind: kind of the component, such as ``codecs``.
        opened: opens the component.
        version: version of the provider.
    """

    def __init__(self, kind: str, opened: Callable[[OpenContext], Any], version: int = 1) -> None:
        self.kind, self.opened, self.version = kind, opened, version

    def _offer(self, kind: str) -> Sequence[Provider[Any]]:
        schemes = frozenset({"mine"}) if kind == "segment_stores" else frozenset[str]()
        provider = Provider[Any](name="mine", open=self.opened, version=self.version, schemes=schemes)
        return [provider] if kind == self.kind else []

    @hookimpl
    def stratalog_codecs(self) -> Sequence[Provider[Codec]]:
        """Offer the codec."""
        return self._offer("codecs")

    @hookimpl
    def stratalog_tier_layouts(self) -> Sequence[Provider[TierLayout]]:
        """Offer the layout."""
        return self._offer("tier_layouts")

    @hookimpl
    def stratalog_cleanup_policies(self) -> Sequence[Provider[CleanupPolicy]]:
        """Offer the policy."""
        return self._offer("cleanup_policies")

    @hookimpl
    def stratalog_index_formats(self) -> Sequence[Provider[IndexFormat[Any]]]:
        """Offer the index format."""
        return self._offer("index_formats")

    @hookimpl
    def stratalog_segment_stores(self) -> Sequence[Provider[SegmentStore]]:
        """Offer the store."""
        return self._offer("segment_stores")


_TOPICS: Final = {
    "codecs": {"compression.type": "mine"},
    "tier_layouts": {"tier.layout": "mine"},
    "cleanup_policies": {"cleanup.policy": "mine"},
    "index_formats": {"index.formats": "mine,time,transaction"},
    "segment_stores": {},
}


def _setup(kind: str, opened: Callable[[OpenContext], Any]) -> EngineSetup:
    scheme = "mine" if kind == "segment_stores" else ""
    return EngineSetup(plugins=[Plugin(kind, opened)], topic=_TOPICS[kind], scheme=scheme)


def _made(kind: str, opened: Callable[[OpenContext], Any]) -> Callable[[Path], EngineSetup]:
    return lambda _: _setup(kind, opened)


def _upgraded(setup: EngineSetup) -> EngineSetup:
    """Return the setup with version 2 of the ``Upgraded`` plugin."""
    plugins = [Upgraded(2) if isinstance(plugin, Upgraded) else plugin for plugin in setup.plugins]
    return dataclasses.replace(setup, plugins=plugins)


class Deflate(Codec):
    """Codec that compresses with zlib."""

    id = 7
    levels = None

    def __init__(self) -> None:
        self.calls = 0

    def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
        """Compress."""
        del level, magic
        return zlib.compress(data)

    def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        """Decompress."""
        del limit_bytes, magic
        self.calls += 1
        return memoryview(zlib.decompress(data))


class DegradingCodec(Deflate):
    """Codec that decompresses the first batches correctly, and later batches to wrong bytes."""

    def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        """Decompress."""
        decompressed = bytearray(super().decompress(data, limit_bytes=limit_bytes, magic=magic))
        if self.calls > _CHECKED:
            decompressed[-2] ^= 1
        return memoryview(decompressed)


class MemoryCodec(Deflate):
    """Codec that keeps the contents in memory, and stores only their number."""

    def __init__(self) -> None:
        super().__init__()
        self._contents = list[bytes]()

    def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
        """Keep the contents."""
        del level, magic
        self._contents.append(bytes(data))
        return b"%d" % (len(self._contents) - 1)

    def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        """Return the contents."""
        del limit_bytes, magic
        number = int(bytes(data))
        return memoryview(self._contents[number] if number < len(self._contents) else bytes(10))


def _layout(**changes: Any) -> Callable[[OpenContext], TierLayout]:
    return lambda _: altered(PlainLayout(_PIECE_BYTES), **changes)


def _refuses(*_: Any) -> StoredSegment:
    raise StorageError("the layout stores nothing")


def _own_segments(context: OpenContext) -> TierLayout:
    """Return a layout that reads only segments that it wrote itself."""
    del context
    written_hashes = set[str]()

    def write(self: Any, *args: Any) -> StoredSegment:
        entry = PlainLayout.write(self, *args)
        written_hashes.add(entry.sha256)
        return entry

    def read(self: Any, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        if segment.sha256 not in written_hashes:
            raise CorruptObjectError("another layout wrote the segment", segment.log_key)
        return PlainLayout.read(self, segment, start, end, fetch)

    return _layout(write=write, read=read)(None)  # type: ignore[arg-type] # the context is not used


class Upgraded(Plugin):
    """A plugin whose version 2 does not read the segments of version 1."""

    def __init__(self, version: int) -> None:
        def read(layout: Any, segment: StoredSegment, *args: Any) -> Iterator[memoryview]:
            if segment.layout == "mine@1" and version != 1:
                raise CorruptObjectError("another version wrote the segment", segment.log_key)
            return PlainLayout.read(layout, segment, *args)

        super().__init__("tier_layouts", _layout(read=read), version)


class KeepsAll(DeletePolicy):
    """Policy that plans no deletion on local disk."""

    def local_plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Return no action."""
        del log, config, now_ms
        return ()


class DeletesOld(DeletePolicy):
    """Policy that deletes the first segment once it is half a day old."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        """Delete the first segment if it is more than half a day old."""
        del config
        first = log.segments[0]
        is_old = not first.is_active and now_ms - first.age_from_ms > _DAY_MS // 2
        return [DeletePrefix(first.base_offset, first.end_offset, "it is old")] if is_old else ()


def _catches_up() -> Callable[[OpenContext], CleanupPolicy]:
    """Return an opener of policies that delete the first segment if the last plan is more than half a day old."""
    planned_ms = list[int]()

    def opened(context: OpenContext) -> CleanupPolicy:
        del context
        is_first = [True]

        def plan(self: Any, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
            was_absent = is_first[0] and bool(planned_ms) and now_ms - planned_ms[-1] > _DAY_MS // 2
            planned_ms.append(now_ms)
            if was_absent and not log.segments[0].is_active:
                is_first[0] = False
                first = log.segments[0]
                return [DeletePrefix(first.base_offset, first.end_offset, "the policy was not installed")]
            is_first[0] = False
            return DeletePolicy.plan(self, log, config, now_ms)

        return altered(DeletePolicy(), plan=plan)  # type: ignore[no-any-return] # the same class

    return opened


def _never_sound(self: OffsetReader, end_offset: int, size_bytes: int) -> None:
    del self, end_offset, size_bytes
    raise CorruptIndexError("never sound", "", 0)


def _picky(context: OpenContext) -> IndexFormat[Any]:
    del context
    reader = result_of(OffsetIndex, "reader", lambda index_reader: altered(index_reader, check=_never_sound))
    return altered(OffsetIndex(), suffix=".mine", reader=reader)  # type: ignore[no-any-return] # the same class


def _store(files: Callable[[Any], Any] = lambda files: files, **changes: Any) -> Callable[[OpenContext], Any]:
    """Return an opener of stores with changed methods. ``files`` changes the logs that a store opens."""

    def opened(context: OpenContext) -> Any:
        location = context.location.removeprefix("mine://")
        store = LocalStore(dataclasses.replace(context, location=location))
        return altered(store, open_log=result_of(LocalStore, "open_log", files), **changes)

    return opened


def _without_a_sync(files: Any) -> Any:
    change = result_of(LocalLogFiles, "open_segment", lambda segment: altered(segment, sync=lambda _: None))
    return altered(files, open_segment=change)


def _without_synced_names(files: Any) -> Any:
    return altered(files, sync=lambda _: None)


def _cuts_after_a_crash(self: LocalStore) -> None:
    LocalStore.acquire(self)
    folder = Path(self.path())
    if not (folder / ".kafka_cleanshutdown").exists():
        for log in folder.glob("*-0"):
            max(log.glob("*.log")).unlink()


MUTANTS: Final = ContractMutants(
    contract=EngineContract,
    fixture="engine_setup",
    fixtures={"changed_setup": _upgraded},
    attributes={"test_an_engine_without_the_plugin_names_it": {"missing": "another plugin"}},
    sound=_made("codecs", lambda _: Deflate()),
    mutants={
        "test_appended_records_are_read": _made("codecs", lambda _: DegradingCodec()),
        "test_offloaded_records_are_read": _made("tier_layouts", _layout(write=_refuses)),
        "test_evicted_records_are_read": _made("cleanup_policies", lambda _: KeepsAll()),
        "test_records_are_read_from_the_tier_alone": _made("tier_layouts", _own_segments),
        "test_duties_delete_no_record": _made("cleanup_policies", lambda _: DeletesOld()),
        "test_a_verification_finds_nothing": _made("index_formats", _picky),
        "test_records_are_read_after_a_clean_stop": _made("codecs", lambda _: MemoryCodec()),
        "test_records_are_read_after_the_process_is_killed": _made(
            "segment_stores", _store(acquire=_cuts_after_a_crash)
        ),
        "test_durable_records_survive_a_power_loss": _made("segment_stores", _store(_without_a_sync)),
        "test_evicted_records_survive_a_power_loss": _made("segment_stores", _store(_without_synced_names)),
        "test_records_are_read_after_an_upgrade": lambda _: EngineSetup(
            plugins=[Upgraded(1)], topic=_TOPICS["tier_layouts"]
        ),
        "test_an_engine_without_the_plugin_loses_no_record": lambda _: _setup("cleanup_policies", _catches_up()),
        "test_an_engine_without_the_plugin_names_it": _made("codecs", lambda _: Deflate()),
    },
)
