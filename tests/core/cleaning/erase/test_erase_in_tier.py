"""Erasure of a key from both tiers, and the proof that no bytes of it are left."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import stratalog
from replication import replicate
from sim_objects import ObjectFault, SimRequest
from sim_tier import URI
from stratalog import Engine, Record
from stratalog.cleaning.compact.tier_range import TierRange, Traffic
from stratalog.cleaning.erase.erasure_report import EraseResult
from stratalog.errors import ConfigError, FencedEpochError, StoreTimeoutError
from stratalog.log.log import Log
from stratalog.tier.manifest import entry_tree
from stratalog.tier.upkeep.collect import GRACE_MS
from tiered_logs import TieredLogs, append, committed, filled, letters, remote_of, two_replicas

DELETE = {"cleanup_policy": "delete", "retention_ms": -1}
KEY = base64.b64encode(bytes(32)).decode()


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[TieredLogs]:
    tiered_logs = TieredLogs(tmp_path, settings={"tier.history.ms": 10 * GRACE_MS})
    yield tiered_logs
    tiered_logs.close()


@pytest.fixture
def engine(logs: TieredLogs) -> Engine:
    return logs.engine()


def erased(engine: Engine, key: bytes = b"a") -> EraseResult:
    (result,) = engine.erase("t", key)
    return result


def bytes_with(logs: TieredLogs, text: bytes) -> list[str]:
    """Return the keys of objects and the paths of local files that contain these bytes."""
    keys = [key for key, (data, _) in logs.sim.bucket.objects.items() if text in data]
    return keys + [str(path) for path in logs.folder.rglob("*") if path.is_file() and text in path.read_bytes()]


def append_secrets(log: Log) -> None:
    """Append five closed segments. Every second one contains the key ``SECRET``, which occurs nowhere else."""
    for number in range(5):
        log.append([Record(key=b"SECRET" if number % 2 == 0 else b"other", value=b"v%d" % number)])
        log.append([Record(key=b"more", value=b"w%d" % number)])
        log.roll()


def test_the_key_is_gone_from_both_tiers_and_the_rest_is_as_it_was(logs: TieredLogs, engine: Engine) -> None:
    log = filled(engine, "abc", "bcd", "ac", **DELETE)
    engine.offload()
    append(log, "ab")
    log.roll()
    append(log, "a")
    before = [(record.offset, record.key, record.value) for record in log.records()]
    old = [segment.label for segment in remote_of(log).segments]
    result = erased(engine)
    assert (result.error, result.is_complete, result.end) == (None, True, 11)
    assert [(proof.part, proof.base_offset, proof.records) for proof in result.segments] == [
        ("local", 8, 1),
        ("local", 10, 1),
        ("tier", 0, 1),
        ("tier", 6, 1),
    ]
    assert [(record.offset, record.key, record.value) for record in log.records()] == [
        row for row in before if row[1] != b"a"
    ]
    assert committed(log) == [(0, 3), (3, 6), (6, 8)]
    now = [segment.label for segment in remote_of(log).segments]
    assert (now[1], now[0] != old[0], now[2] != old[2]) == (old[1], True, True)
    tiered = [proof for proof in result.segments if proof.part == "tier"]
    assert [proof.objects_before for proof in tiered] == [(old[0],), (old[2],)]
    assert [proof.objects_after for proof in tiered] == [(now[0],), (now[2],)]
    assert log.append([Record(key=b"a", value=b"new")]).base_offset == 11
    assert letters(log).endswith(" 11a")
    with stratalog.open_reader(URI, plugins=[logs.sim], env=logs.env) as reader:
        assert letters(reader.log("t", 0)) == "1b 2c 3b 4c 5d 7c"


@pytest.mark.parametrize("layout", ["single", "plain", "chunked", "encrypted", "parquet"])
@pytest.mark.long
def test_every_layout_and_not_a_byte_of_it_is_left_once_its_time_is_over(tmp_path: Path, layout: str) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'active = "k"\n[keys]\nk = "{KEY}"\n', encoding="utf-8")
    keys.chmod(0o600)
    plugins = {"encrypted": {"keys.file": str(keys)}, "chunked": {"chunk.bytes": 4096}}
    cache = {"tier.cache.dir": str(tmp_path / "cache"), "tier.history.ms": 10 * GRACE_MS}
    logs = TieredLogs(tmp_path / "logs", settings={"plugins": plugins, **cache})
    engine = logs.engine()
    log = filled(engine, tier_layout=layout, local_retention_bytes=0, file_delete_delay_ms=5_000, **DELETE)
    append_secrets(log)
    engine.offload()
    engine.apply_retention()
    append_secrets(log)
    assert len(list(log.records())) == 20
    result = erased(engine, b"SECRET")
    assert result.gone_ms == logs.clock.now_ms() + GRACE_MS
    proof = json.loads(json.dumps(engine.proof_of(result, b"SECRET")))
    assert "SECRET" not in json.dumps(proof)
    check = engine.check_erasure(proof, b"SECRET")
    assert {remnant.kind for remnant in check.remnants} == {"object", "deleted file"}
    assert check.holding == ()
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and b"SECRET" in path.read_bytes()]
    logs.clock.advance_ms(GRACE_MS + 1)
    engine.collect()
    log.maintenance.delete_expired()
    check = engine.check_erasure(proof, b"SECRET")
    assert (check.is_gone, check.remnants, check.holding) == (True, (), ())
    if layout in {"single", "plain"}:
        assert bytes_with(logs, b"other")
    assert bytes_with(logs, b"SECRET") == []
    append(log, "x")
    log.append([Record(key=b"SECRET", value=b"again")])
    assert engine.check_erasure(proof, b"SECRET").is_gone, "what was written later is none of its business"
    logs.close()


def test_no_earlier_state_brings_it_back_though_history_is_kept_for_longer(logs: TieredLogs, engine: Engine) -> None:
    log = filled(engine, "ab", "c", **DELETE)
    engine.offload()
    version = remote_of(log).version
    logs.clock.advance_ms(1_000)
    result = erased(engine)
    now = remote_of(log).version
    for as_of in (version, version - 1):
        with (
            pytest.raises(ConfigError, match="a key was erased later"),
            stratalog.open_reader(URI, plugins=[logs.sim], env=logs.env, as_of=as_of) as reader,
        ):
            letters(reader.log("t", 0))
    append(log, "d")
    log.roll()
    engine.offload()
    logs.clock.advance_ms(GRACE_MS + 1)
    report = engine.collect()
    assert (report.roots, report.objects) == (version, 1)
    assert not {remnant.where for remnant in result.remnants if remnant.kind == "object"} & set(logs.sim.bucket.objects)
    with stratalog.open_reader(URI, plugins=[logs.sim], env=logs.env, as_of=now) as reader:
        assert letters(reader.log("t", 0)) == "1b 2c"


def test_objects_that_compaction_left_in_the_history_are_reported_and_deleted(logs: TieredLogs, engine: Engine) -> None:
    """No segment contains the key any more, but older roots refer to objects that contain it."""
    log = filled(engine, "ab", "bB", "c")
    engine.offload()
    engine.run_cleaner()
    logs.clock.advance_ms(10_001)
    append(log, "A")
    log.roll()
    engine.offload()
    engine.run_cleaner()
    logs.clock.advance_ms(10_001)
    append(log, "d")
    log.roll()
    engine.offload()
    engine.run_cleaner()
    assert letters(log) == "4c 6d"
    result = erased(engine)
    assert result.segments == ()
    objects = {remnant.where for remnant in result.remnants if remnant.kind == "object"}
    assert len(objects) >= 5
    second = erased(engine)
    assert remote_of(log).version == remote_of(log).version
    assert {remnant.where for remnant in second.remnants} == objects
    logs.clock.advance_ms(GRACE_MS + 1)
    engine.collect()
    assert not objects & set(logs.sim.bucket.objects)
    assert letters(log) == "4c 6d"


def test_a_second_run_commits_nothing(logs: TieredLogs, engine: Engine) -> None:
    log = filled(engine, "ab", **DELETE)
    engine.offload()
    erased(engine)
    version = remote_of(log).version
    logs.clock.advance_ms(10)
    assert erased(engine).segments == ()
    assert remote_of(log).version == version


def test_readers_under_way_continue(logs: TieredLogs, engine: Engine) -> None:
    filled(engine, "ab", "ab", **DELETE)
    engine.offload()
    with stratalog.open_reader(URI, plugins=[logs.sim], env=logs.env) as reader:
        following = reader.log("t", 0)
        under_way = following.records()
        offsets = [next(under_way).offset]
        erased(engine)
        assert [*offsets, *(record.offset for record in under_way)] == [0, 1, 2, 3]
        reader.refresh()
        assert letters(following) == "1b 3b"


def test_the_first_encrypted_segment_of_a_log_may_be_one_that_is_on_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root that names the segment has a MAC, although its own entries and its settings need none."""
    monkeypatch.setattr(entry_tree, "PAGE_ITEMS", 2)
    keys = tmp_path / "keys.toml"
    keys.write_text(f'active = "k"\n[keys]\nk = "{KEY}"\n', encoding="utf-8")
    keys.chmod(0o600)
    logs = TieredLogs(tmp_path / "logs", settings={"plugins": {"encrypted": {"keys.file": str(keys)}}})
    engine = logs.engine()
    log = filled(engine, "ab", "b", "c", "d", "e", local_retention_bytes=0, **DELETE)
    engine.offload()
    engine.apply_retention()
    engine.alter_topic("t", {"tier.layout": "encrypted"})
    assert erased(engine).is_complete
    assert letters(log) == "1b 2b 3c 4d 5e"
    append(log, "f")
    log.roll()
    engine.offload()
    assert letters(log) == "1b 2b 3c 4d 5e 6f"
    logs.close()


