"""The model of a directory and its tier: segments of both tiers, next actions, transactions, groups, cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog import Record, TopicPartition, open_engine, open_reader
from stratalog.cleaning.explain.explain import Fate
from stratalog.cli.views.overview import Detail, Overview, Place, Span, collect, join_spans
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from viewed_place import T0_MS, make_place

ALL = Detail(bill=True, orphans=True)
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_place(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="module")
def found(place: tuple[str, str]) -> Overview:
    data, uri = place
    with open_reader(data, tier=uri) as reader:
        return collect(reader, ManualClock(T0_MS + HOUR_MS), ALL)


def test_spans_cover_the_log_and_name_their_tiers(place: tuple[str, str], found: Overview) -> None:
    data, uri = place
    (orders,) = (log for log in found.logs if log.name == TopicPartition("orders", 0))
    with open_reader(data, tier=uri) as reader:
        segments, offsets = reader.log("orders", 0).segments(), reader.log("orders", 0).offsets()
    assert [(span.start, span.end, span.size_bytes) for span in orders.spans] == [
        (segment.base_offset, segment.end_offset, segment.size_bytes) for segment in segments
    ]
    assert {span.place for span in orders.spans} == {Place.TIER, Place.BOTH, Place.ACTIVE}
    assert orders.offsets == offsets
    assert orders.local_bytes == sum(segment.size_bytes for segment in segments if segment.is_local)
    assert orders.tier_bytes == sum(segment.size_bytes for segment in segments if segment.is_remote)
    assert orders.segments == len(segments)
    assert orders.tier is not None
    assert orders.tier.bill is not None
    assert (
        orders.tier.bill.segments == orders.tier.segments == len([segment for segment in segments if segment.is_remote])
    )


def test_times_begin_at_the_oldest_record_and_follow_each_other(found: Overview) -> None:
    (orders,) = (log for log in found.logs if log.name == TopicPartition("orders", 0))
    assert orders.spans[0].first_ms == T0_MS
    assert [span.first_ms for span in orders.spans[1:]] == [span.last_ms for span in orders.spans[:-1]]


def test_open_transactions_have_their_age(found: Overview) -> None:
    (payments,) = (log for log in found.logs if log.name.topic == "payments")
    (transaction,) = payments.transactions
    assert (transaction.producer_id, transaction.first_offset, transaction.age_ms) == (7, 0, HOUR_MS)
    assert transaction.is_long


def test_a_topic_outside_the_tier_has_nothing_to_offload(found: Overview) -> None:
    (profiles,) = (log for log in found.logs if log.name.topic == "profiles")
    assert profiles.tier is None
    assert profiles.waiting_bytes == 0
    assert profiles.dirty_ratio == 1.0


def test_groups_have_their_lag(found: Overview) -> None:
    ends = {log.name: log.offsets.high_watermark for log in found.logs}
    assert [(group.group, group.name, group.committed, group.lag) for group in found.groups] == [
        ("billing", TopicPartition("orders", 0), 30, ends[TopicPartition("orders", 0)] - 30),
        ("billing", TopicPartition("orders", 1), 5, ends[TopicPartition("orders", 1)] - 5),
    ]


def test_the_forecast_agrees_with_the_engine(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("t", config={"retention.ms": 100_000, "segment.bytes": 1000})
        log = engine.log("t", 0)
        for number in range(10):
            log.append([Record(value=b"v" * 600, timestamp_ms=T0_MS + number * 50_000)])
    now = ManualClock(T0_MS + 250_000)
    with open_reader(tmp_path) as reader:
        (log_overview,) = collect(reader, now).logs
    with open_engine(tmp_path, env=Env(clock=now)) as engine:
        expected = engine.why_kept("t", 0).ranges
    assert Fate.DELETE in {kept_range.fate for kept_range in expected}
    assert [(span.start, span.end, span.fate, span.when_ms, span.reason) for span in log_overview.spans] == [
        (kept_range.start, kept_range.end, kept_range.fate, kept_range.when_ms, kept_range.reason)
        for kept_range in expected
    ]


def test_a_tier_alone_knows_the_settings_of_its_topics(place: tuple[str, str]) -> None:
    with open_reader(place[1]) as reader:
        logs = collect(reader, ManualClock(T0_MS), ALL).logs
        assert reader.topic_config(TopicPartition("orders", 0)).segment_bytes == 16_384
    assert [str(log.name) for log in logs if log.spans] == ["orders-0", "orders-1"]
    assert {span.place for log in logs for span in log.spans} == {Place.TIER}


def test_orphans_are_counted(tmp_path: Path) -> None:
    data, uri = make_place(tmp_path)
    log_object = next(path for path in (tmp_path / "tier").rglob("*") if path.is_file() and "segments" in path.parts)
    log_object.with_name(f"9{log_object.name[1:]}").write_bytes(b"left")
    with open_reader(data, tier=uri) as reader:
        logs = collect(reader, ManualClock(T0_MS), ALL).logs
    assert sum(log.tier.orphans or 0 for log in logs if log.tier is not None) == 1


def test_a_damaged_log_does_not_hide_the_others(tmp_path: Path) -> None:
    with open_engine(tmp_path) as engine:
        engine.create_topic("a")
        engine.create_topic("b")
    (tmp_path / "a-0" / "partition.metadata").write_bytes(b"nonsense")
    with open_reader(tmp_path) as reader:
        logs = collect(reader, ManualClock(T0_MS)).logs
    assert [bool(log.error) for log in logs] == [True, False]


def test_logs_are_closed_one_by_one(place: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with open_reader(place[0], tier=place[1]) as reader:
        max_open = 0
        release = reader.release

        def counted(name: TopicPartition) -> None:
            nonlocal max_open
            max_open = max(max_open, len(reader._logs))  # noqa: SLF001 - no public name tells which logs are open
            release(name)

        monkeypatch.setattr(reader, "release", counted)
        collect(reader, ManualClock(T0_MS))
    assert max_open == 1


def test_very_many_segments_are_joined_evenly() -> None:
    spans = [
        Span(offset, offset + 1, 10, offset, offset + 1, Place.TIER if offset < 900 else Place.LOCAL)
        for offset in range(1000)
    ]
    joined_spans = join_spans(spans, 100)
    assert len(joined_spans) <= 101
    assert max(span.segments for span in joined_spans) == 10
    assert (sum(span.size_bytes for span in joined_spans), sum(span.segments for span in joined_spans)) == (
        10_000,
        1000,
    )
    assert [span.start for span in joined_spans[1:]] == [span.end for span in joined_spans[:-1]]
    assert join_spans(spans[:100], 100) == tuple(spans[:100])
