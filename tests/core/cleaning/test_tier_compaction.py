"""Compaction of segments in the tier."""

from __future__ import annotations

import base64
import gc
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

import stratalog
from inside import log_state
from replication import replicate
from sim_objects import ObjectFault, SimRequest
from sim_tier import URI
from stratalog import Engine, Record
from stratalog.cleaning.compact.tier_range import CommittedSegment
from stratalog.cli.app import run
from stratalog.errors import CorruptionError, FencedEpochError, StoreTimeoutError
from stratalog.log.log import Log
from stratalog.model.events import SegmentEvicted
from stratalog.model.segment_info import FileKind
from stratalog.spi.layouts import StoredSegment
from stratalog.testing.faults import FaultyVfs
from stratalog.tier.manifest import entry_tree
from stratalog.tier.read.remote_segment import RemoteSegment
from stratalog.tier.upkeep.collect import GRACE_MS
from tiered_logs import CONFIG, TieredLogs, append, committed, filled, letters, remote_of, two_replicas

KEY = base64.b64encode(bytes(32)).decode()


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[TieredLogs]:
    tiered_logs = TieredLogs(tmp_path)
    yield tiered_logs
    tiered_logs.close()


@pytest.fixture
def engine(logs: TieredLogs) -> Engine:
    return logs.engine()


def objects(logs: TieredLogs) -> list[str]:
    return [key for key in sorted(logs.sim.bucket.objects) if "/segments/" in key]


def test_the_newest_record_of_each_key_stays_on_disk_and_in_the_tier_alone(logs: TieredLogs, engine: Engine) -> None:
    log = filled(engine, "abc", "abd", "ae")
    engine.offload()
    (result,) = engine.run_cleaner()
    assert (result.part, result.start, result.dirty_start, result.end) == ("tier", 0, 0, 8)
    assert (result.error, result.stopped) == (None, "")
    assert committed(log) == [(0, 8)]
    assert letters(log) == "2c 4b 5d 6a 7e"
    assert remote_of(log).first_dirty_offset == 8
    assert engine.run_cleaner() == ()
    with stratalog.open_reader(URI, plugins=[logs.sim], env=logs.env) as reader:
        assert letters(reader.log("t", 0)) == "2c 4b 5d 6a 7e"
        assert reader.log("t", 0).offsets().log_end == 8


@pytest.mark.parametrize("layout", ["single", "plain", "chunked", "encrypted", "parquet"])
def test_every_layout(tmp_path: Path, layout: str) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'active = "k"\n[keys]\nk = "{KEY}"\n', encoding="utf-8")
    keys.chmod(0o600)
    plugins = {"encrypted": {"keys.file": str(keys), "over": "chunked"}, "chunked": {"chunk.bytes": 4096}}
    logs = TieredLogs(tmp_path, settings={"plugins": plugins})
    engine = logs.engine()
    engine.create_topic(
        "t", config={**CONFIG, "tier.layout": layout, "segment.bytes": 6_000, "index.interval.bytes": 200}
    )
    log = engine.log("t", 0)
    for number in range(400):
        log.append([Record(key=b"k%d" % (number * 7 % 150), value=b"%d" % number * 20, timestamp_ms=number)])
    log.roll()
    engine.offload()
    before = list(log.records())
    newest = {record.key: record.offset for record in before}
    (result,) = engine.run_cleaner()
    after = [record for record in before if newest[record.key] == record.offset]
    assert (result.error, len(after)) == (None, 150)
    assert list(log.records()) == after
    for record in after[::17]:
        assert next(log.records(record.offset)) == record
        assert log.offset_for_timestamp(record.timestamp_ms) == record.offset
    last = list(remote_of(log).segments)[-1]
    assert isinstance(last, RemoteSegment)
    assert {FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.LEADER_EPOCHS, FileKind.SNAPSHOT} <= set(
        last.entry.slices
    )
    logs.close()
    attached = logs.engine("elsewhere", attach=True)
    assert list(attached.log("t", 0).records()) == after
    assert attached.log("t", 0).append([Record(key=b"x", value=b"y")]).base_offset == 400
    logs.close()


