"""The metrics of an engine equal the values of its logs and its tier."""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from inside import tell_listeners
from stratalog import Engine, Record, open_engine
from stratalog.engine.duties.engine_metrics import METRICS
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.env.latencies import REQUEST_KINDS
from stratalog.errors import ClosedError, StorageError
from stratalog.model.events import SegmentRolled
from stratalog.model.metrics import MetricKind
from stratalog.spi import hookimpl
from stratalog.testing.faults import FaultyVfs, failing

LATENCIES = {metric.name for metric in METRICS if metric.kind is MetricKind.HISTOGRAM}
NAMES = re.compile(r"stratalog_[a-z_]+\Z")


def metrics_of(engine: Engine) -> dict[str, dict[tuple[str, ...], float]]:
    """Return all values by the name of the metric and the labels."""
    metric_values: dict[str, dict[tuple[str, ...], float]] = {}
    for metric, labels, value in engine.metrics():
        assert labels not in metric_values.setdefault(metric.name, {})
        metric_values[metric.name][labels] = value
    return metric_values


def append(engine: Engine, *values: bytes) -> None:
    log = engine.log("orders", 0)
    for value in values:
        log.append([Record(value=value)])
        log.roll()


def test_names_have_one_form_and_name_their_kind() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert NAMES.match(metric.name)
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
        assert metric.doc.endswith(".")


def test_latencies_are_measured_when_they_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with open_engine(tmp_path / "a", tier=f"file://{tmp_path / 'bucket'}") as engine:
        engine.create_topic("orders")
        append(engine, b"zero")
        assert engine.latencies() == ()
        engine.measure_latencies()
        engine.measure_latencies()
        append(engine, b"one", b"two")
        assert engine.tier is not None
        log, before = engine.log("orders", 0), engine.tier.metrics().store
        with log.fetch(2) as fetched:
            log.append_as_leader(bytearray(fetched.read()))
        with pytest.raises(StorageError):
            log.fetch(100)
        with pytest.raises(StorageError):
            log.append_as_leader(b"no batch")
        engine.offload()
        counts = {
            (histogram.metric.name, histogram.labels): histogram.buckets[-1][1] for histogram in engine.latencies()
        }
        store_metrics = engine.tier.metrics().store - before
        assert counts[("stratalog_append_seconds", ())] == 3
        assert counts[("stratalog_fetch_seconds", ())] == 1
        assert counts[("stratalog_offload_seconds", ())] == 1
        for kind in REQUEST_KINDS:
            assert counts[("stratalog_tier_request_seconds", (kind,))] == getattr(store_metrics, kind).requests
        assert store_metrics.puts.requests == 3
        assert {name for name, _ in counts} == LATENCIES


def test_an_engine_without_a_tier(tmp_path: Path, clock: ManualClock, files: FaultyVfs) -> None:
    with open_engine([tmp_path / "a", tmp_path / "b"], env=Env(clock=clock, files=files)) as engine:
        engine.create_topic("orders", partitions=2)
        append(engine, b"one", b"two")
        log, metric_values = engine.log("orders", 0), metrics_of(engine)
        label, offsets = ("orders", "0"), log.offsets()
        assert metric_values["stratalog_logs"] == {(): 2}
        assert metric_values["stratalog_log_end_offset"] == {label: 2, ("orders", "1"): 0}
        assert metric_values["stratalog_log_start_offset"][label] == offsets.log_start
        assert metric_values["stratalog_log_recovery_point_offset"][label] == offsets.recovery_point
        assert metric_values["stratalog_log_local_segments"][label] == 3
        assert metric_values["stratalog_log_local_bytes"][label] == sum(
            path.stat().st_size for path in tmp_path.glob("*/orders-0/*.log")
        )
        assert metric_values["stratalog_log_leading"][label] == 1
        assert metric_values["stratalog_log_dir_offline"] == {(str(tmp_path / "a"),): 0, (str(tmp_path / "b"),): 0}
        assert not [name for name in metric_values if "tier" in name]
        log.follow(log.leader_epoch + 1)
        clock.advance_ms(2000)
        engine.run_duties()
        metric_values = metrics_of(engine)
        assert metric_values["stratalog_log_leading"][label] == 0
        assert metric_values["stratalog_log_leader_epoch"][label] == log.leader_epoch
        runs = {status.name: status.runs for status in engine.duties()}
        assert metric_values["stratalog_duty_runs_total"] == {(name,): count for name, count in runs.items()}
        assert runs["sync"] >= 1
        files.rule = failing("sync", errno.EIO)
        with pytest.raises(StorageError):
            engine.log("orders", 1).append([Record(value=b"x")], durability="durable")
        files.rule = None
        metric_values = metrics_of(engine)
        assert sum(metric_values["stratalog_log_dir_offline"].values()) == 1
        assert metric_values["stratalog_log_failed"][("orders", "1")] == 1