def test_reads_in_progress_do_not_bring_the_key_back_into_the_cache_on_disk(tmp_path: Path) -> None:
    cache = {"tier.cache.dir": str(tmp_path / "cache"), "limits.fetch.chunk.bytes": 4096, "limits.prefetch.bytes": 0}
    logs = TieredLogs(tmp_path / "logs", settings=cache)
    engine = logs.engine()
    log = filled(engine, local_retention_bytes=0, **DELETE)
    for key in (b"other", b"SECRET"):
        log.append([Record(key=key, value=bytes(10_000))])
        log.roll()
    engine.offload()
    engine.apply_retention()
    in_progress = log.records()
    assert next(in_progress).key == b"other"
    assert erased(engine, b"SECRET").is_complete
    assert [record.key for record in in_progress] == [b"SECRET"]
    logs.close()
    cached = [path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert [b"other" in data for data in cached].count(True) == 1
    assert not any(b"SECRET" in data for data in cached)


@pytest.mark.long
def test_the_store_fails_once_at_each_request(tmp_path: Path) -> None:
    number = 0
    while True:
        logs = TieredLogs(tmp_path / str(number))
        engine = logs.engine()
        log = filled(engine, "abc", "ab", "b", **DELETE)
        engine.offload()
        base = sum(logs.sim.store.counts.values())
        failing = base + number // 2
        fault = (ObjectFault.NOT_APPLIED, ObjectFault.REPLY_LOST)[number % 2]

        def faults(request: SimRequest, failing: int = failing, fault: ObjectFault = fault) -> ObjectFault:
            return fault if request.number == failing else ObjectFault.NONE

        logs.sim.store.faults = faults
        first = erased(engine)
        requests = sum(logs.sim.store.counts.values()) - base
        logs.sim.store.faults = lambda _: ObjectFault.NONE
        assert first.error is None or isinstance(first.error, StoreTimeoutError)
        assert letters(log).replace("0a ", "").replace("3a ", "") == "1b 2c 4b 5b"
        assert erased(engine).is_complete
        assert letters(log) == "1b 2c 4b 5b"
        logs.close()
        if number // 2 >= requests:
            break
        number += 1
    assert number > 6


@pytest.mark.parametrize("request_kind", ["put_file", "create"])
def test_an_error_leaves_no_deleted_record_without_its_tombstone(
    logs: TieredLogs, engine: Engine, request_kind: str
) -> None:
    """The erasure once erased the tombstone on local disk first. After an error, readers got the deleted record."""
    log = filled(engine, "ab", "bc")
    engine.offload()
    append(log, "Ac")
    log.roll()
    append(log, "A")
    logs.sim.store.faults = lambda request: (
        ObjectFault.NOT_APPLIED if request.kind == request_kind else ObjectFault.NONE
    )
    assert isinstance(erased(engine).error, StoreTimeoutError)
    logs.sim.store.faults = lambda _: ObjectFault.NONE
    assert letters(log) == "0a 1b 2b 3c 4A 5c 6A"
    engine.offload()  # shows if the commit of the erasure took effect
    assert erased(engine).is_complete
    assert letters(log) == "1b 2b 3c 5c"


def test_an_erasure_whose_commit_had_no_reply_is_repeated_without_an_offload(logs: TieredLogs, engine: Engine) -> None:
    """No segment waits for an offload, so no other commit would show if the commit of the erasure took effect."""
    log = filled(engine, "ab", "bc")
    engine.offload()
    logs.sim.store.faults = lambda request: ObjectFault.NOT_APPLIED if request.kind == "create" else ObjectFault.NONE
    assert isinstance(erased(engine).error, StoreTimeoutError)
    logs.sim.store.faults = lambda _: ObjectFault.NONE
    assert erased(engine).is_complete
    assert letters(log) == "1b 2b 3c"


def test_a_tombstone_that_is_offloaded_meanwhile_is_erased_after_the_record(logs: TieredLogs, engine: Engine) -> None:
    log = filled(engine, "ab", "bc")
    engine.offload()
    append(log, "Ac")
    log.roll()

    def before(request: SimRequest) -> None:
        if request.kind == "put_file":
            logs.sim.store.before = None
            engine.offload()

    logs.sim.store.before = before
    result = erased(engine)
    assert result.is_complete
    assert [(segment.part, segment.base_offset) for segment in result.segments] == [("tier", 0), ("tier", 4)]
    assert letters(log) == "1b 2b 3c 5c"
    places = [remnant.where for remnant in result.remnants]
    assert sorted(places) == sorted(set(places))


def test_a_preview_lists_a_segment_that_is_offloaded_meanwhile_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(engine, "ab", "bc")
    engine.offload()
    append(log, "Ac")
    log.roll()
    of_log = TierRange.of

    def of_offloaded_log(log: Log, traffic: Traffic) -> TierRange:
        engine.offload()
        return of_log(log, traffic)

    monkeypatch.setattr(TierRange, "of", of_offloaded_log)
    (result,) = engine.erase("t", b"a", dry_run=True)
    assert [(segment.part, segment.base_offset) for segment in result.segments] == [("tier", 0), ("tier", 4)]


def test_a_follower_that_leads_meanwhile_reports_what_it_did_not_erase(engine: Engine) -> None:
    """The erasure skipped the tier while the log was a follower. It once reported success in this case."""
    log = filled(engine, "ab", "bc")
    engine.offload()
    append(log, "c")
    log.follow(1)

    def lead(done_bytes: int, _: int) -> None:
        if done_bytes and not log.is_leader:
            log.lead(2)

    (result,) = engine.erase("t", b"a", progress=lead)
    assert log.is_leader
    assert [remnant.kind for remnant in result.remnants if remnant.kind == "tier"] == ["tier"]
    assert not result.is_complete


def test_an_erasure_in_a_topic_that_leaves_the_tier_meanwhile_is_repeated(logs: TieredLogs, engine: Engine) -> None:
    log = filled(engine, "abc", "bcd", **DELETE)
    engine.offload()
    leaves = {"remote.storage.enable": False, "remote.log.delete.on.disable": True}

    def before(request: SimRequest) -> None:
        if request.kind == "put_file":
            logs.sim.store.before = None
            thread = threading.Thread(target=engine.alter_topic, args=("t", leaves))
            thread.start()
            thread.join()

    logs.sim.store.before = before
    result = erased(engine)
    assert not result.is_complete
    assert "erase again" in str(result.error)
    assert letters(log) == "0a 1b 2c 3b 4c 5d"
    assert erased(engine).is_complete
    assert letters(log) == "1b 2c 3b 4c 5d"


def test_a_fenced_engine_erases_nothing_there(logs: TieredLogs, engine: Engine) -> None:
    log = filled(engine, "abc", **DELETE)
    engine.offload()
    winner = logs.engine("elsewhere", attach=True)
    result = erased(engine)
    assert isinstance(result.error, FencedEpochError)
    assert not result.is_complete
    with pytest.raises(FencedEpochError):
        append(log, "x")
    assert letters(winner.log("t", 0)) == "0a 1b 2c"
    assert erased(winner).is_complete


def test_a_follower_refers_to_its_leader(engine: Engine) -> None:
    log = filled(engine, "abc", **DELETE)
    engine.offload()
    log.follow(3)
    result = erased(engine)
    assert ([remnant.kind for remnant in result.remnants], result.is_complete) == (["tier", "local copy"], False)
    assert result.gone_ms == -1


def test_a_replica_erases_its_copies_of_records_that_compaction_removed_from_the_tier(tmp_path: Path) -> None:
    """The erasure once left the key in the copies of a new leader, and reported that it is complete."""
    logs = TieredLogs(tmp_path, settings={"watermark": "external"})
    engines, leader, replica = two_replicas(logs, delete_retention_ms=0)
    for keys in ("abc", "Abd", "e", "f"):
        append(leader, keys)
        leader.roll()
        while replicate(leader, replica):
            pass
        replica.roll()
        engines[0].offload()
        engines[0].run_cleaner()
        logs.clock.advance_ms(1)
    assert letters(leader) == "2c 4b 5d 6e 7f"
    assert letters(replica) == "0a 1b 2c 3A 4b 5d 6e 7f"
    replica.maintenance.refresh_remote()
    engines[1].offload()
    (copy, _) = erased(engines[1]).remnants
    assert (copy.kind, copy.where) == ("local copy", replica.view().segments[0].label)
    replica.lead(2)
    assert erased(engines[1]).is_complete
    assert letters(replica) == "2c 4b 5d 6e 7f"
    logs.close()


def test_a_new_leader_erases_its_active_segment_whose_records_are_in_the_tier(tmp_path: Path) -> None:
    """The erasure once left the key in this segment, and reported that it is complete."""
    logs = TieredLogs(tmp_path, settings={"watermark": "external"})
    engines, leader, replica = two_replicas(logs)
    for keys in ("ab", "ac"):
        append(leader, keys)
        leader.roll()
        while replicate(leader, replica):
            pass
    for engine in engines:
        engine.offload()
    replica.lead(2)
    assert [(segment.base_offset, segment.end_offset) for segment in replica.view().segments] == [(0, 4)]
    assert replica.view().remote_end == 4
    assert erased(engines[1]).is_complete
    assert letters(replica) == "1b 3c"
    logs.close()


def test_damage_in_the_tier_is_reported_and_the_others_are_done(logs: TieredLogs, engine: Engine) -> None:
    log = filled(engine, "abc", "ab", local_retention_bytes=0, **DELETE)
    engine.offload()
    engine.apply_retention()
    key = remote_of(log).segments[0].label
    data, modified_ms = logs.sim.bucket.objects[key]
    damaged = bytearray(data)
    damaged[80] ^= 1
    logs.sim.bucket.objects[key] = bytes(damaged), modified_ms
    result = erased(engine)
    assert [segment.base_offset for segment in result.segments] == [3]
    assert [remnant.where for remnant in result.remnants if remnant.kind == "damaged segment"] == [key]
    assert not result.is_complete
    proof = engine.proof_of(result, b"a")
    logs.clock.advance_ms(GRACE_MS + 1)
    engine.collect()
    assert [remnant.kind for remnant in engine.check_erasure(proof, b"a").remnants] == ["damaged segment"]
    logs.sim.bucket.objects[key] = data, modified_ms
    assert engine.check_erasure(proof, b"a").holding == (key,)
    assert erased(engine).is_complete


def test_a_topic_that_was_recreated_is_another_one(engine: Engine) -> None:
    filled(engine, "ab", **DELETE)
    proof = engine.proof_of(erased(engine), b"a")
    engine.delete_topic("t")
    filled(engine, "ab", **DELETE)
    with pytest.raises(ConfigError, match="the proof is about"):
        engine.check_erasure(proof, b"a")