def test_a_round_reads_local_copies_which_leave_before_the_commit(logs: TieredLogs, engine: Engine) -> None:
    log = filled(engine, "abc", "abd", "ae", "x")
    engine.offload()
    assert log.offsets().local_log_start == 0
    local_starts = list[int]()

    def before(request: SimRequest) -> None:
        if request.kind == "create":
            local_starts.append(log.offsets().local_log_start)

    logs.sim.store.before = before
    (result,) = engine.run_cleaner()
    assert (result.traffic.downloaded_bytes, local_starts) == (0, [9])
    assert result.traffic.uploaded_bytes == remote_of(log).segments[0].size_bytes
    assert letters(log) == "2c 4b 5d 6a 7e 8x"
    append(log, "ab")
    log.roll()
    engine.offload()
    (result,) = engine.run_cleaner()
    assert 0 < result.traffic.downloaded_bytes < 2 * result.stats.bytes_read
    assert letters(log) == "2c 5d 7e 8x 9a 10b"


def test_records_only_on_local_disk_wait_and_shadow_nothing_in_the_tier(engine: Engine) -> None:
    """The tier alone is a complete log.

    An engine that attaches after the local disk is lost finds the newest values in the tier.
    """
    log = filled(engine, "abc", "b")
    engine.offload()
    append(log, "aA")
    log.roll()
    assert [(result.part, result.end) for result in engine.run_cleaner()] == [("tier", 4)]
    assert letters(log) == "0a 2c 3b 4a 5A"
    waiting = next(plan for plan in engine.plan_cleaner() if plan.part == "local")
    assert (waiting.rewrite, waiting.reason) == (None, "being offloaded to the tier, where it is compacted")
    engine.offload()
    engine.run_cleaner()
    assert letters(log) == "2c 3b 5A"


def test_tombstones_are_dropped_from_both_parts_in_time(logs: TieredLogs, engine: Engine) -> None:
    log = filled(engine, "ab", "A")
    engine.offload()
    engine.run_cleaner()
    assert letters(log) == "1b 2A"
    logs.clock.advance_ms(10_001)
    append(log, "c")
    log.roll()
    engine.offload()
    engine.run_cleaner()
    assert letters(log) == "1b 3c"


def test_a_segment_that_loses_nothing_is_not_sent_again(logs: TieredLogs, engine: Engine) -> None:
    log = filled(engine, "ab", "cd", "c", segment_bytes=150)
    engine.offload()
    object_key = objects(logs)[0]
    engine.run_cleaner()
    assert letters(log) == "0a 1b 3d 4c"
    assert object_key in objects(logs)
    assert isinstance(remote_of(log).segments[0], RemoteSegment)
    assert remote_of(log).segments[0].label == object_key


def test_history_and_readers_under_way_continue(logs: TieredLogs, engine: Engine) -> None:
    log = filled(engine, "abc", "abd", "ae")
    engine.offload()
    version, moment = remote_of(log).version, datetime.fromtimestamp(logs.clock.now_ms() / 1000, UTC)
    logs.clock.advance_ms(1_000)
    with stratalog.open_reader(URI, plugins=[logs.sim], env=logs.env) as reader:
        following = reader.log("t", 0)
        under_way = following.records()
        offsets = [next(under_way).offset]
        engine.run_cleaner()
        offsets += [record.offset for record in under_way]
        assert offsets == [0, 1, 2, 3, 4, 5, 6, 7]
        reader.refresh()
        assert letters(following) == "2c 4b 5d 6a 7e"
    for as_of in (version, moment):
        with stratalog.open_reader(URI, plugins=[logs.sim], env=logs.env, as_of=as_of) as reader:
            assert letters(reader.log("t", 0)) == "0a 1b 2c 3a 4b 5d 6a 7e"
    before = objects(logs)
    logs.clock.advance_ms(GRACE_MS + 1)
    assert engine.collect().objects == 3
    assert len(before) - len(objects(logs)) == 3
    assert letters(log) == "2c 4b 5d 6a 7e"


