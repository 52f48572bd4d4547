from __future__ import annotations

from dataclasses import dataclass

import pytest

from stratalog.config.keys import Section, key
from stratalog.config.topic import TopicConfig
from stratalog.errors import ConfigError, UnknownSettingError

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1

# Kafka's own table of topic settings: name, default, smallest, largest.
KAFKA = [
    ("segment.bytes", 1073741824, 14, INT_MAX),
    ("segment.ms", 604800000, 1, LONG_MAX),
    ("segment.jitter.ms", 0, 0, LONG_MAX),
    ("segment.index.bytes", 10485760, 4, INT_MAX),
    ("index.interval.bytes", 4096, 0, INT_MAX),
    ("min.insync.replicas", 1, 1, INT_MAX),
    ("flush.messages", LONG_MAX, 1, LONG_MAX),
    ("flush.ms", LONG_MAX, 0, LONG_MAX),
    ("retention.ms", 604800000, -1, LONG_MAX),
    ("retention.bytes", -1, -(1 << 63), LONG_MAX),
    ("file.delete.delay.ms", 60000, 0, LONG_MAX),
    ("max.message.bytes", 1048588, 0, INT_MAX),
    ("compression.lz4.level", 9, 1, 17),
    ("compression.zstd.level", 3, -131072, 22),
    ("message.timestamp.before.max.ms", LONG_MAX, 0, LONG_MAX),
    ("message.timestamp.after.max.ms", LONG_MAX, 0, LONG_MAX),
    ("delete.retention.ms", 86400000, 0, LONG_MAX),
    ("min.compaction.lag.ms", 0, 0, LONG_MAX),
    ("max.compaction.lag.ms", LONG_MAX, 1, LONG_MAX),
    ("local.retention.ms", -2, -2, LONG_MAX),
    ("local.retention.bytes", -2, -2, LONG_MAX),
]


def topic(**values: object) -> TopicConfig:
    return TopicConfig.from_mapping({name.replace("_", "."): value for name, value in values.items()}, "test")


@pytest.mark.parametrize(("name", "default", "smallest", "largest"), KAFKA)
def test_numbers_are_kafkas(name: str, default: int, smallest: int, largest: int) -> None:
    assert TopicConfig().to_mapping()[name] == default
    for value in (smallest, largest):
        assert TopicConfig.from_mapping({name: value}, "test").to_mapping()[name] == value
    for value in (smallest - 1, largest + 1):
        with pytest.raises(ConfigError):
            TopicConfig.from_mapping({name: value}, "test")


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("cleanup.policy", "delete"),
        ("compression.type", "producer"),
        ("compression.gzip.level", -1),
        ("preallocate", False),
        ("message.timestamp.type", "CreateTime"),
        ("min.cleanable.dirty.ratio", 0.5),
        ("remote.storage.enable", False),
        ("remote.log.copy.disable", False),
        ("remote.log.delete.on.disable", False),
        ("unclean.leader.election.enable", False),
        ("leader.replication.throttled.replicas", ""),
        ("follower.replication.throttled.replicas", ""),
    ],
)
def test_other_defaults_are_kafkas(name: str, default: object) -> None:
    assert TopicConfig().to_mapping()[name] == default


@pytest.mark.parametrize("level", [-1, 1, 9])
def test_levels_of_gzip(level: int) -> None:
    assert topic(compression_gzip_level=level).compression_gzip_level == level


@pytest.mark.parametrize("level", [-2, 0, 10])
def test_no_levels_of_gzip(level: int) -> None:
    with pytest.raises(ConfigError, match="-1 or 1 to 9"):
        topic(compression_gzip_level=level)


def test_each_codec_has_a_level_of_its_own() -> None:
    config = topic(compression_gzip_level=4, compression_lz4_level=5, compression_zstd_level=6)
    assert [config.compression_level(codec) for codec in ("gzip", "lz4", "zstd", "snappy")] == [4, 5, 6, None]
    assert TopicConfig().compression_level("gzip") is None


def test_a_cleanup_policy_may_be_any_plugins() -> None:
    assert topic(cleanup_policy="compact,ttl").cleanup_policy == ("compact", "ttl")


def test_lags_must_not_cross() -> None:
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms must not be above max\.compaction\.lag\.ms"):
        topic(min_compaction_lag_ms=11, max_compaction_lag_ms=10)
    assert topic(min_compaction_lag_ms=10, max_compaction_lag_ms=10).min_compaction_lag_ms == 10


