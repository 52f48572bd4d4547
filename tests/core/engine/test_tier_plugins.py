"""An engine with a wrong tier layout of a third-party plugin: no record is lost, and the error names the layout."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from stratalog import Engine, Record, open_engine
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import PluginError
from stratalog.model.names import TopicPartition
from stratalog.segment.finding import FindingKind
from stratalog.spi import (
    Action,
    CleanupPolicy,
    FileKind,
    LogSummary,
    ObjectSink,
    ObjectSlice,
    Provider,
    RangeReader,
    Section,
    SegmentSource,
    StoredSegment,
    TierLayout,
    TopicConfig,
    hookimpl,
)
from stratalog.spi.objects import BytesSource
from stratalog.tier.upkeep.tier_check import TierLogCheck
from tier_bed import PairLayout

TOPIC = TopicPartition("t", 0)
LIES = ("stores three bytes", "flips a bit", "claims zeros", "raises")


class WrongLayout(PairLayout):
    """Layout that stores pairs of objects. ``lie`` names the one operation that it does wrong."""

    def __init__(self, lie: str) -> None:
        self.lie = lie

    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        if self.lie == "raises":
            raise ZeroDivisionError("division by zero")
        entry = super().write(source, sink, section)
        if self.lie == "claims zeros":
            return dataclasses.replace(entry, sha256="0" * 64)
        if self.lie == "stores three bytes":
            key = sink.put(BytesSource(b"abc")).key
            return dataclasses.replace(entry, slices={**entry.slices, FileKind.LOG: ObjectSlice(key, 0, 3)})
        return entry

    def read(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        for piece in super().read(segment, start, end, fetch):
            changed = bytearray(piece)
            if self.lie == "flips a bit":
                changed[0] ^= 1
            if self.lie == "changes an epoch" and start == 0:
                changed[15] ^= 1  # the leader epoch of the first batch, which its CRC does not cover
            yield memoryview(changed)


class Plugin:
    """Plugin that offers the layout ``stranger``."""

    def __init__(self, layout: TierLayout) -> None:
        self.layout = layout

    @hookimpl
    def stratalog_tier_layouts(self) -> Sequence[Provider[TierLayout]]:
        return [Provider[TierLayout](name="stranger", version=4, open=lambda _: self.layout)]


def opened(tmp_path: Path, layout: TierLayout, clock: ManualClock | None = None, deadline_ms: int = 300_000) -> Engine:
    """Return an engine with three closed segments that local retention can evict."""
    (tmp_path / "bucket").mkdir(exist_ok=True)
    engine = open_engine(
        tmp_path / "data",
        tier=f"file://{tmp_path / 'bucket'}",
        plugins=[Plugin(layout)],
        config={"plugin.deadline.ms": deadline_ms},
        env=Env() if clock is None else Env(clock=clock),
    )
    if not engine.topics():
        engine.create_topic(
            "t", config={"remote.storage.enable": True, "local.retention.ms": 0, "tier.layout": "stranger"}
        )
        log = engine.log("t", 0)
        for number in range(3):
            log.append([Record(value=b"%d" % number * 1000)])
            log.roll()
    return engine


def values(engine: Engine) -> list[bytes]:
    """Return the first byte of the value of each record in the log."""
    return [bytes(record.value or b"")[:1] for record in engine.log("t", 0).records(0)]


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.long
def test_local_data_stays_until_the_tier_gives_it_back(tmp_path: Path, lie: str) -> None:
    layout = WrongLayout(lie)
    with opened(tmp_path, layout) as engine:
        with pytest.raises(PluginError, match="tier layout 'stranger' version 4"):
            engine.offload()
        engine.apply_retention()
        assert len(engine.log("t", 0).view().segments) == 4
        assert values(engine) == [b"0", b"1", b"2"]
        layout.lie = ""
        engine.offload()
        engine.apply_retention()
        assert len(engine.log("t", 0).view().segments) == 1, "all but the active one are in the tier alone"
        assert values(engine) == [b"0", b"1", b"2"]


def test_the_error_of_a_layout_is_in_the_lag_and_in_the_metrics(tmp_path: Path) -> None:
    with opened(tmp_path, WrongLayout("raises")) as engine:
        with pytest.raises(PluginError):
            engine.offload()
        (lag,) = engine.tier_lag()
        assert "write raised ZeroDivisionError: division by zero" in lag.error
        failing = {sample.value for sample in engine.metrics() if sample.metric.name == "stratalog_log_tier_failing"}
        assert failing == {1.0}


def test_a_layout_that_fails_is_tried_less_and_less_often_and_delays_no_other_log(tmp_path: Path) -> None:
    clock, layout = ManualClock(), WrongLayout("raises")
    with opened(tmp_path, layout, clock) as engine:
        engine.create_topic("other", config={"remote.storage.enable": True})
        other_log, tries = engine.log("other", 0), list[int]()
        write = layout.write

        def counted(source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
            tries.append(clock.monotonic_ns() // 1_000_000)
            return write(source, sink, section)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layout, "write", counted)
            for _ in range(50):
                clock.sleep_ms(30_000)
                other_log.append([Record(value=b"v")])
                other_log.roll()
                engine.run_duties()
                assert engine.tier_lag([TopicPartition("other", 0)])[0].segments == 0
        pauses = [after - before for before, after in itertools.pairwise(tries)]
        assert pauses == sorted(pauses)
        assert (pauses[0], pauses[-1]) == (30_000, 300_000)
        assert [status.failing for status in engine.duties() if status.name == "offload"] == [0]


class Hanging(WrongLayout):
    """Layout whose ``write`` never returns."""

    def __init__(self) -> None:
        super().__init__("")
        self.gate = threading.Event()

    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        self.gate.wait()
        return super().write(source, sink, section)


def test_a_layout_that_hangs_is_left_behind_and_what_it_does_later_counts_for_nothing(tmp_path: Path) -> None:
    layout = Hanging()
    with opened(tmp_path, layout, deadline_ms=500) as engine:
        with pytest.raises(PluginError, match=r"stranger.* write did not return in"):
            engine.offload()
        assert "did not return" in engine.tier_lag()[0].error
        laggards = [thread for thread in threading.enumerate() if thread.name == "stratalog-call-write"]
        layout.gate.set()
        for thread in laggards:
            thread.join()
        assert engine.tier_lag()[0].segments == 3
        assert values(engine) == [b"0", b"1", b"2"]
    assert not [path for path in (tmp_path / "bucket").rglob("*") if "/segments/" in str(path) and path.is_file()]


class HangingPolicy(CleanupPolicy):
    """Policy whose ``plan`` never returns."""

    def __init__(self) -> None:
        self.asked, self.gate = threading.Event(), threading.Event()

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        del log, config, now_ms
        self.asked.set()
        self.gate.wait()
        return ()

    @hookimpl
    def stratalog_cleanup_policies(self) -> Sequence[Provider[CleanupPolicy]]:
        return [Provider[CleanupPolicy](name="hanging", open=lambda _: self)]


def test_a_policy_that_hangs_does_not_hold_up_the_end_of_the_engine(tmp_path: Path) -> None:
    policy = HangingPolicy()
    config = {"service.stop.ms": 1, "log.retention.check.interval.ms": 1}
    engine = open_engine(tmp_path, config=config, plugins=[policy])
    try:
        engine.create_topic("t", config={"cleanup.policy": "hanging"})
        engine.log("t", 0).append([Record(value=b"v")])
        engine.start()
        policy.asked.wait()
        engine.close()
    finally:
        policy.gate.set()
    with open_engine(tmp_path, plugins=[policy]) as reopened:
        assert values_of(reopened) == [b"v"]


def values_of(engine: Engine) -> list[bytes]:
    """Return the values of all records in the log."""
    return [bytes(record.value or b"") for record in engine.log("t", 0).records(0)]


def test_a_deep_check_compares_the_hash_where_a_layout_does_not(tmp_path: Path) -> None:
    layout = WrongLayout("")
    with opened(tmp_path, layout) as engine:
        engine.offload()
        assert engine.tier is not None
        (name,) = engine.tier.logs()
        check = TierLogCheck(engine.tier.log(*name), engine.log(*name.log).components, contents=True)
        assert list(check.roots()) == []
        (first, *_) = [entry for entry in check.segments() if isinstance(entry, StoredSegment)]
        assert list(check.check(first)) == []
        layout.lie = "changes an epoch"
        assert [finding.kind for finding in check.check(first)] == [FindingKind.LOG]
