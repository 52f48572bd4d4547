"""Topic settings: Kafka's settings (LogConfig) with their names, defaults and bounds, and settings of stratalog.

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

USE_TOTAL: Final = -2  # local.retention.*: use the value of retention.*
UNLIMITED: Final = -1
NO_EFFECT: Final = "no effect"  # description of settings that only a broker uses; an engine stores them
NO_CODEC: Final = ("producer", "uncompressed")  # words of compression.type that name no codec
_WORD: Final = re.compile(r"[a-z][a-z0-9_]*\Z")

# A broker setting sets the default of a topic setting. Usually its name is a prefix of _BROKER_PREFIXES, followed by
# the name of the topic setting. _BROKER_NAMES maps all other broker settings to their topic settings. Source:
# apache/kafka ServerTopicConfigSynonyms.
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


def _check_throttled(value: tuple[str, ...]) -> str:
    """Return an error text if a list of throttled replicas is invalid, or "".

    Source: apache/kafka ThrottledReplicaListValidator.
    """
    is_right = value == ("*",) or all(re.fullmatch(r"\d+:\d+", item) for item in value)
    return "" if is_right else "must be * or a list of PARTITION:BROKER"


def _compression(value: str) -> str:
    """Return an error text if ``value`` cannot be the name of a codec, or "". The codec need not be installed."""
    return "" if _WORD.match(value) else "must be producer, uncompressed, or the name of a codec"


def _record_version(value: int | str) -> str:
    """Return an error text if ``value`` cannot name a record format, or "". The format need not be installed."""
    return "" if isinstance(value, int) or _WORD.match(value) else "must be 0, 1, 2, or the name of a record format"


def _gzip_level(value: int) -> str:
    return "" if value == -1 or 1 <= value <= 9 else "must be -1 or 1 to 9"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig(Section):
    """The settings of one topic. Kafka's settings have their names and meanings in Kafka.

    ``sections`` holds the topic settings of plugins, by provider name. If a provider has no section, its settings are
    unknown names. ``refusal`` is normally "". If a plugin refuses a stored setting of the topic, ``refusal`` is the
    error text, ``sections`` holds defaults instead of the stored values, and no cleanup policy may run on the topic.
    """

    title: ClassVar[str] = "Topic settings"

    # One entry for each setting, not one line for each argument:
    # fmt: off
    cleanup_policy: tuple[str, ...] = key("cleanup.policy", ("delete",),
        doc="Cleanup policies, as a list with commas. Kafka has delete and compact.")
    compression_type: str = key("compression.type", "producer", check=_compression,
        doc="Codec of stored batches. `producer` keeps the producer's codec, and `uncompressed` decompresses every "
        "batch. Any other value is the name of an installed codec: `gzip`, `snappy`, `lz4`, `zstd`, or a plugin's "
        "codec. The topic setting `NAME.level` is the level of the plugin's codec NAME.")
    compression_gzip_level: int = key("compression.gzip.level", -1, check=_gzip_level,
        doc="Level for gzip, 1 to 9; -1 is zlib's default.")
    compression_lz4_level: int = key("compression.lz4.level", 9, at_least=1, at_most=17, doc="Level for lz4.")
    compression_zstd_level: int = key("compression.zstd.level", 3, at_least=-131072, at_most=22, doc="Level for zstd.")
    segment_bytes: int = key("segment.bytes", 1 << 30, at_least=14, at_most=INT_MAX,
        doc="Maximum size of a segment; the log rolls before an append exceeds it. Kafka 4.0 increased the minimum "
        "from 14 bytes to 1 MiB.")
    segment_ms: int = key("segment.ms", 604_800_000, at_least=1,
        doc="Time span of a segment's records at which the log rolls.")
    segment_jitter_ms: int = key("segment.jitter.ms", 0, at_least=0,
        doc="Maximum random reduction of segment.ms, which spreads rolls over time.")
    segment_index_bytes: int = key("segment.index.bytes", 10_485_760, at_least=4, at_most=INT_MAX,
        doc="Maximum size of an index file.")
    index_interval_bytes: int = key("index.interval.bytes", 4096, at_least=0, at_most=INT_MAX,
        doc="Approximate number of log bytes between two index entries.")
    preallocate: bool = key("preallocate", False, doc="Allocate the full size of a segment file when it is created.")
    max_message_bytes: int = key("max.message.bytes", 1_048_588, at_least=0, at_most=INT_MAX,
        doc="Maximum size of an appended batch.")
    message_timestamp_type: str = key("message.timestamp.type", "CreateTime", choices=("CreateTime", "LogAppendTime"),
        doc="CreateTime keeps the producer's timestamps; LogAppendTime replaces them with the time of the append.")
    message_timestamp_before_max_ms: int = key("message.timestamp.before.max.ms", LONG_MAX, at_least=0,
        doc="Maximum time by which a CreateTime timestamp may be before the time of the append.")
    message_timestamp_after_max_ms: int = key("message.timestamp.after.max.ms", LONG_MAX, at_least=0,
        doc="Maximum time by which a CreateTime timestamp may be after the time of the append. Kafka 4.0 changed its "
        "default from this value to an hour (3600000).")
    retention_ms: int = key("retention.ms", 604_800_000, at_least=UNLIMITED,
        doc="Delete a segment when its newest record is older than this time. -1 means no limit.")
    retention_bytes: int = key("retention.bytes", UNLIMITED,
        doc="Delete the oldest segments of a partition if the remaining segments have at least this size. -1 means no "
        "limit.")
    local_retention_ms: int = key("local.retention.ms", USE_TOTAL, at_least=USE_TOTAL,
        doc="Like retention.ms, but only for local disk. -2 means the value of retention.ms.")
    local_retention_bytes: int = key("local.retention.bytes", USE_TOTAL, at_least=USE_TOTAL,
        doc="Like retention.bytes, but only for local disk. -2 means the value of retention.bytes.")
    remote_storage_enable: bool = key("remote.storage.enable", False,
        doc="Offload closed segments to the engine's tier.")
    remote_log_copy_disable: bool = key("remote.log.copy.disable", False,
        doc="Stop offloading; segments in the tier stay readable.")
    remote_log_delete_on_disable: bool = key("remote.log.delete.on.disable", False,
        doc="Must be true to turn remote.storage.enable off. All segments of the topic in the tier are then deleted.")
    delete_retention_ms: int = key("delete.retention.ms", 86_400_000, at_least=0,
        doc="Time for which compaction keeps tombstones.")
    min_cleanable_dirty_ratio: float = key("min.cleanable.dirty.ratio", 0.5, at_least=0, at_most=1,
        doc="Compact a log if its dirty ratio is above this value.")
    min_compaction_lag_ms: int = key("min.compaction.lag.ms", 0, at_least=0,
        doc="Minimum age of a record before compaction removes it.")
    max_compaction_lag_ms: int = key("max.compaction.lag.ms", LONG_MAX, at_least=1,
        doc="Compact a log that has a dirty record of this age, even if its dirty ratio is low. A log of a compacted "
        "topic rolls after this time, too.")
    file_delete_delay_ms: int = key("file.delete.delay.ms", 60_000, at_least=0,
        doc="Time after which the .deleted files of a segment are removed from disk.")
    flush_messages: int = key("flush.messages", LONG_MAX, at_least=1,
        doc="An append syncs the log if the number of unsynced records (offsets) has reached this value.")
    flush_ms: int = key("flush.ms", LONG_MAX, at_least=0,
        doc="Time after which the background duties sync records; they check about once a second.")
    record_version: int | str = key("record.version", 2, at_least=0, at_most=2, check=_record_version,
        doc="Record format of appended batches: the version of Kafka's record format, or the name of an installed "
        "format.")
    index_formats: tuple[str, ...] = key("index.formats", ("offset", "time", "transaction"),
        doc="Names of the index formats of new segments.")
    index_extra: tuple[str, ...] = key("index.extra", (),
        doc="Names of plugins' extra indexes. They are built from closed segments in the background, and offloaded "
        "with the segment.")
    segment_offload_delay_ms: int = key("segment.offload.delay.ms", 0, at_least=0,
        doc="Time between the last write to a segment and its offload.")
    local_hard_limit_bytes: int = key("local.hard.limit.bytes", UNLIMITED, at_least=UNLIMITED,
        doc="With a tier: maximum size of a partition on local disk. Above three quarters of this size, segments whose "
        "copy is in the tier are evicted. Above this size, tier.outage.policy applies to appends. -1 means no limit.")
    tier_outage_policy: str = key("tier.outage.policy", "grow", choices=("block", "reject", "grow"),
        doc="Behaviour of appends above local.hard.limit.bytes. `block`: wait for room, at most tier.outage.block.ms. "
        "`reject`: refuse the append. `grow`: append, so the log grows above the limit.")
    tier_outage_block_ms: int = key("tier.outage.block.ms", 60_000, at_least=0,
        doc="Maximum time that an append waits for room with tier.outage.policy=block. Then the append is refused.")
    tier_layout: str = key("tier.layout", "single",
        doc="Name of the tier layout, which defines the objects of a segment.")
    min_insync_replicas: int = key("min.insync.replicas", 1, at_least=1, at_most=INT_MAX,
        doc=f"Has {NO_EFFECT}, because a log has one replica.")
    unclean_leader_election_enable: bool = key("unclean.leader.election.enable", False,
        doc="Behaviour if a leader lacks records that earlier leaders offloaded. True: these records are truncated in "
        "the tier. False: offloading stops.")
    message_downconversion_enable: bool = key("message.downconversion.enable", True,
        doc=f"Has {NO_EFFECT}, because a fetch returns batches as they are stored.")
    leader_replication_throttled_replicas: tuple[str, ...] = key(
        "leader.replication.throttled.replicas", (), check=_check_throttled,
        doc=f"Has {NO_EFFECT}, because the engine sends nothing to replicas.")
    follower_replication_throttled_replicas: tuple[str, ...] = key(
        "follower.replication.throttled.replicas", (), check=_check_throttled,
        doc=f"Has {NO_EFFECT}, because the engine fetches nothing from a leader.")
    # fmt: on
    sections: Mapping[str, Section] = dataclasses.field(default_factory=dict, hash=False)
    refusal: str = ""

    def merged(self, values: Mapping[str, object], source: str) -> Self:
        """Return a copy changed to ``values``, which can contain settings of plugins; see ``Section.merged``."""
        flat = flat_names(values, source)
        if not flat:
            return self
        sections = dict(self.sections)
        for name, section in sections.items():
            plugin_values = {key_name: flat.pop(key_name) for key_name in section.keys() & flat.keys()}
            if plugin_values:
                sections[name] = section.merged(plugin_values, source)
        known_names = {*type(self).keys(), *self.names_of_plugins()}
        for name in flat.keys() - known_names:
            first = name.partition(".")[0]
            # if ``first`` is the name of a plugin, suggest only settings of this plugin
            suggestions = sections[first].keys() if first in sections else known_names
            nearest = topic_key_of(name) or next(iter(difflib.get_close_matches(name, sorted(suggestions), n=1)), "")
            is_foreign = is_of_plugin(name) and first not in sections and not nearest
            where = f"{source} (no installed plugin has this setting)" if is_foreign else source
            raise UnknownSettingError(name, where, nearest)
        return dataclasses.replace(Section.merged(self, flat, source), sections=sections)

    def to_mapping(self, *, only_changed: bool = False) -> dict[str, object]:
        """Return the names and values of all settings, including settings of plugins; see ``Section.to_mapping``."""
        result = Section.to_mapping(self, only_changed=only_changed)
        for section in self.sections.values():
            result |= section.to_mapping(only_changed=only_changed)
        return result

    def names_of_plugins(self) -> frozenset[str]:
        """Return the names of all settings in ``sections``."""
        return frozenset(name for section in self.sections.values() for name in section.keys())  # noqa: SIM118 - a classmethod, not a dict

    def known(self, values: Mapping[str, object]) -> dict[str, object]:
        """Return ``values`` without settings that are not in ``sections`` and for which ``is_of_plugin`` is True."""
        plugin_names = self.names_of_plugins()
        return {name: value for name, value in values.items() if name in plugin_names or not is_of_plugin(name)}

    def recognised(self, values: Mapping[str, object]) -> dict[str, object]:
        """Return the items of ``values`` that are settings of stratalog or of a plugin in ``sections``."""
        names = {*type(self).keys(), *self.names_of_plugins()}
        return {name: value for name, value in values.items() if name in names}

    def contradiction(self) -> str:
        """Return an error text if two settings contradict each other, or "".

        ``local.retention.*`` is checked only if ``remote.storage.enable`` is true, because without it these settings
        have no effect.

        Source: apache/kafka LogConfig.validateTopicLogConfigValues.
        """
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            return "min.compaction.lag.ms must not be above max.compaction.lag.ms"
        limits = (
            ("ms", self.retention_ms, self.local_retention_ms),
            ("bytes", self.retention_bytes, self.local_retention_bytes),
        )
        for name, total, local in limits if self.remote_storage_enable else ():
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
        return next((text for section in self.sections.values() if (text := section.contradiction())), "")

    @property
    def local_limit_ms(self) -> int:
        """Value of ``local.retention.ms``, or of ``retention.ms`` if the first is -2. -1 means no limit."""
        return self.retention_ms if self.local_retention_ms == USE_TOTAL else self.local_retention_ms

    @property
    def local_limit_bytes(self) -> int:
        """Value of ``local.retention.bytes``, or of ``retention.bytes`` if the first is -2. -1 means no limit."""
        return self.retention_bytes if self.local_retention_bytes == USE_TOTAL else self.local_retention_bytes

    def compression_level(self, codec: str) -> int | None:
        """Return the level for ``codec``; None if the codec has no level setting, or is gzip with the level -1."""
        if codec == "gzip":
            return None if self.compression_gzip_level == -1 else self.compression_gzip_level
        levels = {"lz4": self.compression_lz4_level, "zstd": self.compression_zstd_level}
        return levels[codec] if codec in levels else getattr(self.sections.get(codec), "level", None)


def topic_key_of(name: str) -> str:
    """Return the topic setting for Kafka's broker setting ``name``, which sets its default; "" if there is none."""
    topic_keys = TopicConfig.keys()
    candidates = (name.removeprefix(prefix) for prefix in _BROKER_PREFIXES if name.startswith(prefix))
    return _BROKER_NAMES.get(name) or next((candidate for candidate in candidates if candidate in topic_keys), "")


def is_of_plugin(name: str) -> bool:
    """Return True if only a plugin can have a setting with this name.

    Such a name has a dot, and no topic setting of Kafka or stratalog begins with the word before the first dot.
    """
    first, mark, _ = name.partition(".")
    return bool(mark) and first not in _first_words()


@functools.cache  # called for each setting of each topic that an engine opens
def _first_words() -> frozenset[str]:
    return frozenset(name.partition(".")[0] for name in TopicConfig.keys())  # noqa: SIM118 - a classmethod, not a dict
