"""The forecast of a read-only log, compared with the engine's preview and with the retention and compaction passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import Record, open_engine, open_reader
from stratalog.cleaning.explain.explain import Fate
from stratalog.cli.views.overview import collect
from stratalog.env import Env
from stratalog.env.clock import ManualClock

T0_MS = 1_700_000_000_000
KEPT = {"retention.ms": -1, "segment.bytes": 1000, "file.delete.delay.ms": 0}
CASES: dict[str, tuple[dict[str, int], set[Fate]]] = {
    "deletion": ({"retention.ms": 100_000}, {Fate.DELETE, Fate.KEEP}),
    "local time": ({"local.retention.ms": 100_000}, {Fate.EVICT, Fate.KEEP}),
    "local size": ({"local.retention.bytes": 2000}, {Fate.EVICT, Fate.KEEP}),
    "hard limit": ({"local.hard.limit.bytes": 4000}, {Fate.EVICT, Fate.KEEP}),
    "both": ({"retention.ms": 150_000, "local.retention.bytes": 1}, {Fate.DELETE, Fate.EVICT}),
}


@pytest.mark.parametrize("case", CASES)
def test_removals_are_those_of_the_engine(tmp_path: Path, case: str) -> None:
    settings, fates = CASES[case]
    (tmp_path / "tier").mkdir()
    data, uri = tmp_path / "data", (tmp_path / "tier").as_uri()
    clock = ManualClock(T0_MS)
    with open_engine(data, tier=uri, env=Env(clock=clock)) as engine:
        engine.create_topic("t", config=KEPT)
        log = engine.log("t", 0)
        for number in range(10):
            log.append([Record(value=b"v" * 600, timestamp_ms=T0_MS + number * 25_000)])
        engine.offload()
        engine.alter_topic("t", settings)
        clock.advance_ms(250_000)
        expected = [offset_range for offset_range in engine.why_kept("t", 0).ranges if offset_range.where != "active"]
        with open_reader(data, tier=uri) as reader:
            (forecast,) = collect(reader, clock).logs
        spans = [span for span in forecast.spans if span.start < expected[-1].end]
        assert [(span.start, span.end, span.fate, span.when_ms, span.reason) for span in spans] == [
            (offset_range.start, offset_range.end, offset_range.fate, offset_range.when_ms, offset_range.reason)
            for offset_range in expected
        ]
        assert {offset_range.fate for offset_range in expected} == fates
        (result,) = engine.apply_retention()
    assert result.deleted_segments == sum(span.fate is Fate.DELETE for span in forecast.spans)
    assert result.evicted_segments == sum(span.fate is Fate.EVICT for span in forecast.spans)


@pytest.mark.parametrize("compacted", [False, True])
def test_the_segments_that_a_round_reads_are_announced(tmp_path: Path, *, compacted: bool) -> None:
    settings = {"cleanup.policy": "compact", "segment.bytes": 1000, "min.cleanable.dirty.ratio": 0}
    clock = ManualClock(T0_MS)
    with open_engine(tmp_path, env=Env(clock=clock)) as engine:
        engine.create_topic("t", config=settings)
        log = engine.log("t", 0)
        for number in range(10):
            log.append([Record(key=b"k%d" % (number % 2), value=b"v" * 600, timestamp_ms=T0_MS + number)])
        if compacted:
            assert engine.run_cleaner()[0].error is None
        due = {
            offset_range.start for offset_range in engine.why_kept("t", 0).ranges if offset_range.fate is Fate.COMPACT
        }
    with open_reader(tmp_path) as reader:
        (forecast,) = collect(reader, clock).logs
    announced = {span.start for span in forecast.spans if span.fate is Fate.COMPACT}
    assert due <= announced
    assert bool(announced) is bool(due) is not compacted


@pytest.mark.parametrize("in_tier", [False, True])
def test_a_round_reads_the_segments_that_were_announced_and_changes_no_others(tmp_path: Path, *, in_tier: bool) -> None:
    settings = {"cleanup.policy": "compact", "segment.bytes": 1000, "min.cleanable.dirty.ratio": 0}
    (tmp_path / "tier").mkdir()
    data, uri = tmp_path / "data", (tmp_path / "tier").as_uri() if in_tier else None
    clock = ManualClock(T0_MS)
    with open_engine(data, tier=uri, env=Env(clock=clock)) as engine:
        engine.create_topic("t", config=settings)
        log = engine.log("t", 0)
        for number in range(12):
            key = b"once" if number == 0 else b"k%d" % (number % 2)
            log.append([Record(key=key, value=b"v" * 600, timestamp_ms=T0_MS + number)])
        if in_tier:
            engine.offload()
        with open_reader(data, tier=uri) as reader:
            (forecast,) = collect(reader, clock).logs
        announced = [span for span in forecast.spans if span.fate is Fate.COMPACT]
        offsets = {record.offset for record in log.records()}
        (result,) = engine.run_cleaner()
        dropped = offsets - {record.offset for record in log.records()}
    assert result.error is None
    assert (announced[0].start, announced[-1].end) == (result.start, result.end)
    assert result.part == ("tier" if in_tier else "local")
    assert len(dropped) == 8
    assert all(any(span.start <= offset < span.end for span in announced) for offset in dropped)