@pytest.mark.parametrize("unit", ["ms", "bytes"])
@pytest.mark.parametrize(
    ("total", "local", "is_allowed"),
    [
        (100, -2, True),
        (100, 100, True),
        (100, 0, True),
        (100, 101, False),
        (100, -1, False),
        (-1, -1, True),
        (-1, 5, True),
        (-1, -2, True),
    ],
)
def test_local_retention_stays_inside_the_whole(unit: str, total: int, local: int, is_allowed: bool) -> None:  # noqa: FBT001 - a column
    values = {f"retention.{unit}": total, f"local.retention.{unit}": local, "remote.storage.enable": True}
    if is_allowed:
        assert TopicConfig.from_mapping(values, "test").to_mapping(only_changed=True).items() <= values.items()
    else:
        with pytest.raises(
            ConfigError, match=rf"value {local} for configuration local\.retention\.{unit}: Value must not be"
        ):
            TopicConfig.from_mapping(values, "test")


@pytest.mark.parametrize("unit", ["ms", "bytes"])
@pytest.mark.parametrize(("local", "is_allowed"), [(-2, True), (100, True), (50, False)])
def test_without_copying_nothing_can_be_evicted_early(unit: str, local: int, is_allowed: bool) -> None:  # noqa: FBT001 - a column
    """Like Kafka, stratalog refuses local limits below the total ones if new segments are not copied to the tier."""
    values = {f"retention.{unit}": 100, f"local.retention.{unit}": local, "remote.log.copy.disable": True}
    values["remote.storage.enable"] = True
    if is_allowed:
        assert TopicConfig.from_mapping(values, "test").remote_log_copy_disable
    else:
        with pytest.raises(ConfigError, match=r"remote\.log\.copy\.disable"):
            TopicConfig.from_mapping(values, "test")


@pytest.mark.parametrize("copy_disabled", [False, True])
def test_local_retention_is_not_compared_without_remote_storage(*, copy_disabled: bool) -> None:
    """As in Kafka, ``local.retention.*`` has no effect then. The settings are compared when remote storage is enabled."""
    values = {"retention.ms": 100, "local.retention.ms": 200, "remote.log.copy.disable": copy_disabled}
    config = TopicConfig.from_mapping(values, "test")
    with pytest.raises(ConfigError, match=r"local\.retention\.ms"):
        config.replaced({"remote.storage.enable": True}, "test")


def test_settings_of_a_plugin_are_checked_together_too() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Pair(Section):
        least: int = key("pair.least", 0, doc="The one.")
        most: int = key("pair.most", 10, doc="The other.")

        def contradiction(self) -> str:
            return "" if self.least <= self.most else "pair.least is above pair.most"

    config = TopicConfig(sections={"pair": Pair()})
    assert config.replaced({"pair.least": 10}, "test").to_mapping()["pair.least"] == 10
    with pytest.raises(ConfigError, match=r"pair\.least is above pair\.most"):
        config.replaced({"pair.least": 11}, "test")
    assert config.merged({"pair.least": 11, "segment.ms": 5}, "test").to_mapping()["pair.least"] == 11
    with pytest.raises(ConfigError, match=r"pair\.least"):
        config.merged({"pair.least": "many"}, "test")


def test_local_limits_resolve_to_the_whole() -> None:
    total_only = topic(retention_ms=100, retention_bytes=200)
    assert (total_only.local_limit_ms, total_only.local_limit_bytes) == (100, 200)
    with_local = topic(retention_ms=100, retention_bytes=200, local_retention_ms=10, local_retention_bytes=20)
    assert (with_local.local_limit_ms, with_local.local_limit_bytes) == (10, 20)


@pytest.mark.parametrize(
    ("brokers", "ours"),
    [
        ("log.retention.ms", "retention.ms"),
        ("log.retention.hours", "retention.ms"),
        ("log.roll.ms", "segment.ms"),
        ("log.segment.bytes", "segment.bytes"),
        ("log.cleaner.min.compaction.lag.ms", "min.compaction.lag.ms"),
        ("log.cleaner.min.cleanable.ratio", "min.cleanable.dirty.ratio"),
        ("message.max.bytes", "max.message.bytes"),
        ("message.format.version", "record.version"),
    ],
)
def test_a_name_of_brokers_proposes_the_one_of_topics(brokers: str, ours: str) -> None:
    with pytest.raises(UnknownSettingError) as caught:
        TopicConfig.from_mapping({brokers: 1}, "test")
    assert (caught.value.nearest, caught.value.source) == (ours, "test")
    assert ours in TopicConfig.keys()  # noqa: SIM118 - a classmethod, not a dict


@pytest.mark.parametrize("name", ["leader.replication.throttled.replicas", "follower.replication.throttled.replicas"])
def test_throttled_replicas_are_pairs_or_all(name: str) -> None:
    for valid in ("", "*", "0:1", "0:1,1:2"):
        TopicConfig.from_mapping({name: valid}, "test")
    for invalid in ("x", "0", "0:1,*", "0:-1"):
        with pytest.raises(ConfigError):
            TopicConfig.from_mapping({name: invalid}, "test")
