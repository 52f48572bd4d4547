"""The policies that Kafka does not have: by version, and by record expiry."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cleaning_logs import LIMITS, local_plan
from log_bed import LogBed
from stratalog.cleaning.compact.compaction_round import CleanerLimits, CompactionResult, compact
from stratalog.cleaning.plan.log_summary import summarise
from stratalog.config.topic import TopicConfig
from stratalog.env.rate_limit import Throttle
from stratalog.errors import ConfigError
from stratalog.log.log import Log
from stratalog.model.records import Headers, Record
from stratalog.registry.registry import Registry
from stratalog.spi import CleanupPolicy, DeletePrefix
from stratalog.testing.contracts import CleanupPolicyContract
from stratalog_compaction.latest import LatestByHeaderPolicy, LatestByTimestampPolicy
from stratalog_compaction.sections import HeaderSection, TtlSection
from stratalog_compaction.ttl import TtlPolicy
from stratalog_compaction.versions import SLOT_BYTES


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[LogBed]:
    with LogBed(tmp_path / "data", Registry.load()) as log_bed:
        yield log_bed


def chance() -> random.Random:
    return random.Random(0)  # noqa: S311 - no secret here


class TestLatestByTimestamp(CleanupPolicyContract):
    @pytest.fixture
    def policy(self) -> CleanupPolicy:
        return LatestByTimestampPolicy(chance())


class TestLatestByHeader(CleanupPolicyContract):
    @pytest.fixture
    def policy(self) -> CleanupPolicy:
        return LatestByHeaderPolicy(chance())


class TestTtl(CleanupPolicyContract):
    @pytest.fixture
    def policy(self) -> CleanupPolicy:
        return TtlPolicy()


def configured(policy: str, **settings: object) -> TopicConfig:
    """Return settings of a topic, with the sections of the providers. In names, ``__`` stands for a dot."""
    defaults = TopicConfig(sections={"latest_by_header": HeaderSection(), "ttl": TtlSection()})
    base = {
        "cleanup.policy": policy,
        "segment.bytes": 4000,
        "min.cleanable.dirty.ratio": 0,
        "delete.retention.ms": 10_000,
    }
    dotted_settings = {name.replace("__", "."): value for name, value in settings.items()}
    return defaults.replaced({**base, "file.delete.delay.ms": 0, **dotted_settings}, "test")


def opened(bed: LogBed, policy: str, **settings: object) -> Log:
    bed.topic = configured(policy, **settings)
    return bed.open()


def clean(bed: LogBed, log: Log, limits: CleanerLimits = LIMITS) -> CompactionResult:
    policies = {name: bed.host.policy(name) for name in log.config.cleanup_policy}
    plan = local_plan(log, policies, bed.clock.now_ms())
    assert plan.rewrite is not None, plan
    result = compact(plan, policies, limits, Throttle(bed.clock, 1e15), lambda: None, bed.clock.now_ms())
    assert (result.error, result.stopped) == (None, "")
    return result


def add(
    log: Log, key: bytes | None, value: bytes | None, *, at_ms: int = 1, headers: Headers = (), roll: bool = True
) -> None:
    log.append([Record(key=key, value=value, timestamp_ms=at_ms, headers=headers)])
    if roll:
        log.roll()


def left(log: Log) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in log.records()]


# --- by version ------------------------------------------------------------------------------------------------------


def test_the_greatest_timestamp_of_a_key_stays_in_any_order(bed: LogBed) -> None:
    log = opened(bed, "latest_by_timestamp")
    for at_ms, value in ((5, b"five"), (9, b"nine"), (7, b"seven"), (9, b"nine again")):
        add(log, b"k", value, at_ms=at_ms)
    add(log, b"other", b"v")
    clean(bed, log)
    assert left(log) == [(3, b"nine again"), (4, b"v")]


def test_a_late_record_loses_against_what_an_earlier_round_kept(bed: LogBed) -> None:
    """The filter observes only dirty records. It compares them with records of earlier rounds when it judges these."""
    log = opened(bed, "latest_by_timestamp")
    add(log, b"k", b"new", at_ms=100)
    add(log, b"q", b"old", at_ms=100)
    clean(bed, log)
    add(log, b"k", b"late", at_ms=50)
    add(log, b"q", b"newer", at_ms=200)
    clean(bed, log)
    assert left(log) == [(0, b"new"), (3, b"newer")]


@pytest.mark.parametrize(("encoding", "versions"), [("text", (b"12", b"-3", b"x")), ("int64", (12, -3, b"123"))])
def test_versions_are_read_from_a_header(bed: LogBed, encoding: str, versions: tuple[bytes | int, ...]) -> None:
    log = opened(bed, "latest_by_header", latest_by_header__name="v", latest_by_header__encoding=encoding)
    for number in versions:
        raw = number if isinstance(number, bytes) else number.to_bytes(8, "big", signed=True)
        add(log, b"k", b"%d" % versions.index(number), headers=(("v", b"9" * 30), ("v", raw)))
    add(log, b"k", b"none")
    add(log, b"unversioned", b"first")
    add(log, b"unversioned", b"second")
    clean(bed, log)
    assert left(log) == [(0, b"0"), (4, b"first"), (5, b"second")][::2]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.long
def test_after_any_rounds_each_key_has_its_greatest_version(bed: LogBed, seed: int) -> None:
    """A small memory limit ends rounds early. After each round, the greatest version of each key is there."""
    draw = random.Random(seed)  # noqa: S311 - no secret here
    log = opened(bed, "latest_by_timestamp", segment__bytes=600)
    limits = replace(LIMITS, memory_bytes=SLOT_BYTES * 8)
    greatest: dict[bytes, tuple[int, int]] = {}
    for _ in range(5):
        for _ in range(draw.randrange(5, 30)):
            key, at_ms = b"k%d" % draw.randrange(12), draw.randrange(40)
            offset = log.append([Record(key=key, value=b"v" * 20, timestamp_ms=at_ms)]).base_offset
            greatest[key] = max(greatest.get(key, (-1, -1)), (at_ms, offset))
            if draw.random() < 0.2:
                log.roll()
        log.roll()
        rounds = 0
        while log.maintenance.cleaning.dirty_start != log.offsets().log_end:
            clean(bed, log, limits)
            rounds += 1
            log_offsets = {record.offset for record in log.records()}
            assert {offset for _, offset in greatest.values()} <= log_offsets
            assert rounds < 200
        assert log_offsets == {offset for _, offset in greatest.values()}
    bed.close()
    assert {record.offset for record in bed.open(clean=False).records()} == log_offsets


def test_two_policies_that_keep_one_record_a_key_are_refused(bed: LogBed) -> None:
    """Each policy would delete the record that the other one keeps, so that no record of a key might remain."""
    log = opened(bed, "compact,latest_by_timestamp")
    add(log, b"k", b"v")
    policies = {name: bed.host.policy(name) for name in log.config.cleanup_policy}
    plan = local_plan(log, policies)
    assert isinstance(plan.error, ConfigError)
    assert "latest_by_timestamp" in str(plan.error)
    assert left(log) == [(0, b"v")]


# --- expiry ----------------------------------------------------------------------------------------------------------


def test_expired_records_are_dropped_from_between_the_others(bed: LogBed) -> None:
    log = opened(bed, "ttl", ttl__ms=1000)
    now_ms = bed.clock.now_ms()
    for age_ms, value in ((0, b"young"), (1001, b"old"), (1000, b"just"), (5000, None)):
        add(log, None, value, at_ms=now_ms - age_ms, roll=False)
    add(log, None, b"no time", at_ms=-1)
    clean(bed, log)
    assert left(log) == [(0, b"young"), (2, b"just"), (4, b"no time")]


@pytest.mark.parametrize("encoding", ["text", "int64"])
def test_a_header_holds_the_expiry_time_of_its_record(bed: LogBed, encoding: str) -> None:
    log = opened(bed, "ttl", ttl__header="expires", ttl__header__encoding=encoding)
    now_ms = bed.clock.now_ms()
    for at_ms in (now_ms, now_ms + 1, None):
        raw = b"never" if at_ms is None else b"%d" % at_ms if encoding == "text" else at_ms.to_bytes(8, "big")
        add(log, b"k", b"v", headers=(("expires", raw),), roll=False)
    add(log, b"k", b"plain")
    clean(bed, log)
    assert [offset for offset, _ in left(log)] == [1, 2, 3]


def test_a_segment_that_expired_whole_is_deleted_whole(bed: LogBed) -> None:
    log = opened(bed, "ttl", ttl__ms=1000)
    for age_ms in (5000, 3000, 0, 3000):
        add(log, None, b"v", at_ms=bed.clock.now_ms() - age_ms)
    first = TtlPolicy().plan(summarise(log, has_tier=False), log.config, bed.clock.now_ms())[0]
    assert isinstance(first, DeletePrefix)
    assert (first.end, "ttl.ms=1000" in first.reason) == (2, True)


def test_ttl_can_be_combined_with_compaction(bed: LogBed) -> None:
    """A record is deleted if one of the two policies deletes it.

    If the newest record of a key has expired, no record of the key remains.
    """
    log = opened(bed, "compact,ttl", ttl__ms=1000)
    now_ms = bed.clock.now_ms()
    for key, age_ms in ((b"a", 0), (b"a", 5000), (b"b", 5000), (b"b", 0), (b"c", 0)):
        add(log, key, b"v", at_ms=now_ms - age_ms)
    clean(bed, log)
    assert [offset for offset, _ in left(log)] == [3, 4]


def test_without_settings_nothing_expires(bed: LogBed) -> None:
    log = opened(bed, "ttl")
    add(log, None, b"v", at_ms=0)
    clean(bed, log)
    assert left(log) == [(0, b"v")]


@pytest.mark.parametrize("policy", ["ttl", "compact,ttl"])
def test_segments_of_which_nothing_expired_are_not_read(bed: LogBed, policy: str) -> None:
    """Facts about a segment that were recorded in an earlier round stay correct if settings change later."""
    log = opened(bed, policy, segment__bytes=100, ttl__ms=1000, ttl__header="expires")
    now_ms = bed.clock.now_ms()
    # Not expired, so that the expired segments are no prefix, which would be deleted without a read.
    add(log, b"first", b"v", at_ms=now_ms + 10**6)
    add(log, b"a", b"v", at_ms=now_ms)
    add(log, b"c", b"v", at_ms=now_ms, headers=(("expires", b"%d" % (now_ms + 500)),))
    clean(bed, log)
    spared = []
    for later_ms in (499, 1, 501):
        bed.clock.advance_ms(later_ms)
        add(log, b"d-%d" % later_ms, b"v", at_ms=bed.clock.now_ms())
        spared.append(clean(bed, log).stats.segments_spared)
    assert spared[0] == 3
    assert [offset for offset, _ in left(log)] == [0, 3, 4, 5]
    bed.close()
    log = opened(bed, policy, segment__bytes=100, ttl__ms=10, ttl__header="expires")
    log.maintenance.resume_cleaning(6)
    add(log, b"e", b"v", at_ms=bed.clock.now_ms())
    clean(bed, log)
    assert [offset for offset, _ in left(log)] == [0, 5, 6]
