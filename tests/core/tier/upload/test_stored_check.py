"""Uploaded bytes are compared before a root refers to them, even if a layout or a store claims that they are stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final, cast

import pytest

from sim_objects import ObjectFault, SimObjectStore
from stratalog.config.engine_settings import EngineConfig
from stratalog.config.topic import TopicConfig
from stratalog.errors import CorruptObjectError, PluginError, StorageError, StoreTimeoutError
from stratalog.model.batches import Buffer
from stratalog.model.segment_info import FileKind, ObjectSlice
from stratalog.spi.layouts import ObjectSink, RangeReader, SegmentSource, StoredSegment
from stratalog.spi.objects import ByteSource, BytesSource, Created, ObjectInfo
from stratalog.spi.providers import Section
from stratalog.testing.contracts import ObjectStoreContract, TierLayoutContract
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID, MemoryObjects, made_segment
from stratalog.testing.contracts.tier_layout import FILES, a_segment
from stratalog.tier.commit.replace_change import SegmentSwap
from stratalog.tier.manifest.root import ChangeKind
from stratalog.tier.store.object_keys import log_prefix, manifest_prefix, segments_prefix
from stratalog.tier.store.store import Verification
from stratalog.tier.tier_log import TierLog
from stratalog.tier.tier_publisher import TierPublisher
from stratalog.tier.upkeep.tier_repair import TierRepair
from tier_bed import PairLayout, TierBed, offload

PREFIX: Final = segments_prefix(log_prefix(LOG, TOPIC_ID))
PAIR: Final = TopicConfig(tier_layout="pair")


def flipped(data: Buffer) -> bytes:
    """Return the bytes with one flipped bit in their middle."""
    changed = bytearray(data)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)


class WrongLayout(PairLayout):
    """Layout that does one thing wrong, which ``lie`` names."""

    def __init__(self, lie: str) -> None:
        self.lie = lie

    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        data = b"".join(source.log.chunks(64))
        if self.lie == "stores three bytes":
            info = sink.put(BytesSource(data[:3]))
            return StoredSegment(source.info, "", {FileKind.LOG: ObjectSlice(info.key, 0, 3)}, _sha256(source))
        if self.lie == "stores a flipped bit":
            changed = SegmentSource(source.info, BytesSource(flipped(data)), source.files)
            return dataclasses.replace(super().write(changed, sink, section), sha256=_sha256(source))
        entry = super().write(source, sink, section)
        if self.lie == "claims another hash":
            return dataclasses.replace(entry, sha256="0" * 64)
        if self.lie == "forgets an index":
            return dataclasses.replace(entry, slices={FileKind.LOG: entry.slices[FileKind.LOG]})
        if self.lie == "notes what is no JSON":
            return dataclasses.replace(entry, extra={"codes": {1, 2}})
        if self.lie == "names an object of another":
            return dataclasses.replace(entry, extra={"objects": [f"{PREFIX}other"]})
        if self.lie == "returns nothing":
            return cast(StoredSegment, None)
        if self.lie == "raises":
            raise ZeroDivisionError("division by zero")
        return entry

    def read(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        for piece in super().read(segment, start, end, fetch):
            if self.lie == "reads a flipped bit":
                yield memoryview(flipped(piece))
            elif self.lie == "reads too little":
                yield piece[:-1]
            elif self.lie == "reads too much":
                yield memoryview(bytes(piece) + b"!")
            elif self.lie == "reads what is no bytes":
                yield cast(memoryview, str(piece))
            else:
                yield piece

    def read_index(self, segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
        data = super().read_index(segment, kind, fetch)
        if data and self.lie == "reads another index":
            return flipped(data)
        return None if self.lie == "reads no index" else data


class ReversedEntriesLayout(WrongLayout):
    """Layout that returns new entries in the wrong order when it rewraps keys."""

    def rewrapped(self, segment: StoredSegment) -> StoredSegment:
        if self.lie == "rewraps others' fields":
            return dataclasses.replace(segment, sha256="0" * 64)
        return dataclasses.replace(segment, extra={"key": "lost"})

    def read(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        if segment.extra.get("key") == "lost" and self.lie == "loses the key":
            raise CorruptObjectError("no key opens it", "key")
        return super().read(segment, start, end, fetch)


def _sha256(source: SegmentSource) -> str:
    return cast(Any, source.log).sha256 if hasattr(source.log, "sha256") else "1" * 64


class WrongStore(SimObjectStore):
    """Store that does one thing wrong (``lie``) with objects whose keys contain ``part``."""

    lie = ""
    part = "/segments/"

    def put_file(self, key: str, source: ByteSource, *, deadline_ns: int) -> ObjectInfo:
        if self.part not in key:
            return super().put_file(key, source, deadline_ns=deadline_ns)
        if self.lie == "takes half":
            super().put_file(key, BytesSource(next(source.chunks(3))), deadline_ns=deadline_ns)
            return ObjectInfo(key, source.size_bytes)
        data = b"".join(source.chunks(1 << 20))
        kept_data = {"keeps half": data[: len(data) // 2], "flips a bit": flipped(data), "keeps nothing": None}.get(
            self.lie, data
        )
        if kept_data is not None:
            super().put_file(key, BytesSource(kept_data), deadline_ns=deadline_ns)
        if self.lie == "returns nothing":
            return cast(ObjectInfo, None)
        return ObjectInfo("elsewhere" if self.lie == "names another key" else key, len(data))

    def create(self, key: str, data: Buffer, *, deadline_ns: int) -> Created:
        kept_data = flipped(data) if self.part in key and self.lie == "flips a bit" else data
        return super().create(key, kept_data, deadline_ns=deadline_ns)


def bed(layout: PairLayout | None = None, verify: str = "auto") -> TierBed:
    return TierBed(layout=layout or PairLayout(), config=EngineConfig(tier_verify=verify))


ALWAYS_FOUND: Final = (
    "claims another hash", "forgets an index", "notes what is no JSON", "names an object of another", "returns nothing",
    "raises",
)  # fmt: skip
READ_BACK: Final = (
    "stores three bytes", "stores a flipped bit", "reads a flipped bit", "reads too little", "reads too much",
    "reads what is no bytes", "reads another index", "reads no index",
)  # fmt: skip


@pytest.mark.parametrize("lie", [*ALWAYS_FOUND, *READ_BACK])
def test_a_layout_with_wrong_results_commits_nothing_and_is_named(lie: str) -> None:
    tested_bed = bed(WrongLayout(lie))
    log = tested_bed.open().log(LOG, TOPIC_ID)
    with pytest.raises(PluginError, match=r"tier layout 'pair' version 1 \(plugin testing\): (write|read)"):
        offload(log, 0, 10)
    assert (tested_bed.bucket.keys(PREFIX), log.view().version) == ([], 0)


@pytest.mark.parametrize("lie", ALWAYS_FOUND)
def test_claims_are_compared_though_nothing_is_read_back(lie: str) -> None:
    log = bed(WrongLayout(lie), "never").open().log(LOG, TOPIC_ID)
    with pytest.raises(PluginError):
        offload(log, 0, 10)
    assert log.view().version == 0


def test_the_error_of_a_layout_has_its_cause() -> None:
    with pytest.raises(PluginError, match="write raised ZeroDivisionError: division by zero") as caught:
        offload(bed(WrongLayout("raises")).open().log(LOG, TOPIC_ID), 0, 10)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    "lie", ["takes half", "keeps half", "flips a bit", "keeps nothing", "names another key", "returns nothing"]
)
def test_a_store_with_wrong_results_commits_nothing_and_is_named(lie: str) -> None:
    tested_bed = bed()
    store = WrongStore(tested_bed.bucket)
    store.lie = lie
    log = tested_bed.open(store).log(LOG, TOPIC_ID)
    with pytest.raises(StorageError) as caught:
        offload(log, 0, 10)
    assert "store" in str(caught.value)
    assert "tier layout" not in str(caught.value)
    assert (tested_bed.bucket.keys(PREFIX), log.view().version) == ([], 0)


def test_a_store_that_keeps_another_root_is_named_before_anything_relies_on_it() -> None:
    tested_bed = bed()
    store = WrongStore(tested_bed.bucket)
    store.lie, store.part = "flips a bit", manifest_prefix(log_prefix(LOG, TOPIC_ID))
    log = tested_bed.open(store).log(LOG, TOPIC_ID)
    with pytest.raises(PluginError, match=r"object store sim://.* create stored other bytes"):
        offload(log, 0, 10)
    assert log.view().version == 0


class Counting(SimObjectStore):
    """Store that counts the reads of segment objects."""

    reads = 0

    def read(self, key: str, start: int | None = None, end: int | None = None, *, deadline_ns: int) -> bytes:
        self.reads += "/segments/" in key
        return super().read(key, start, end, deadline_ns=deadline_ns)


@pytest.mark.parametrize(("verify", "expected"), [("auto", 6), ("first", 2), ("always", 6), ("never", 0)])
def test_the_setting_determines_the_number_of_segments_that_are_read_back(verify: str, expected: int) -> None:
    tested_bed = bed(verify=verify)
    store = Counting(tested_bed.bucket)
    assert len(offload(tested_bed.open(store).log(LOG, TOPIC_ID), 0, 10, 20, 30).committed) == 3
    assert store.reads == expected, "two objects of each segment that is read back"


def test_small_files_that_are_stored_next_to_each_other_are_read_back_with_one_request() -> None:
    tested_bed = bed(verify="always")
    store = Counting(tested_bed.bucket)
    source = made_segment(0, 10, files={kind: kind.encode() * 9 for kind in FileKind if kind is not FileKind.LOG})
    tested_bed.open(store).log(LOG, TOPIC_ID).offload(
        [source], layout="pair", leader_epoch=0, log_start=0, high_watermark=10
    )
    assert store.reads == 2, "one for the log and one for the small files"


def test_our_layouts_are_read_back_only_if_the_store_has_no_checksums() -> None:
    for mode, trusts_store, is_bundled, expected in (
        ("auto", True, True, False),
        ("auto", False, True, True),
        ("auto", True, False, True),
        ("first", True, True, True),
        ("never", False, False, False),
    ):
        verification = Verification(mode, is_bundled=True, trusts_store=trusts_store)
        assert verification.is_due("a@1", is_bundled=is_bundled) is expected


@pytest.mark.parametrize(("store", "layout"), [(False, True), (True, False), (False, False)])
def test_each_object_is_read_back_if_the_store_or_its_writer_is_a_strangers(store: bool, layout: bool) -> None:  # noqa: FBT001 - a parameter
    verification = Verification("auto", is_bundled=store, trusts_store=store)
    verification.record_success("a@1")
    assert verification.is_due("a@1", is_bundled=layout)


def test_the_first_of_each_kind_is_read_back_until_one_has_passed() -> None:
    verification = Verification("first", is_bundled=False, trusts_store=False)
    assert verification.is_due("a@1", is_bundled=False)
    assert verification.is_due("a@1", is_bundled=False), "it has not passed yet"
    verification.record_success("a@1")
    assert not verification.is_due("a@1", is_bundled=False)
    assert verification.is_due("b@1", is_bundled=False)


def test_a_store_that_fails_while_a_segment_is_read_back_is_asked_again_by_the_next_offload() -> None:
    tested_bed = bed()
    tested_bed.config = dataclasses.replace(tested_bed.config, store_retries=0)
    store = Counting(tested_bed.bucket)
    log = tested_bed.open(store).log(LOG, TOPIC_ID)
    log.refresh()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            store,
            "faults",
            lambda request: (
                ObjectFault.REPLY_LOST if request.kind == "read" and "/segments/" in request.key else ObjectFault.NONE
            ),
        )
        with pytest.raises(StoreTimeoutError):
            offload(log, 0, 10)
        assert log.view().version == 0
    assert len(offload(log, 0, 10).committed) == 1


# --- all operations that write segments ------------------------------------------------------------------------------


def committed(tested: TierBed) -> TierLog:
    """Return a log of three correct segments."""
    log = tested.open().log(LOG, TOPIC_ID)
    offload(log, 0, 10, 20, 30)
    return log


@pytest.mark.parametrize("lie", ["claims another hash", "stores a flipped bit"])
def test_compaction_and_jobs_replace_nothing_by_what_was_not_kept(lie: str) -> None:
    layout = WrongLayout("")
    tested_bed = bed(layout, "always")
    log = committed(tested_bed)
    layout.lie, before = lie, tested_bed.bucket.keys(PREFIX)
    with pytest.raises(PluginError):
        TierPublisher(log, 0, PAIR).upload(made_segment(0, 10, data=b"compacted"))
    assert tested_bed.bucket.keys(PREFIX) == before


def test_a_sound_replacement_takes_place() -> None:
    log = committed(bed(verify="always"))
    root = log.root
    assert root is not None
    publisher = TierPublisher(log, 0, PAIR)
    segment_swap = SegmentSwap((root.entries[0],), publisher.upload(made_segment(0, 10, data=b"compacted")))
    assert publisher.swap([segment_swap], ChangeKind.COMPACT, "a test") == (segment_swap,)


@pytest.mark.parametrize(
    ("lie", "text"), [("rewraps others' fields", "rewrapped changed more"), ("loses the key", "cannot read it")]
)
def test_an_entry_that_cannot_be_read_replaces_none(lie: str, text: str) -> None:
    tested_bed = bed(ReversedEntriesLayout(""))
    log = committed(tested_bed)
    version = log.view().version
    cast(ReversedEntriesLayout, tested_bed.layout).lie = lie
    with pytest.raises(PluginError, match=text):
        log.rewrap()
    assert log.view().version == version


def test_entries_that_can_be_read_are_rewrapped() -> None:
    log = committed(bed(ReversedEntriesLayout("")))
    assert log.rewrap().rewrapped == 3


def test_an_object_that_is_put_back_wrong_is_no_repair() -> None:
    layout = WrongLayout("")
    tested_bed = bed(layout, "always")
    log = committed(tested_bed)
    root = log.root
    assert root is not None
    layout.lie = "stores a flipped bit"
    with pytest.raises(PluginError, match="returned other bytes"):
        TierRepair(log).restore(root.entries[0], made_segment(0, 10))


class CountingLayout(PairLayout):
    """Layout whose results of single writes, numbered from 0, have other bytes or another entry than the rest."""

    def __init__(self) -> None:
        self.writes, self.in_objects, self.in_entries = 0, dict[int, bytes](), dict[int, object]()

    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        number, self.writes = self.writes, self.writes + 1
        numbered = sink.put(BytesSource(self.in_objects.get(number, b"same")), "no")
        entry = super().write(source, sink, section)
        return dataclasses.replace(entry, extra={"no": self.in_entries.get(number, 0), "objects": [numbered.key]})


def test_an_object_is_put_back_only_with_the_bytes_that_were_compared_with_the_entry() -> None:
    layout = CountingLayout()
    tested_bed = bed(layout)
    log = committed(tested_bed)
    root = log.root
    assert root is not None
    (entry, *_), objects_before = root.entries, dict(tested_bed.bucket.objects)
    layout.in_objects[layout.writes + 1] = b"else"
    assert not TierRepair(log).restore(entry, made_segment(0, 10))
    assert tested_bed.bucket.objects == objects_before
    layout.in_entries[layout.writes + 1] = 1
    for key in entry.keys:
        tested_bed.bucket.objects.pop(key)
    assert TierRepair(log).restore(entry, made_segment(0, 10))
    assert tested_bed.bucket.objects == objects_before


# --- the contract tests detect the same faults -------------------------------------------------------------------------


class Rules(TierLayoutContract):
    """Instance of the layout contract, whose rules the test calls one by one."""


def broken(layout: PairLayout) -> set[str]:
    """Return the rules of the contract that a layout breaks."""
    rules, broken_rules = Rules(), set[str]()

    def check(name: str, *arguments: object) -> None:
        try:
            getattr(rules, name)(*arguments)
        except (AssertionError, StorageError, ZeroDivisionError, AttributeError, TypeError):
            broken_rules.add(name)

    for name in ("test_a_log_of_many_pieces_is_read_back", "test_the_hash_is_that_of_the_log_that_was_given"):
        check(name, layout, MemoryObjects())
    objects = MemoryObjects()
    try:
        entry = layout.write(a_segment(), objects, None)
    except ZeroDivisionError:
        return {*broken_rules, "write"}
    check("test_the_whole_log_is_read_back", layout, entry, objects)
    for kind in (kind for kind, data in FILES.items() if data):
        check("test_a_small_file_is_read_back", layout, entry, objects, kind)
    check("test_the_entry_says_what_was_stored", entry, objects)
    check("test_the_entry_survives_json", entry)
    return broken_rules


@pytest.mark.parametrize("lie", [*ALWAYS_FOUND, *READ_BACK])
@pytest.mark.long
def test_the_contract_of_layouts_refuses_each_wrong_layout(lie: str) -> None:
    assert broken(PairLayout()) == set()
    assert broken(WrongLayout(lie))


@pytest.mark.parametrize(
    "lie", ["takes half", "keeps half", "flips a bit", "keeps nothing", "names another key", "returns nothing"]
)
@pytest.mark.long
def test_the_contract_of_stores_refuses_each_wrong_store(lie: str) -> None:
    rules, store = ObjectStoreContract(), WrongStore()
    rules.test_a_large_object_is_kept_whole(WrongStore(), 1 << 62)
    store.lie, store.part = lie, ""
    with pytest.raises((AssertionError, StorageError, AttributeError)):
        rules.test_a_large_object_is_kept_whole(store, 1 << 62)