@pytest.mark.parametrize("reader", ["records", "follow"])
def test_reads_in_progress_continue_after_the_objects_of_their_segments_were_collected(
    tmp_path: Path, reader: str
) -> None:
    logs = TieredLogs(tmp_path, settings={"limits.chunk.cache.bytes": 0})
    engine = logs.engine()
    log = filled(engine, "abc", "abd", "ae", local_retention_bytes=0)
    engine.offload()
    engine.apply_retention()
    with stratalog.open_reader(URI, plugins=[logs.sim], env=logs.env) as outside:
        in_progress = log.records() if reader == "records" else outside.topic("t").follow(timeout_ms=0)
        assert next(in_progress).offset == 0
        logs.clock.advance_ms(1_000)
        engine.run_cleaner()
        logs.clock.advance_ms(GRACE_MS + 1)
        assert engine.collect().objects == 3
        assert [record.offset for record in in_progress] == [1, 2, 4, 5, 6, 7]
    logs.close()


def test_transactions_over_segments(logs: TieredLogs, engine: Engine) -> None:
    """Aborted data is dropped although its marker is in a later segment. Committed data and producer state stay."""
    log = filled(engine)
    for name, commits in (("one", True), ("two", False)):
        producer = engine.producer(transactional_id=name)
        for _ in range(2):
            producer.begin_transaction()
            producer.send("t", partition=0, key=name.encode(), value=b"old")
            producer.flush()
            log.roll()
            if commits:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        producer.close()
    log.roll()
    visible = [(record.offset, record.key) for record in log.records(isolation="read_committed")]
    engine.offload([log.name])
    producers = log.producers()
    (result,) = engine.run_cleaner([log.name])
    assert result.error is None
    assert {record.key for record in log.records()} == {b"one"}
    assert [(record.offset, record.key) for record in log.records(isolation="read_committed")] == visible[-1:]
    logs.close()
    attached = logs.engine("elsewhere", attach=True).log("t", 0)
    assert [(state.producer_id, state.producer_epoch) for state in attached.producers()] == [
        (state.producer_id, state.producer_epoch) for state in producers
    ]


def test_a_transaction_outdates_nothing_in_the_tier_before_its_end_is_there_too(
    logs: TieredLogs, engine: Engine
) -> None:
    """A value in a transaction replaces an older value in the tier only when the marker is in the tier too.

    Otherwise, an engine that attaches after the local disk is lost would abort the transaction and find neither value.
    """
    log = filled(engine, "ab", "a")
    with engine.producer(transactional_id="p") as producer:
        producer.begin_transaction()
        producer.send("t", partition=0, key=b"a", value=b"in a transaction")
        producer.flush()
        log.roll()
        producer.commit_transaction()
    engine.offload([log.name])
    assert remote_of(log).end_offset == 4
    (result,) = engine.run_cleaner([log.name])
    assert (result.error, letters(log)) == (None, "1b 2a 3a")
    assert engine.run_cleaner([log.name]) == ()
    assert [plan.reason for plan in engine.plan_cleaner([log.name]) if plan.part == "tier"] == [
        "the end of a transaction from 3 is not in the tier yet"
    ]
    with stratalog.open_reader(URI, plugins=[logs.sim], env=logs.env) as reader:
        alone = reader.log("t", 0).records(isolation="read_committed")
        assert [(record.offset, record.key) for record in alone] == [(1, b"b"), (2, b"a")]
    log.roll()
    engine.offload([log.name])
    (result,) = engine.run_cleaner([log.name])
    assert (result.error, letters(log)) == (None, "1b 3a")


def test_the_loser_of_a_take_over_stops_and_leaves_orphans_that_are_collected(logs: TieredLogs, engine: Engine) -> None:
    log = filled(engine, "abc", "abd")
    engine.offload()
    winners = list[Engine]()

    def before(request: SimRequest) -> None:
        if request.kind == "put_file" and not winners:
            winners.append(logs.engine("elsewhere", attach=True))

    logs.sim.store.before = before
    object_keys = objects(logs)
    (result,) = engine.run_cleaner()
    assert isinstance(result.error, FencedEpochError)
    with pytest.raises(FencedEpochError):
        append(log, "x")
    (winner,) = winners
    assert letters(winner.log("t", 0)) == "0a 1b 2c 3a 4b 5d"
    assert len(objects(logs)) == len(object_keys) + 1
    logs.clock.advance_ms(GRACE_MS + 1)
    assert winner.collect().orphans == 1
    assert objects(logs) == object_keys
    winner.run_cleaner()
    assert letters(winner.log("t", 0)) == "2c 3a 4b 5d"


