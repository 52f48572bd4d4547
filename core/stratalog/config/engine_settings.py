"""Engine settings, and the limits on memory, descriptors and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stratalog.config.keys import INT_MAX, LONG_MAX, Section, key
from stratalog.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(Section):
    """Limits on memory, on open files, and on the sizes of files and objects that an engine reads."""

    title: ClassVar[str] = "Limits"

    # One entry for each setting, not one line for each argument:
    # fmt: off
    open_files: int = key("limits.open.files", 4096, at_least=8,
        doc="Maximum number of open file descriptors and memory maps. A value above half of the system's limit counts "
        "as half of that limit. The least recently used descriptors are closed first.")
    read_bytes: int = key("limits.read.bytes", 1 << 20, at_least=1024,
        doc="Size of one read of a log, unless a batch is larger. Arrow tables are read in pieces of up to four times "
        "this size.")
    arrow_threads: int = key("limits.arrow.threads", 2, at_least=1,
        doc="Number of threads that read one long Arrow table, including the caller's. With 1, a read takes longer and "
        "uses less processor time.")
    batch_bytes: int = key("limits.batch.bytes", 1 << 30, at_least=61, at_most=INT_MAX,
        doc="Maximum size of a batch in a file or object.")
    decompressed_bytes: int = key("limits.decompressed.bytes", 1 << 28, at_least=1024,
        doc="Maximum size of one batch after decompression.")
    manifest_bytes: int = key("limits.manifest.bytes", 64 << 20, at_least=1024, doc="Maximum size of a manifest root.")
    checkpoint_bytes: int = key("limits.checkpoint.bytes", 64 << 20, at_least=1024,
        doc="Maximum size of a checkpoint or another small file of a log directory.")
    index_bytes: int = key("limits.index.bytes", 128 << 20, at_least=1 << 20, at_most=INT_MAX,
        doc="Maximum size of an index, a producer snapshot or a file of extra indexes that is read into memory or "
        "offloaded. It must be at least segment.index.bytes.")
    topic_partitions: int = key("limits.topic.partitions", 100_000, at_least=1, at_most=INT_MAX,
        doc="Maximum number of partitions of a topic, when it is created and when a tier is taken over.")
    index_cache_bytes: int = key("limits.index.cache.bytes", 64 << 20, at_least=0,
        doc="Memory for index entries of closed segments: this size for segments on local disk, and this size again "
        "for segments in the tier.")
    chunk_cache_bytes: int = key("limits.chunk.cache.bytes", 64 << 20, at_least=0,
        doc="Memory for chunks read from the tier. If many logs are read at the same time, chunks are smaller, so that "
        "half of this memory has room for one chunk of each log.")
    prefetch_bytes: int = key("limits.prefetch.bytes", 64 << 20, at_least=0,
        doc="Memory of all readers together for chunks that were read ahead from the tier and are not used yet. 0 "
        "turns reading ahead off.")
    upload_bytes: int = key("limits.upload.bytes", 192 << 20, at_least=5 << 20,
        doc="Memory of all uploads to a store together for the parts of multipart uploads. One part is always allowed.")
    fetch_chunk_bytes: int = key("limits.fetch.chunk.bytes", 8 << 20, at_least=4096,
        doc="Size of one ranged read from the tier. Reads are smaller if many logs are read at the same time, and at "
        "the first position of a reader.")
    # fmt: on

    def check_partitions(self, topic: str, partitions: int) -> None:
        """Raise ConfigError unless ``partitions`` is from 1 to ``limits.topic.partitions``, both inclusive."""
        if partitions < 1:
            raise ConfigError(f"topic {topic}: a topic has at least 1 partition, not {partitions}")
        if partitions > self.topic_partitions:
            raise ConfigError(
                f"topic {topic}: {partitions} partitions are above limits.topic.partitions={self.topic_partitions}: "
                "raise the limit, or create fewer partitions"
            )

    def check_index(self, size_bytes: int, subject: str) -> None:
        """Raise ConfigError if ``size_bytes`` is above ``limits.index.bytes``; errors begin with ``subject``."""
        if size_bytes > self.index_bytes:
            raise ConfigError(
                f"{subject}: {size_bytes} bytes are above limits.index.bytes={self.index_bytes}: raise the limit"
            )


def _check_pairs(words: tuple[str, ...]) -> str:
    malformed = [word for word in words if not all(word.partition("="))]
    schemes = [word.partition("=")[0].lower() for word in words]
    if malformed:
        return f"must be a list of scheme=name, and {malformed[0]!r} is not of this form"
    return "" if len(set(schemes)) == len(schemes) else "must name each scheme once"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(Section):
    """Settings of the whole engine. ``TopicConfig`` has the settings of topics; plugins have their own sections."""

    title: ClassVar[str] = "Engine settings"

    # One entry for each setting, not one line for each argument:
    # fmt: off
    log_dirs: tuple[str, ...] = key("log.dirs", (), doc="The log directories; the first also holds the topic settings.")
    tier: str | None = key("tier", None, doc="URI of the tier: object store, bucket and prefix for closed segments.")
    tier_outage_open: str = key("tier.outage.open", "serve", choices=("serve", "refuse"),
        doc="Behaviour if the store is unavailable when the engine opens. `serve`: the engine opens with the records "
        "on local disk, and uses the tier when the store is available again. `refuse`: the engine does not open.")
    tier_verify: str = key("tier.verify", "auto", choices=("auto", "first", "always", "never"),
        doc="Offloaded segments that are read back through their layout before they are committed. `first`: the first "
        "segment of each layout in an engine. `always`: every segment. `never`: no segment. `auto` means `always` if "
        "the layout or the store is of a distribution other than stratalog, `never` if the built-in store checks "
        "checksums or is a local folder, and `first` in all other cases.")
    plugins_allow: tuple[str, ...] = key("plugins.allow", (),
        doc="Import only these entry points. Built-in entry points that are not in the list are not imported. An empty "
        "list imports all.")
    plugins_block: tuple[str, ...] = key("plugins.block", (), doc="Entry points that are not imported.")
    plugins_modules: tuple[str, ...] = key("plugins.modules", (),
        doc="Modules that are plugins without an entry point, by their import names.")
    plugins_prefer: tuple[str, ...] = key("plugins.prefer", (), check=_check_pairs,
        doc="List of scheme=name. `name` is the object store for a URI scheme that several plugins serve.")
    durability: str = key("durability", "written", choices=("written", "durable"),
        doc="Durability of appends that do not pass `durability`.")
    watermark: str = key("watermark", "written", choices=("written", "durable", "external"),
        doc="Event that moves the high watermark. `written`: records are written. `durable`: records are synced. "
        "`external`: set_high_watermark is called.")
    sync_interval_ms: int = key("sync.interval.ms", 1000, at_least=1,
        doc="Sync interval of the background duties for records that no append has synced.")
    store_deadline_ms: int = key("store.deadline.ms", 60_000, at_least=1,
        doc="Deadline of one call to the object store, including retries.")
    store_retries: int = key("store.retries", 5, at_least=0,
        doc="Maximum number of retries of a repeatable call to the object store.")
    checkpoint_interval_ms: int = key("log.flush.offset.checkpoint.interval.ms", 60_000, at_least=0,
        doc="Interval at which the background duties store recovery points and log start offsets.")
    watermark_interval_ms: int = key("replica.high.watermark.checkpoint.interval.ms", 5000, at_least=1,
        doc="Interval at which the background duties store high watermarks.")
    retention_interval_ms: int = key("log.retention.check.interval.ms", 300_000, at_least=1,
        doc="Interval at which the background duties roll segments by time and apply retention.")
    offload_interval_ms: int = key("remote.log.manager.task.interval.ms", 30_000, at_least=1,
        doc="Interval at which the background duties offload closed segments to the tier.")
    copier_threads: int = key("remote.log.manager.copier.thread.pool.size", 4, at_least=1,
        doc="Number of partitions that are offloaded at the same time.")
    copy_bytes_per_second: int = key("remote.log.manager.copy.max.bytes.per.second", LONG_MAX, at_least=1,
        doc="Maximum upload rate over all partitions. Above it, the next segment waits.")
    collect_interval_ms: int = key("tier.collect.interval.ms", 3_600_000, at_least=1,
        doc="Interval at which the background duties delete garbage from the tier. Logs without changes send no "
        "requests.")
    tier_history_ms: int = key("tier.history.ms", 3_600_000, at_least=0,
        doc="Time for which an old state of a log in the tier can be read (as_of) after a newer state replaced it. A "
        "value below an hour counts as an hour.")
    tier_cache_dir: str | None = key("tier.cache.dir", None,
        doc="Folder in which chunks and indexes of the tier are cached across restarts. It must not be inside a log "
        "directory. Without this setting, chunks and indexes are cached in memory.")
    tier_cache_bytes: int = key("tier.cache.bytes", 4 << 30, at_least=0, doc="Disk space for chunks in tier.cache.dir.")
    index_cache_file_bytes: int = key("remote.log.index.file.cache.total.size.bytes", 1 << 30, at_least=1,
        doc="Disk space for indexes in tier.cache.dir.")
    reader_threads: int = key("remote.log.reader.threads", 10, at_least=1,
        doc="Number of chunks that are read ahead from the tier at the same time, and number of logs whose manifest roots "
        "are read at the same time when an engine is opened.")
    recovery_threads: int = key("num.recovery.threads.per.data.dir", 2, at_least=1,
        doc="Maximum number of logs of one directory that are loaded at the same time. After an unclean shutdown, "
        "loading a log includes its recovery.")
    producer_expiration_ms: int = key("producer.id.expiration.ms", 86_400_000, at_least=1,
        doc="An idempotent producer expires at this time after its last batch, unless it has an open transaction.")
    producer_expiration_interval_ms: int = key("producer.id.expiration.check.interval.ms", 600_000, at_least=1,
        doc="Interval at which the background duties remove expired producers. The expired producers of a log are also "
        "removed when the log is opened.")
    transactional_id_expiration_ms: int = key("transactional.id.expiration.ms", 604_800_000, at_least=1,
        doc="A transactional id without an open transaction expires at this time after its last use.")
    offsets_partitions: int = key("offsets.topic.num.partitions", 50, at_least=1,
        doc="Number of partitions with which __consumer_offsets, the topic of groups' offsets, is created.")
    transactions_partitions: int = key("transaction.state.log.num.partitions", 50, at_least=1,
        doc="Number of partitions with which __transaction_state, the topic of transactions' states, is created.")

    cleaner_enable: bool = key("log.cleaner.enable", True,
        doc="True if the background duties compact topics whose cleanup.policy requires it.")
    cleaner_threads: int = key("log.cleaner.threads", 1, at_least=1,
        doc="Number of logs that are compacted at the same time.")
    cleaner_dedupe_bytes: int = key("log.cleaner.dedupe.buffer.size", 128 << 20, at_least=1024,
        doc="Memory for keys during compaction, 24 bytes for each key. Each of the log.cleaner.threads threads gets an "
        "equal share. A compaction round ends when the share of its thread is full.")
    cleaner_load_factor: float = key("log.cleaner.io.buffer.load.factor", 0.9, at_least=0.1, at_most=0.99,
        doc="Fill ratio at which log.cleaner.dedupe.buffer.size counts as full.")
    cleaner_io_bytes: int = key("log.cleaner.io.buffer.size", 524_288, at_least=1024,
        doc="Total size of the read buffers of all compaction threads, unless a batch is larger.")
    cleaner_bytes_per_second: float = key("log.cleaner.io.max.bytes.per.second", 1e15, at_least=1,
        doc="Maximum rate of reads and writes of all compaction threads together.")
    cleaner_backoff_ms: int = key("log.cleaner.backoff.ms", 15_000, at_least=1,
        doc="Interval at which the background duties look for logs to compact.")

    extra_interval_ms: int = key("index.extra.interval.ms", 15_000, at_least=1,
        doc="Interval at which the background duties build extra indexes (index.extra) of closed segments.")

    services: tuple[str, ...] = key("services", (),
        doc="Names of the plugins' services that run in the engine, in the order in which they start.")
    service_stop_ms: int = key("service.stop.ms", 30_000, at_least=0,
        doc="Time limit of each of three steps when the engine closes: all services stop, calls in progress into "
        "other plugins end, and listeners process their last events. A call that takes longer is abandoned, and a "
        "logged warning names its thread.")

    plugin_deadline_ms: int = key("plugin.deadline.ms", 300_000, at_least=1,
        doc="Deadline of one call into a plugin of a distribution other than stratalog. It applies to calls of "
        "cleanup policies and tier layouts, to calls that open components or start services, and to all calls while "
        "an engine or a reader opens, including imports and hooks. A call of a layout has this time for each 64 MiB "
        "of a segment, including uploads. A call that takes longer fails, and its thread is abandoned.")
    # fmt: on

    @property
    def preferred_stores(self) -> dict[str, str]:
        """The provider name for each URI scheme in ``plugins.prefer``. Schemes are in lower case."""
        return {scheme.lower(): name for scheme, _, name in (word.partition("=") for word in self.plugins_prefer)}