def test_an_engine_with_a_tier(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    with open_engine(tmp_path / "a", tier=f"file://{tmp_path / 'bucket'}") as engine:
        engine.create_topic("orders")
        append(engine, b"one", b"two")
        before, label = metrics_of(engine), ("orders", "0")
        (lag,) = engine.tier_lag()
        assert before["stratalog_log_tier_lag_segments"][label] == lag.segments == 2
        assert before["stratalog_log_tier_lag_bytes"][label] == lag.size_bytes
        engine.offload()
        after = metrics_of(engine)
        assert after["stratalog_log_tier_end_offset"][label] == 2
        assert after["stratalog_log_tier_segments"][label] == 2
        assert after["stratalog_log_tier_lag_bytes"][label] == 0
        assert after["stratalog_log_tier_failing"][label] == 0
        assert engine.tier is not None
        requests = engine.tier.metrics().store
        assert after["stratalog_tier_requests_total"][("puts",)] == requests.puts.requests >= 2
        assert sum(after["stratalog_tier_requests_total"].values()) == requests.requests
        assert {metric.name for metric in METRICS} - set(after) - LATENCIES == {"stratalog_listener_failures_total"}
        (tmp_path / "bucket").rename(tmp_path / "away")
        append(engine, b"three")
        with pytest.raises(StorageError):
            engine.offload()
        assert metrics_of(engine)["stratalog_log_tier_failing"][label] == 1
        (tmp_path / "away").rename(tmp_path / "bucket")


def test_the_failure_of_a_deleted_topic_is_forgotten(tmp_path: Path) -> None:
    bucket, away, label = tmp_path / "bucket", tmp_path / "away", ("orders", "0")
    bucket.mkdir()
    with open_engine(tmp_path / "a", tier=bucket.as_uri()) as engine:
        engine.create_topic("orders")
        append(engine, b"one", b"two")
        bucket.rename(away)
        with pytest.raises(StorageError):
            engine.offload()
        away.rename(bucket)
        engine.delete_topic("orders")
        engine.collect()
        engine.create_topic("orders")
        assert metrics_of(engine)["stratalog_log_tier_failing"][label] == 0


class Raising:
    @hookimpl
    def stratalog_on_segment_rolled(self, event: SegmentRolled) -> Sequence[object]:
        raise RuntimeError(f"a bug over {event.log}")


def test_listeners_that_raise_are_counted(tmp_path: Path) -> None:
    with open_engine(tmp_path, plugins=[Raising()]) as engine:
        engine.create_topic("orders")
        append(engine, b"one", b"two")
        tell_listeners(engine)
        (count,) = metrics_of(engine)["stratalog_listener_failures_total"].values()
        assert count == 2


def test_a_closed_engine_reports_nothing(tmp_path: Path) -> None:
    engine = open_engine(tmp_path)
    engine.close()
    with pytest.raises(ClosedError):
        engine.metrics()
