"""Topic settings: those of Kafka's LogConfig with Kafka's names, defaults and bounds, and those that stratalog adds.

Source: apache/kafka LogConfig, TopicConfig; KIP-405 for the remote settings.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from stratalog.config.keys import INT_MAX, LONG_MAX, Section, flat_names, key
from stratalog.errors import UnknownSettingError

USE_TOTAL: Final = -2  # local.retention.*: "the same as retention.*"
UNLIMITED: Final = -1
NO_EFFECT: Final = "no effect here"  # for settings that only a broker uses: they can be set, and are stored
COMPRESSION_CHOICES: Final = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")

# A broker's default settings of topics whose names differ from the topic settings' names. All other such settings only
# have a prefix. Source: apache/kafka ServerTopicConfigSynonyms.
_BROKER_PREFIXES: Final = ("log.cleaner.", "log.")
_BROKER_NAMES: Final = {
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.flush.interval.messages": "flush.messages",
    "log.flush.interval.ms": "flush.ms",
    "log.flush.scheduler.interval.ms": "flush.ms",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.message.format.version": "record.version",
    "log.retention.hours": "retention.ms",
    "log.retention.minutes": "retention.ms",
    "log.roll.hours": "segment.ms",
    "log.roll.jitter.hours": "segment.jitter.ms",
    "log.roll.jitter.ms": "segment.jitter.ms",
    "log.roll.ms": "segment.ms",
    "log.segment.delete.delay.ms": "file.delete.delay.ms",
    "message.format.version": "record.version",
    "message.max.bytes": "max.message.bytes",
}


def _throttled(value: tuple[str, ...]) -> str:
    """Return the reason why throttled replicas are wrong, or "". Source: apache/kafka ThrottledReplicaListValidator."""
    is_right = value == ("*",) or all(re.fullmatch(r"\d+:\d+", item) for item in value)
    return "" if is_right else "must be * or a list of PARTITION:BROKER"


def _gzip_level(value: int) -> str:
    return "" if value == -1 or 1 <= value <= 9 else "must be -1 or 1 to 9"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig(Section):
    """The settings of one topic. Settings of Kafka have the same names and meanings as in Kafka.

    ``sections`` holds the settings of plugins, by provider name. It also determines which names of plugins are known.
    """

    title: ClassVar[str] = "Topic settings"

    cleanup_policy: tuple[str, ...] = key(
        "cleanup.policy", ("delete",), doc="A comma list of cleanup policies; delete and compact are Kafka's."
    )
    compression_type: str = key(
        "compression.type",
        "producer",
        choices=COMPRESSION_CHOICES,
        doc="The codec on disk; producer keeps the client's.",
    )
    compression_gzip_level: int = key(
        "compression.gzip.level", -1, check=_gzip_level, doc="1 to 9; -1 is zlib's default."
    )
    compression_lz4_level: int = key("compression.lz4.level", 9, at_least=1, at_most=17, doc="The level for lz4.")
    compression_zstd_level: int = key(
        "compression.zstd.level", 3, at_least=-131072, at_most=22, doc="The level for zstd."
    )
    segment_bytes: int = key(
        "segment.bytes",
        1 << 30,
        at_least=14,
        at_most=INT_MAX,
        doc="Roll before passing this size. Kafka's least is 1 MiB since 4.0, and was this before.",
    )
    segment_ms: int = key("segment.ms", 604_800_000, at_least=1, doc="Roll a segment whose records span this time.")
    segment_jitter_ms: int = key(
        "segment.jitter.ms", 0, at_least=0, doc="Up to this is taken off segment.ms at random, to spread rolls."
    )
    segment_index_bytes: int = key(
        "segment.index.bytes", 10_485_760, at_least=4, at_most=INT_MAX, doc="The largest size of an index file."
    )
    index_interval_bytes: int = key(
        "index.interval.bytes",
        4096,
        at_least=0,
        at_most=INT_MAX,
        doc="An index entry about every so many bytes of log.",
    )
    preallocate: bool = key("preallocate", False, doc="Allocate a segment file at its full size when it is made.")
    max_message_bytes: int = key(
        "max.message.bytes", 1_048_588, at_least=0, at_most=INT_MAX, doc="The largest batch an append may hold."
    )
    message_timestamp_type: str = key(
        "message.timestamp.type",
        "CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        doc="Whether records keep the producer's time or get the time of the append.",
    )
    message_timestamp_before_max_ms: int = key(
        "message.timestamp.before.max.ms", LONG_MAX, at_least=0, doc="How far in the past a CreateTime may lie."
    )
    message_timestamp_after_max_ms: int = key(
        "message.timestamp.after.max.ms",
        LONG_MAX,
        at_least=0,
        doc="How far in the future a CreateTime may lie. Kafka's default is an hour (3600000) since 4.0, and was this before.",
    )
    retention_ms: int = key(
        "retention.ms",
        604_800_000,
        at_least=UNLIMITED,
        doc="Delete segments whose newest record is older; -1 keeps all.",
    )
    retention_bytes: int = key(
        "retention.bytes", UNLIMITED, doc="Delete the oldest segments of a partition above this size; -1 keeps all."
    )
    local_retention_ms: int = key(
        "local.retention.ms", USE_TOTAL, at_least=USE_TOTAL, doc="retention.ms for local disk; -2 means retention.ms."
    )
    local_retention_bytes: int = key(
        "local.retention.bytes",
        USE_TOTAL,
        at_least=USE_TOTAL,
        doc="retention.bytes for local disk; -2 means retention.bytes.",
    )
    remote_storage_enable: bool = key("remote.storage.enable", False, doc="Move closed segments to the engine's tier.")
    remote_log_copy_disable: bool = key(
        "remote.log.copy.disable", False, doc="Stop copying; what is there stays readable."
    )
    remote_log_delete_on_disable: bool = key(
        "remote.log.delete.on.disable",
        False,
        doc="Needed to turn remote.storage.enable off: all that the tier has of the topic is deleted then.",
    )
    delete_retention_ms: int = key(
        "delete.retention.ms", 86_400_000, at_least=0, doc="How long compaction keeps tombstones."
    )
    min_cleanable_dirty_ratio: float = key(
        "min.cleanable.dirty.ratio",
        0.5,
        at_least=0,
        at_most=1,
        doc="Compact when more than this share of a log is dirty.",
    )
    min_compaction_lag_ms: int = key(
        "min.compaction.lag.ms", 0, at_least=0, doc="Leave segments with younger records uncompacted."
    )
    max_compaction_lag_ms: int = key(
        "max.compaction.lag.ms",
        LONG_MAX,
        at_least=1,
        doc="Compact a log with an older dirty record however clean it is; a topic to be compacted rolls after this time.",
    )
    file_delete_delay_ms: int = key(
        "file.delete.delay.ms", 60_000, at_least=0, doc="How long a deleted segment's files stay under .deleted."
    )
    flush_messages: int = key(
        "flush.messages",
        LONG_MAX,
        at_least=1,
        doc="Sync when an append leaves so many records (offsets) that are not synced.",
    )
    flush_ms: int = key(
        "flush.ms",
        LONG_MAX,
        at_least=0,
        doc="The background duties sync after this time, looked at about once a second.",
    )
    record_version: int = key("record.version", 2, at_least=0, at_most=2, doc="The record format that appends write.")
    index_formats: tuple[str, ...] = key(
        "index.formats", ("offset", "time", "transaction"), doc="The index formats of new segments, by name."
    )
    index_extra: tuple[str, ...] = key(
        "index.extra",
        (),
        doc="EXTRA indexes of plugins, by name: made of closed segments in the background, and sent to the tier along.",
    )
    segment_offload_delay_ms: int = key(
        "segment.offload.delay.ms",
        0,
        at_least=0,
        doc="Move a closed segment to the tier only when it was last written to so long ago.",
    )
    local_hard_limit_bytes: int = key(
        "local.hard.limit.bytes",
        UNLIMITED,
        at_least=UNLIMITED,
        doc="With a tier: what a partition may have on local disk. Above three quarters of it, segments leave that the tier "
        "has; above all of it, tier.outage.policy says what appends do. -1 is no limit.",
    )
    tier_outage_policy: str = key(
        "tier.outage.policy",
        "grow",
        choices=("block", "reject", "grow"),
        doc="Appends above local.hard.limit.bytes wait for room (tier.outage.block.ms), are refused, or go on.",
    )
    tier_outage_block_ms: int = key(
        "tier.outage.block.ms",
        60_000,
        at_least=0,
        doc="How long an append waits for room with tier.outage.policy=block; then it is refused.",
    )
    tier_layout: str = key("tier.layout", "single", doc="How a segment becomes objects, by the layout's name.")
    min_insync_replicas: int = key(
        "min.insync.replicas", 1, at_least=1, at_most=INT_MAX, doc=f"Has {NO_EFFECT}: a log has one replica."
    )
    unclean_leader_election_enable: bool = key(
        "unclean.leader.election.enable",
        False,
        doc="A log that leads, and lacks records that its tier has of leaders before, cuts them off the tier; else it is not "
        "offloaded.",
    )
    message_downconversion_enable: bool = key(
        "message.downconversion.enable", True, doc=f"Has {NO_EFFECT}: a fetch gives batches as they are stored."
    )
    leader_replication_throttled_replicas: tuple[str, ...] = key(
        "leader.replication.throttled.replicas",
        (),
        check=_throttled,
        doc=f"Has {NO_EFFECT}: nothing is sent to replicas.",
    )
    follower_replication_throttled_replicas: tuple[str, ...] = key(
        "follower.replication.throttled.replicas",
        (),
        check=_throttled,
        doc=f"Has {NO_EFFECT}: nothing is fetched from a leader.",
    )
    sections: Mapping[str, Section] = dataclasses.field(default_factory=dict, hash=False)

    def merged(self, values: Mapping[str, object], source: str) -> Self:
        """Return a merged copy as ``Section.merged`` does, including settings of plugins."""
        flat = flat_names(values, source)
        sections = dict(self.sections)
        for name, section in sections.items():
            theirs = {found: flat.pop(found) for found in section.keys() & flat.keys()}
            if theirs:
                sections[name] = section.merged(theirs, source)
        known = {*type(self).keys(), *self.names_of_plugins()}
        for name in flat.keys() - known:
            meant = _of_broker(name)
            nearest = meant or next(iter(difflib.get_close_matches(name, sorted(known), n=1)), "")
            is_foreign = is_of_plugin(name) and not meant
            where = f"{source} (no plugin with such settings is installed)" if is_foreign else source
            raise UnknownSettingError(name, where, nearest)
        return dataclasses.replace(Section.merged(self, flat, source), sections=sections)

    def to_mapping(self, *, only_changed: bool = False) -> dict[str, object]:
        """Return names and values as ``Section.to_mapping`` does, including settings of plugins."""
        result = Section.to_mapping(self, only_changed=only_changed)
        for section in self.sections.values():
            result |= section.to_mapping(only_changed=only_changed)
        return result

    def names_of_plugins(self) -> frozenset[str]:
        """Return the names of the plugins' settings."""
        return frozenset(name for section in self.sections.values() for name in section.keys())  # noqa: SIM118 - a classmethod, not a dict

    def known(self, values: Mapping[str, object]) -> dict[str, object]:
        """Return ``values`` without settings of plugins that are not installed."""
        theirs = self.names_of_plugins()
        return {name: value for name, value in values.items() if name in theirs or not is_of_plugin(name)}

    def recognised(self, values: Mapping[str, object]) -> dict[str, object]:
        """Return those of the stored ``values`` that stratalog or an installed plugin knows."""
        names = {*type(self).keys(), *self.names_of_plugins()}
        return {name: value for name, value in values.items() if name in names}

    def contradiction(self) -> str:
        """Return the first broken rule between settings, or "".

        Source: apache/kafka LogConfig.validateValues, validateRemoteStorage...
        """
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            return "min.compaction.lag.ms must not be above max.compaction.lag.ms"
        for name, total, local in (
            ("ms", self.retention_ms, self.local_retention_ms),
            ("bytes", self.retention_bytes, self.local_retention_bytes),
        ):
            if self.remote_log_copy_disable and local not in {USE_TOTAL, total}:
                return (
                    f"Invalid value {local} for configuration local.retention.{name}: When `remote.log.copy.disable` is set "
                    f"to true, the `local.retention.{name}` and `retention.{name}` must be set to the identical value because "
                    "there will be no more logs copied to the remote storage."
                )
            if local == USE_TOTAL or total < 0:
                continue
            invalid = f"Invalid value {local} for configuration local.retention.{name}: Value must not be"
            if local == UNLIMITED:
                return f"{invalid} -1 as retention.{name} value is set as {total}."
            if local > total:
                return f"{invalid} more than property: retention.{name} value."
        return next((wrong for section in self.sections.values() if (wrong := section.contradiction())), "")

    @property
    def local_limit_ms(self) -> int:
        """local.retention.ms with -2 resolved."""
        return self.retention_ms if self.local_retention_ms == USE_TOTAL else self.local_retention_ms

    @property
    def local_limit_bytes(self) -> int:
        """local.retention.bytes with -2 resolved."""
        return self.retention_bytes if self.local_retention_bytes == USE_TOTAL else self.local_retention_bytes

    def compression_level(self, codec: str) -> int | None:
        """Return the configured level for this codec, or None for the codec's own default."""
        if codec == "gzip":
            return None if self.compression_gzip_level == -1 else self.compression_gzip_level
        return {"lz4": self.compression_lz4_level, "zstd": self.compression_zstd_level}.get(codec)


def _of_broker(name: str) -> str:
    """Return the topic setting that a broker's setting is the default of, or "" if there is none."""
    known = TopicConfig.keys()
    without = (name.removeprefix(prefix) for prefix in _BROKER_PREFIXES if name.startswith(prefix))
    return _BROKER_NAMES.get(name) or next((found for found in without if found in known), "")


def is_of_plugin(name: str) -> bool:
    """Return True if only a plugin can have this setting: no setting of Kafka or stratalog has the same first word."""
    first, mark, _ = name.partition(".")
    return bool(mark) and first not in _first_words()


@functools.cache  # called for each setting of each topic that an engine opens
def _first_words() -> frozenset[str]:
    return frozenset(known.partition(".")[0] for known in TopicConfig.keys())  # noqa: SIM118 - a classmethod, not a dict