def test_retention_meanwhile_wins(logs: TieredLogs, engine: Engine) -> None:
    """Segments that expire during a round stay deleted, also their rewritten copies. The rest is committed."""
    log = filled(engine, "abc", "abd", "ae", "bb", segment_bytes=160, cleanup_policy="compact,delete", retention_ms=-1)
    engine.offload()
    put_keys = list[str]()

    def before(request: SimRequest) -> None:
        if request.kind == "put_file" and not put_keys:
            put_keys.append(request.key)
            log.maintenance.raise_log_start(3)
            engine.apply_retention()

    logs.sim.store.before = before
    (result,) = engine.run_cleaner()
    assert (result.error, result.stopped) == (None, "")
    assert letters(log) == "5d 6a 7e 9b"
    assert committed(log)[0][0] == 3
    assert put_keys[0] not in objects(logs)
    with stratalog.open_reader(URI, plugins=[logs.sim], env=logs.env) as reader:
        assert letters(reader.log("t", 0)) == "5d 6a 7e 9b"


def test_an_offload_meanwhile_is_built_on(logs: TieredLogs, engine: Engine) -> None:
    log = filled(engine, "abc", "abd")
    engine.offload()
    put_keys = list[str]()

    def before(request: SimRequest) -> None:
        if request.kind == "put_file" and not put_keys:
            put_keys.append(request.key)
            append(log, "a")
            log.roll()
            engine.offload()

    logs.sim.store.before = before
    engine.run_cleaner()
    assert committed(log) == [(0, 7)]
    assert letters(log) == "2c 4b 5d 6a"


def test_a_topic_that_is_deleted_meanwhile_stays_deleted(logs: TieredLogs, engine: Engine) -> None:
    filled(engine, "abc", "abd")
    engine.offload()
    put_keys = list[str]()

    def before(request: SimRequest) -> None:
        if request.kind == "put_file" and not put_keys:
            put_keys.append(request.key)
            engine.delete_topic("t")

    logs.sim.store.before = before
    (result,) = engine.run_cleaner()
    assert result.stopped
    logs.clock.advance_ms(GRACE_MS + 1)
    engine.collect()
    logs.clock.advance_ms(GRACE_MS + 1)
    engine.collect()
    assert [key for key in logs.sim.bucket.objects if not key.startswith(".")] == []


def test_the_local_copies_of_a_topic_that_leaves_the_tier_meanwhile_stay(logs: TieredLogs, engine: Engine) -> None:
    """The round once evicted the copies although no tier had their records any more."""
    log = filled(engine, "abc", "abd", "ae")
    engine.offload()
    put_keys = list[str]()

    def before(request: SimRequest) -> None:
        if request.kind == "put_file" and not put_keys:
            put_keys.append(request.key)
            engine.alter_topic("t", {"remote.storage.enable": False, "remote.log.delete.on.disable": True})

    logs.sim.store.before = before
    results = engine.run_cleaner()
    assert [result.part for result in results] == ["tier", "local"]
    assert letters(log) == "2c 4b 5d 6a 7e"


