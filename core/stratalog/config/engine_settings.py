"""Engine settings, and the limits on memory, descriptors and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stratalog.config.keys import INT_MAX, LONG_MAX, Section, key
from stratalog.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(Section):
    """All limits on memory, on descriptors, and on sizes read from files and objects."""

    title: ClassVar[str] = "Limits"

    open_files: int = key(
        "limits.open.files",
        4096,
        at_least=8,
        doc="Descriptors and maps kept open, but no more than half of what the system allows; least used close first.",
    )
    read_bytes: int = key(
        "limits.read.bytes",
        1 << 20,
        at_least=1024,
        doc="One read of a log, unless a batch is larger; Arrow tables are read in up to four times as much.",
    )
    arrow_threads: int = key(
        "limits.arrow.threads",
        2,
        at_least=1,
        doc="Threads that read one long Arrow table, the caller's included; 1 takes longer, and less of the processor.",
    )
    batch_bytes: int = key(
        "limits.batch.bytes",
        1 << 30,
        at_least=61,
        at_most=INT_MAX,
        doc="The largest batch accepted from a file or object.",
    )
    decompressed_bytes: int = key(
        "limits.decompressed.bytes", 1 << 28, at_least=1024, doc="The largest result of decompressing one batch."
    )
    manifest_bytes: int = key("limits.manifest.bytes", 64 << 20, at_least=1024, doc="The largest manifest root read.")
    checkpoint_bytes: int = key(
        "limits.checkpoint.bytes", 64 << 20, at_least=1024, doc="The largest checkpoint file read."
    )
    index_bytes: int = key(
        "limits.index.bytes",
        128 << 20,
        at_least=1 << 20,
        at_most=INT_MAX,
        doc="The largest index, producer snapshot or file of EXTRA indexes of a segment that is read into memory or sent to the "
        "tier; not below segment.index.bytes.",
    )
    topic_partitions: int = key(
        "limits.topic.partitions",
        100_000,
        at_least=1,
        at_most=INT_MAX,
        doc="The most partitions of one topic, when it is created and when a tier is taken over.",
    )
    index_cache_bytes: int = key(
        "limits.index.cache.bytes",
        64 << 20,
        at_least=0,
        doc="Index entries of closed segments kept in memory, of each tier.",
    )
    chunk_cache_bytes: int = key("limits.chunk.cache.bytes", 64 << 20, at_least=0, doc="Remote chunks kept in memory.")
    prefetch_bytes: int = key(
        "limits.prefetch.bytes",
        32 << 20,
        at_least=0,
        doc="Remote chunks read ahead of all sequential readers and not used yet; 0 reads nothing ahead.",
    )
    upload_bytes: int = key(
        "limits.upload.bytes",
        192 << 20,
        at_least=5 << 20,
        doc="Parts of uploads in memory at a time, over all uploads of a store; one part always is.",
    )
    fetch_chunk_bytes: int = key("limits.fetch.chunk.bytes", 4 << 20, at_least=4096, doc="One ranged read of the tier.")

    def check_partitions(self, topic: str, partitions: int) -> None:
        """Raise ConfigError if ``topic`` may not have this number of partitions."""
        if partitions < 1:
            raise ConfigError(f"topic {topic}: a topic has at least 1 partition, not {partitions}")
        if partitions > self.topic_partitions:
            raise ConfigError(
                f"topic {topic}: {partitions} partitions are above limits.topic.partitions={self.topic_partitions}: "
                "raise the limit, or create fewer"
            )

    def check_index(self, size_bytes: int, what: str) -> None:
        """Raise ConfigError if an index or another small file, named ``what`` in the text, is above ``index_bytes``."""
        if size_bytes > self.index_bytes:
            raise ConfigError(
                f"{what}: {size_bytes} bytes are above limits.index.bytes={self.index_bytes}: raise the limit"
            )


def _not_pairs(words: tuple[str, ...]) -> str:
    wrong = [word for word in words if not all(word.partition("="))]
    schemes = [word.partition("=")[0].lower() for word in words]
    if wrong:
        return f"must be scheme=name, and {wrong[0]!r} is not"
    return "" if len(set(schemes)) == len(schemes) else "must name each scheme once"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(Section):
    """Settings of the whole engine. TopicConfig holds settings of topics; plugins have their own sections."""

    title: ClassVar[str] = "Engine settings"

    log_dirs: tuple[str, ...] = key("log.dirs", (), doc="The log directories; the first also holds the topic settings.")
    tier: str | None = key("tier", None, doc="URI of the object store and prefix for closed segments.")
    tier_outage_open: str = key(
        "tier.outage.open",
        "serve",
        choices=("serve", "refuse"),
        doc="Opening while the store is away: serve what is on local disk and go on with the tier when it is back, or refuse.",
    )
    tier_verify: str = key(
        "tier.verify",
        "auto",
        choices=("auto", "first", "always", "never"),
        doc="Read segments back through their layout before the tier counts as having them: the `first` of each layout of an "
        "engine, `always` or `never`; `auto` is `never` if layout and store come with stratalog and the store checks "
        "checksums or keeps local files, else `first`.",
    )
    plugins_allow: tuple[str, ...] = key(
        "plugins.allow", (), doc="If given, only these entry points are imported; first-party ones are named too."
    )
    plugins_block: tuple[str, ...] = key("plugins.block", (), doc="Entry points that are never imported.")
    plugins_modules: tuple[str, ...] = key(
        "plugins.modules", (), doc="Modules that are plugins and not installed as such; found as Python finds modules."
    )
    plugins_prefer: tuple[str, ...] = key(
        "plugins.prefer",
        (),
        check=_not_pairs,
        doc="scheme=name: the store to use where several plugins serve a URI scheme.",
    )
    durability: str = key(
        "durability",
        "written",
        choices=("written", "durable"),
        doc="What an append waits for unless it says otherwise.",
    )
    watermark: str = key(
        "watermark",
        "written",
        choices=("written", "durable", "external"),
        doc="What moves the high watermark: writing, syncing, or a call of set_high_watermark.",
    )
    sync_interval_ms: int = key(
        "sync.interval.ms",
        1000,
        at_least=1,
        doc="The background duties sync what was written about so long ago, and no append has waited for.",
    )
    store_deadline_ms: int = key(
        "store.deadline.ms", 60_000, at_least=1, doc="One object store call, retries included."
    )
    store_retries: int = key("store.retries", 5, at_least=0, doc="Further tries of a call that may be repeated.")
    checkpoint_interval_ms: int = key(
        "log.flush.offset.checkpoint.interval.ms",
        60_000,
        at_least=0,
        doc="How often the background duties store recovery points and log starts.",
    )
    watermark_interval_ms: int = key(
        "replica.high.watermark.checkpoint.interval.ms",
        5000,
        at_least=1,
        doc="How often the background duties store high watermarks.",
    )
    retention_interval_ms: int = key(
        "log.retention.check.interval.ms",
        300_000,
        at_least=1,
        doc="How often the background duties roll segments by time and apply retention.",
    )
    offload_interval_ms: int = key(
        "remote.log.manager.task.interval.ms",
        30_000,
        at_least=1,
        doc="How often the background duties move closed segments to the tier.",
    )
    copier_threads: int = key(
        "remote.log.manager.copier.thread.pool.size",
        4,
        at_least=1,
        doc="How many partitions are moved to the tier at a time.",
    )
    copy_bytes_per_second: int = key(
        "remote.log.manager.copy.max.bytes.per.second",
        LONG_MAX,
        at_least=1,
        doc="Moving to the tier begins no further segment while it is above this rate, over all partitions.",
    )
    collect_interval_ms: int = key(
        "tier.collect.interval.ms",
        3_600_000,
        at_least=1,
        doc="How often the background duties delete what the tier no longer needs; logs without news cost nothing.",
    )
    tier_history_ms: int = key(
        "tier.history.ms",
        3_600_000,
        at_least=0,
        doc="How long a superseded state of a log's tier can be read (as_of), with all it names; at least an hour.",
    )
    tier_cache_dir: str | None = key(
        "tier.cache.dir",
        None,
        doc="A folder of its own, not inside a log directory, where chunks and indexes of the tier are kept over "
        "restarts; without it they are kept in memory.",
    )
    tier_cache_bytes: int = key(
        "tier.cache.bytes", 4 << 30, at_least=0, doc="Chunks of the tier kept in tier.cache.dir."
    )
    index_cache_file_bytes: int = key(
        "remote.log.index.file.cache.total.size.bytes",
        1 << 30,
        at_least=1,
        doc="Indexes of the tier kept in tier.cache.dir.",
    )
    reader_threads: int = key(
        "remote.log.reader.threads", 10, at_least=1, doc="How many chunks of the tier are read ahead at a time."
    )
    recovery_threads: int = key(
        "num.recovery.threads.per.data.dir",
        2,
        at_least=1,
        doc="How many logs of one directory are loaded, and recovered after an unclean stop, at a time at the most.",
    )
    producer_expiration_ms: int = key(
        "producer.id.expiration.ms",
        86_400_000,
        at_least=1,
        doc="Idempotent producers are forgotten when their last batch is as old as this, unless a transaction is open.",
    )
    producer_expiration_interval_ms: int = key(
        "producer.id.expiration.check.interval.ms",
        600_000,
        at_least=1,
        doc="How often the background duties forget producers; opening a log does, too.",
    )

    cleaner_enable: bool = key(
        "log.cleaner.enable", True, doc="Whether the background duties compact topics whose cleanup.policy says so."
    )
    cleaner_threads: int = key(
        "log.cleaner.threads", 1, at_least=1, doc="How many logs are compacted at a time; they share the memory."
    )
    cleaner_dedupe_bytes: int = key(
        "log.cleaner.dedupe.buffer.size",
        128 << 20,
        at_least=1024,
        doc="Memory for the keys of one round, 24 bytes each, of all threads together; a round ends when it is full.",
    )
    cleaner_load_factor: float = key(
        "log.cleaner.io.buffer.load.factor", 0.9, at_least=0.1, at_most=0.99, doc="How full that memory may get."
    )
    cleaner_io_bytes: int = key(
        "log.cleaner.io.buffer.size",
        524_288,
        at_least=1024,
        doc="How much compaction reads at a time, of all threads together, unless a batch is larger.",
    )
    cleaner_bytes_per_second: float = key(
        "log.cleaner.io.max.bytes.per.second",
        1e15,
        at_least=1,
        doc="What compaction reads and writes a second at most, of all threads together.",
    )
    cleaner_backoff_ms: int = key(
        "log.cleaner.backoff.ms",
        15_000,
        at_least=1,
        doc="How often the background duties look for a log that is to be compacted.",
    )

    extra_interval_ms: int = key(
        "index.extra.interval.ms",
        15_000,
        at_least=1,
        doc="How often the background duties make EXTRA indexes (index.extra) of segments that were closed.",
    )

    services: tuple[str, ...] = key(
        "services", (), doc="Services of plugins that run beside the engine, by name, in the order in which they start."
    )
    service_stop_ms: int = key(
        "service.stop.ms",
        30_000,
        at_least=0,
        doc="How long all services together have to stop when the engine closes, then all calls into other plugins that are "
        "under way, and then all listeners. What takes longer is left to its thread, which the log names.",
    )

    plugin_deadline_ms: int = key(
        "plugin.deadline.ms",
        300_000,
        at_least=1,
        doc="One call into a cleanup policy or a tier layout that does not come with stratalog; a layout has it once more for "
        "each 64 MiB of a segment, its uploads included. A call that takes longer fails, and is left to its thread.",
    )

    @property
    def preferred_stores(self) -> dict[str, str]:
        """``plugins.prefer`` as a mapping from URI scheme to provider name."""
        return {scheme.lower(): name for scheme, _, name in (word.partition("=") for word in self.plugins_prefer)}
