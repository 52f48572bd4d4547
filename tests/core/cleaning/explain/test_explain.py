"""The preview of a cleaning (``why_kept``), compared with the cleaning itself."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from command_runs import printed_items
from stratalog import Record, open_engine
from stratalog.cleaning.explain.explain import Fate
from stratalog.cli.app import run
from stratalog.engine.engine import Engine
from stratalog.env import Env
from stratalog.env.clock import ManualClock

SMALL = {"segment.bytes": 400, "file.delete.delay.ms": 0, "min.cleanable.dirty.ratio": 0, "delete.retention.ms": 3000}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def sizes(engine: Engine) -> dict[int, int]:
    return {segment.base_offset: segment.size_bytes for segment in engine.log("t", 0).segments()}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.long
def test_the_preview_equals_the_cleaning(tmp_path: Path, clock: ManualClock, seed: int) -> None:
    """The preview gives the same bytes, ranges and single records as deletion and compaction."""
    draw = random.Random(seed)  # noqa: S311 - no secret here
    policy = draw.choice(["compact", "delete", "compact,delete"])
    settings = {**SMALL, "cleanup.policy": policy, "retention.ms": draw.choice([-1, 4000, 9000])}
    with open_engine(tmp_path / "data", env=Env(clock=clock)) as engine:
        engine.create_topic("t", config=settings)
        log = engine.log("t", 0)
        for _ in range(4):
            for _ in range(20):
                clock.advance_ms(draw.randrange(300))
                value = None if draw.random() < 0.2 else bytes(draw.randrange(60))
                log.append([Record(key=b"k%d" % draw.randrange(6), value=value, timestamp_ms=clock.now_ms())])
            log.roll()
            before = sizes(engine)
            keys = {record.offset: record.key for record in log.records()}
            explanation = engine.why_kept("t", 0)
            records = {offset: engine.why_kept("t", 0, offset=offset).records[0] for offset in list(keys)[::5]}
            assert sizes(engine) == before
            assert sum(span.size_bytes for span in explanation.ranges) == sum(before.values())
            (deleted,) = engine.apply_retention()
            assert deleted.deleted_bytes == sum(
                span.freed_bytes for span in explanation.ranges if span.fate is Fate.DELETE
            )
            if deleted.deleted_segments:
                continue  # the deletion changed the start of the round; the preview did not include that
            size = sum(sizes(engine).values())
            for result in engine.run_cleaner():
                assert result.error is None
            freed = sum(span.freed_bytes for span in explanation.ranges if span.fate is Fate.COMPACT)
            assert size - sum(sizes(engine).values()) == freed
            offsets = {record.offset for record in log.records()}
            for offset, record in records.items():
                assert (record.fate is not Fate.COMPACT) == (offset in offsets)


def test_the_preview_has_the_time_at_which_a_range_is_deleted(tmp_path: Path, clock: ManualClock) -> None:
    settings = {**SMALL, "retention.ms": 5000}
    with open_engine(tmp_path / "data", env=Env(clock=clock)) as engine:
        engine.create_topic("t", config=settings)
        log, stamps = engine.log("t", 0), [0, 2000, 1000]
        began_ms = clock.now_ms()
        for at_ms in stamps:
            log.append([Record(value=b"v", timestamp_ms=began_ms + at_ms)])
            log.roll()
        explanation = engine.why_kept("t", 0)
        assert [span.when_ms for span in explanation.ranges] == [began_ms + 5001, began_ms + 7001, began_ms + 7001]
        assert all(span.fate is Fate.KEEP and span.reason for span in explanation.ranges)
        for span, expected in ((explanation.ranges[0], [1, 2]), (explanation.ranges[1], [])):
            assert span.when_ms is not None
            clock.advance_ms(span.when_ms - 1 - clock.now_ms())
            assert engine.apply_retention()[0].deleted_segments == 0
            clock.advance_ms(1)
            engine.apply_retention()
            assert [record.offset for record in log.records()] == expected
        engine.alter_topic("t", {"retention.ms": -1})
        log.append([Record(value=b"v", timestamp_ms=1)])
        assert engine.why_kept("t", 0).ranges[-1].when_ms is None


def test_the_command_answers_for_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("t", config={**SMALL, "cleanup.policy": "compact"})
        log = engine.log("t", 0)
        for key in (b"a", b"b", b"a"):
            log.append([Record(key=key, value=b"v")])
            log.roll()
    place = ["--dir", str(tmp_path / "data")]
    assert run(["why-kept", "t", "0", "--key", "a", *place, "--json"]) == 0
    items = printed_items(capsys)
    records = [item["record"] for item in items if "record" in item]
    assert [(record["offset"], record["fate"], record["newer_offset"]) for record in records] == [
        (0, "compact", 2),
        (2, "keep", -1),
    ]
    assert run(["why-kept", "t", "0", *place]) == 0
    assert "min.cleanable.dirty.ratio" in capsys.readouterr().out
    assert run(["why-kept", "t", "0", "--offset", "1", *place]) == 0
    assert run(["why-kept", "t", "0", "--offset", "9", *place]) == 2
    assert "out of range" in capsys.readouterr().err
    assert run(["why-kept", "t", "0", "--key", "nobody", *place]) == 1
    assert run(["why-kept", "t", "0", "--key", "a", "--offset", "1", *place]) == 2
    assert run(["why-kept", "t", "7", *place]) == 2


def test_both_tiers_are_reported(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "bucket").mkdir()
    settings = {**SMALL, "remote.storage.enable": True, "retention.bytes": 300, "local.retention.bytes": 100}
    with open_engine(tmp_path / "data", tier=f"file://{tmp_path / 'bucket'}", env=Env(clock=clock)) as engine:
        engine.create_topic("t", config=settings)
        log = engine.log("t", 0)
        for _ in range(4):
            log.append([Record(value=bytes(40), timestamp_ms=clock.now_ms())])
            log.roll()
            engine.offload()
        explanation = engine.why_kept("t", 0)
        (result,) = engine.apply_retention()
        fates = [(span.fate, span.where) for span in explanation.ranges]
        assert fates[0] == (Fate.DELETE, "local, tier")
        assert {fate for fate, _ in fates} == {Fate.DELETE, Fate.EVICT, Fate.KEEP}
        for fate, freed in ((Fate.DELETE, result.deleted_bytes), (Fate.EVICT, result.evicted_bytes)):
            assert sum(span.freed_bytes for span in explanation.ranges if span.fate is fate) == freed > 0
        assert {span.where for span in engine.why_kept("t", 0).ranges} == {"tier", "local, tier"}


def test_the_cleaners_dry_run_knows_the_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("t", config={**SMALL, "cleanup.policy": "compact"})
        for number in range(12):
            engine.log("t", 0).append([Record(key=b"%d" % (number % 3), value=bytes(100))])
        before = sum(sizes(engine).values())
    place = ["--dir", str(tmp_path / "data"), "--json"]
    assert run(["cleaner", "--dry-run", *place]) == 0
    (planned,) = printed_items(capsys)
    assert run(["cleaner", *place]) == 0
    with open_engine(tmp_path / "data") as engine:
        assert before - sum(sizes(engine).values()) == planned["bytes_freed"] > 0