@pytest.mark.parametrize("is_tiered", [False, True], ids=["local", "tier"])
def test_a_new_policy_compacts_what_rounds_of_other_policies_kept(
    logs: TieredLogs,
    engine: Engine,
    is_tiered: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """The tombstone once left the log before the older record of its key, which was then the latest one."""
    log = filled(engine, "ab", "A", cleanup_policy="ttl", ttl_ms=1 << 40, remote_storage_enable=is_tiered)
    if is_tiered:
        engine.offload()
    assert [result.end for result in engine.run_cleaner()] == [3]
    engine.alter_topic("t", {"cleanup.policy": "compact"})
    for keys in "xyz":
        append(log, keys)
        log.roll()
        if is_tiered:
            engine.offload()
        engine.run_cleaner()
        logs.clock.advance_ms(20_000)
    assert letters(log) == "1b 3x 4y 5z"


def test_a_new_policy_ends_a_round_of_the_other_policies(logs: TieredLogs, engine: Engine) -> None:
    log = filled(engine, "ab", "A", cleanup_policy="ttl", ttl_ms=1 << 40)
    engine.offload()
    put_keys = list[str]()

    def before(request: SimRequest) -> None:
        if request.kind == "put_file" and not put_keys:
            put_keys.append(request.key)
            engine.alter_topic("t", {"cleanup.policy": "compact"})

    logs.sim.store.before = before
    append(log, "c")
    log.roll()
    logs.clock.advance_ms(1 << 40)
    append(log, "c")
    (result,) = engine.run_cleaner()
    assert result.stopped == "cleanup.policy of t-0 changed"
    assert remote_of(log).first_dirty_offset == 0


@pytest.mark.long
def test_the_store_fails_once_at_each_request(tmp_path: Path) -> None:
    """If any request is lost, or its response is lost, no record is lost, and the next round completes the work."""
    number = 0
    while True:
        logs = TieredLogs(tmp_path / str(number))
        engine = logs.engine()
        log = filled(engine, "abc", "abd", "ae")
        engine.offload()
        base = sum(logs.sim.store.counts.values())
        failing = base + number // 2
        fault = (ObjectFault.NOT_APPLIED, ObjectFault.REPLY_LOST)[number % 2]

        def faults(request: SimRequest, failing: int = failing, fault: ObjectFault = fault) -> ObjectFault:
            return fault if request.number == failing else ObjectFault.NONE

        logs.sim.store.faults = faults
        (first, *_) = engine.run_cleaner()
        requests = sum(logs.sim.store.counts.values()) - base
        logs.sim.store.faults = lambda _: ObjectFault.NONE
        assert first.error is None or isinstance(first.error, StoreTimeoutError)
        assert {record.key for record in log.records()} == {b"a", b"b", b"c", b"d", b"e"}
        engine.run_cleaner()
        assert letters(log) == "2c 4b 5d 6a 7e"
        logs.close()
        if number // 2 >= requests:
            break
        number += 1
    assert number > 6


def test_a_full_map_takes_several_rounds_and_many_segments_several_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog.cleaning.compact.tier_range.MOST_SWAPS", 2)
    monkeypatch.setattr(entry_tree, "PAGE_ITEMS", 2)
    monkeypatch.setattr(entry_tree, "INLINE_PAGES", 2)
    logs = TieredLogs(tmp_path, settings={"log.cleaner.dedupe.buffer.size": 1 << 20})
    engine = logs.engine()
    log = filled(engine, segment_bytes=400)
    for number in range(150):
        log.append([Record(key=b"k%d" % (number % 40), value=b"%d" % number)])
    log.roll()
    engine.offload()
    newest = {record.key: record.offset for record in log.records()}
    version = remote_of(log).version
    (result,) = engine.run_cleaner()
    assert result.error is None
    assert remote_of(log).version > version + 2
    assert [record.offset for record in log.records()] == sorted(newest.values())
    bounds = committed(log)
    assert [start for start, _ in bounds[1:]] == [end for _, end in bounds[:-1]]
    assert result.end == remote_of(log).first_dirty_offset == remote_of(log).end_offset
    logs.close()


ENTRIES: Final = (CommittedSegment, RemoteSegment, StoredSegment)


@pytest.mark.long
@pytest.mark.usefixtures("only_new_objects")
def test_a_round_never_holds_the_list_of_all_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of 100,000 entries would need hundreds of megabytes."""
    monkeypatch.setattr("stratalog.cleaning.compact.tier_range.MOST_SWAPS", 4)
    monkeypatch.setattr(entry_tree, "PAGE_ITEMS", 4)
    monkeypatch.setattr("stratalog.tier.manifest.pages.PageCache.__init__.__defaults__", (8,))
    logs = TieredLogs(tmp_path)
    engine = logs.engine()
    log = filled(engine, segment_bytes=200, local_retention_bytes=0)
    for number in range(160):
        log.append([Record(key=b"k%d" % (number % 40), value=b"%d" % number * 40)])
    log.roll()
    engine.offload()
    engine.apply_retention()
    segments = len(committed(log))
    assert segments > 60
    entry_counts = list[int]()

    def look(request: SimRequest) -> None:
        if request.number % 20 == 0:
            gc.collect()  # count only objects of the current root; replaced objects wait for the collector
            entries = (obj for obj in gc.get_objects() if type(obj) in ENTRIES)
            entry_counts.append(max(Counter(type(obj) for obj in entries).values(), default=0))

    newest = {record.key: record.offset for record in log.records()}
    logs.sim.store.before = look
    (result,) = engine.run_cleaner()
    assert result.error is None
    assert [record.offset for record in log.records()] == sorted(newest.values())
    assert entry_counts
    assert max(entry_counts) < segments // 2
    logs.close()


def test_an_eviction_that_power_loss_interrupts_leaves_no_hole(logs: TieredLogs) -> None:
    """Each eviction is durable before the next one begins.

    If a power loss restored only the first segment, the log end of this segment would hide records of the tier.
    """
    operations = list[str]()
    files = FaultyVfs()
    engine = logs.engine(files=files)
    log = filled(engine, "a", "b", "c")
    engine.offload()

    def rule(operation: str, path: str) -> None:
        if operation == "sync folder" or (operation == "rename" and ".log" in path):
            operations.append(operation)

    files.rule = rule
    assert log.maintenance.evict(3) == 3
    files.rule = None
    assert operations == ["rename", "sync folder"] * 3


def test_local_retention_works_on_compacted_topics(engine: Engine) -> None:
    """Local retention evicts local copies of compacted topics as of other topics.

    If local retention is off, local segments stay until they are compacted.
    """
    log = filled(engine, "abc", "d", retention_bytes=-1, local_retention_bytes=0, min_cleanable_dirty_ratio=1)
    engine.offload()
    evicted = engine.apply_retention()
    assert evicted[0].evicted_segments == 2
    assert log.offsets().local_log_start == 4
    engine.alter_topic("t", {"min.cleanable.dirty.ratio": 0})
    append(log, "ab")
    log.roll()
    engine.offload()
    assert log.offsets().local_log_start == 4
    (result,) = engine.run_cleaner()
    assert result.traffic.downloaded_bytes > 0
    assert letters(log) == "2c 3d 4a 5b"


@pytest.mark.parametrize("setting", [{}, {"remote_log_copy_disable": True}])
def test_an_engine_that_may_not_write_to_the_tier_compacts_nothing_there(
    engine: Engine, setting: dict[str, object]
) -> None:
    log = filled(engine, "abc", "abd")
    engine.offload()
    if setting:
        engine.alter_topic("t", {"remote.log.copy.disable": True})
    else:
        log.follow(7)
    assert engine.run_cleaner() == ()
    reasons = [plan.reason for plan in engine.plan_cleaner() if plan.part == "tier"]
    assert reasons == ["remote.log.copy.disable" if setting else "its leader compacts it"]
    assert committed(log) == [(0, 3), (3, 6)]


def test_damage_on_the_way_is_tried_again_and_damage_that_stays_ends_it(logs: TieredLogs, engine: Engine) -> None:
    log = filled(engine, "abc", "abd", retention_bytes=-1, local_retention_bytes=0)
    engine.offload()
    engine.apply_retention()
    key = objects(logs)[0]
    data, modified_ms = logs.sim.bucket.objects[key]
    damaged = bytearray(data)
    damaged[80] ^= 1
    logs.sim.bucket.objects[key] = bytes(damaged), modified_ms
    (result,) = engine.run_cleaner()
    assert (result.error, log.maintenance.cleaning.tier.uncleanable) == (None, "")
    assert result.stopped
    (result,) = engine.run_cleaner()
    assert isinstance(result.error, CorruptionError)
    assert engine.run_cleaner() == ()
    assert [plan.reason[:12] for plan in engine.plan_cleaner() if plan.part == "tier"] == ["uncleanable:"]
    assert committed(log) == [(0, 3), (3, 6)]
    log.maintenance.cleaning.tier.uncleanable = log.maintenance.cleaning.tier_doubt = ""
    assert engine.run_cleaner()[0].stopped
    logs.sim.bucket.objects[key] = data, modified_ms
    assert engine.run_cleaner()[0].error is None
    assert letters(log) == "2c 3a 4b 5d"


def test_damage_in_the_second_download_of_a_segment_is_not_committed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pass 1 and pass 2 download a segment separately, and the network may damage either copy."""
    log = filled(engine, "abc", "xyz", "ab", retention_bytes=-1, local_retention_bytes=0)
    engine.offload()
    engine.apply_retention()
    read, downloads = RemoteSegment.read, list[int]()

    def damaged(segment: RemoteSegment, position: int, size_bytes: int) -> memoryview:
        data = bytearray(read(segment, position, size_bytes))
        downloads.append(segment.base_offset)
        if segment.base_offset == 3 and downloads.count(3) == 2:
            data[-2] ^= 1
        return memoryview(data)

    monkeypatch.setattr(RemoteSegment, "read", damaged)
    (result,) = engine.run_cleaner()
    assert "damaged" in result.stopped
    assert committed(log) == [(0, 3), (3, 6), (6, 8)]
    (result,) = engine.run_cleaner()
    assert (result.error, result.stopped, committed(log)) == (None, "", [(0, 8)])
    assert letters(log) == "2c 3x 4y 5z 6a 7b"


def test_plans_and_reasons_name_the_tier(logs: TieredLogs, engine: Engine) -> None:
    log = filled(engine, "abc", "abd", "x", retention_bytes=-1, local_retention_bytes=0)
    engine.offload()
    engine.apply_retention()
    sizes = [segment.size_bytes for segment in remote_of(log).segments]
    (plan,) = (candidate for candidate in engine.plan_cleaner() if candidate.part == "tier")
    assert plan.download_bytes == 2 * sum(sizes)
    outcome = engine.preview_cleaner(plan)
    assert outcome is not None
    explanation = engine.why_kept("t", 0)
    (round_,) = [offset_range for offset_range in explanation.ranges if offset_range.fate == "compact"]
    assert (round_.start, round_.end, round_.where) == (0, 7, "tier")
    assert [record.fate for record in engine.why_kept("t", 0, key=b"a").records] == ["compact", "keep"]
    before = objects(logs)
    assert round_.freed_bytes == outcome.segments[0].bytes_before - outcome.segments[0].bytes_after
    assert objects(logs) == before
    (result,) = engine.run_cleaner()
    assert result.traffic.uploaded_bytes == outcome.segments[0].bytes_after
    assert sum(sizes) - result.traffic.uploaded_bytes == round_.freed_bytes
    tier_ranges = [offset_range for offset_range in engine.why_kept("t", 0).ranges if offset_range.where == "tier"]
    assert [(offset_range.fate, offset_range.reason) for offset_range in tier_ranges] == [
        ("keep", "compacted; nothing after it can be compacted yet")
    ]


def test_the_command_reports_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tier, data = tmp_path / "tier", tmp_path / "data"
    tier.mkdir()
    with stratalog.open_engine(data, tier=f"file://{tier}") as engine:
        log = filled(engine, "abc", "abd")
        engine.offload()
        expected = [record.offset for record in log.records()][2:]
    place = ["--dir", str(data), "--tier", f"file://{tier}", "--json"]
    assert run(["cleaner", "--dry-run", *place]) == 0
    planned = {row["part"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert (planned["tier"]["bytes_to_download"], planned["tier"]["bytes_to_upload"] > 0) == (0, True)
    assert run(["cleaner", *place]) == 0
    (result,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert result["bytes_uploaded"] == planned["tier"]["bytes_to_upload"]
    with stratalog.open_reader(f"file://{tier}") as reader:
        assert [record.offset for record in reader.log("t", 0).records()] == expected


def test_listeners_get_an_event_for_each_segment_that_leaves_local_disk(engine: Engine) -> None:
    log = filled(engine, "abc", "abd")
    engine.offload()
    events = list[object]()
    log_state(log).notify = events.append
    engine.run_cleaner()
    assert [event.base_offset for event in events if isinstance(event, SegmentEvicted)] == [0, 3]


def test_nothing_is_rewritten_here_while_a_commit_to_the_tier_is_in_doubt(logs: TieredLogs, engine: Engine) -> None:
    """The local records may be in the tier already, or get there later when the late request is carried out."""
    log = filled(engine, "ab", "Ac")

    def late(request: SimRequest) -> ObjectFault:
        return ObjectFault.LATE if request.kind == "create" else ObjectFault.NONE

    logs.sim.store.faults = late
    with pytest.raises(StoreTimeoutError):
        engine.offload()
    logs.sim.store.faults = lambda _: ObjectFault.NONE
    engine.alter_topic("t", {"remote.log.copy.disable": True})
    (result,) = engine.run_cleaner()
    assert (result.part, "it is unknown" in result.stopped) == ("local", True)
    (erased,) = engine.erase("t", b"a")
    assert "it is unknown" in str(erased.error)
    assert letters(log) == "0a 1b 2A 3c"
    logs.sim.bucket.deliver()
    (erased,) = engine.erase("t", b"a")
    assert erased.is_complete
    assert committed(log) == [(0, 2)]
    assert letters(log) == "1b 3c"


def test_the_log_start_does_not_fall_when_everything_in_the_tier_was_deleted(logs: TieredLogs, engine: Engine) -> None:
    """After a crash before the checkpoint is written, the log start comes from the root."""
    log = filled(engine, "ab", "cd")
    engine.offload()
    tier = engine.tier
    assert tier is not None
    assert log.topic_id is not None
    log.maintenance.raise_log_start(4)
    tier.log(log.name, log.topic_id).expire(4, leader_epoch=log.leader_epoch, reason="all of it")
    shutil.copytree(logs.folder / "data", logs.folder / "crashed")
    reopened_log = logs.engine("crashed").log("t", 0)
    assert (reopened_log.offsets().log_start, reopened_log.offsets().log_end, letters(reopened_log)) == (4, 4, "")
    assert reopened_log.append([Record(key=b"x", value=b"y")]).base_offset == 4


def replicas_with_other_bounds(logs: TieredLogs, bases: list[int]) -> tuple[Engine, Log]:
    """Return a new leader and its engine. The tier ends at offset 6, and its local segments begin at 4 and maybe 8."""
    engines, leader, replica = two_replicas(logs, local_retention_bytes=0)
    for keys, leader_rolls, replica_rolls in (("abc", True, False), ("a", False, True), ("bd", True, False)):
        append(leader, keys)
        while replicate(leader, replica, moves_watermark=False):
            pass
        for log, rolls in ((leader, leader_rolls), (replica, replica_rolls)):
            if rolls:
                log.roll()
    leader.set_high_watermark(6)
    engines[0].offload()
    append(leader, "ae")
    while replicate(leader, replica, moves_watermark=False):
        pass
    if 8 in bases:
        replica.roll()
    engines[1].offload()
    engines[1].apply_retention()
    assert committed(replica) == [(0, 3), (3, 6)]
    assert [segment.base_offset for segment in replica.view().segments] == bases
    leader.follow(2)
    replica.lead(2)
    return engines[1], replica


@pytest.mark.parametrize(("watermark", "bases"), [(6, [4, 8]), (9, [4, 8]), (9, [4])])
def test_a_new_leader_compacts_a_tier_that_ends_inside_one_of_its_segments(
    tmp_path: Path, watermark: int, bases: list[int]
) -> None:
    """Replicas have other segment bounds than the leader that offloaded. The compaction once failed on a new leader.

    If the segment inside which the tier ends was dirty, too, or active, the plan of the policy counted as wrong.
    """
    logs = TieredLogs(tmp_path, settings={"watermark": "external"})
    engine, replica = replicas_with_other_bounds(logs, bases)
    append(replica, "f")
    replica.set_high_watermark(watermark)
    results = engine.run_cleaner()
    assert [(result.part, result.end, result.error) for result in results] == [("tier", 6, None)]
    assert committed(replica) == [(0, 6)]
    replica.set_high_watermark(9)
    assert letters(replica) == "2c 3a 4b 5d 6a 7e 8f"
    logs.close()


def test_the_segment_in_which_the_deleted_part_of_the_tier_ends_is_compacted(tmp_path: Path) -> None:
    """The round once began at the next segment, and never compared the records of this segment with later records."""
    logs = TieredLogs(tmp_path, settings={"watermark": "external"})
    engine, replica = replicas_with_other_bounds(logs, [4, 8])
    engine.alter_topic("t", {"remote.log.copy.disable": True, "local.retention.bytes": None})
    append(replica, "ag")
    replica.roll()
    append(replica, "h")
    replica.set_high_watermark(11)
    replica.maintenance.raise_log_start(6)
    (result,) = engine.run_cleaner()
    assert (result.part, result.start, result.dirty_start, result.end, result.error) == ("local", 4, 6, 10, None)
    assert letters(replica) == "7e 8a 9g 10h"
    logs.close()
