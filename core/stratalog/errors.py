"""Every error that stratalog raises, in one tree.

::

    StorageError
    ├── ConfigError                 a setting, a name or an argument is wrong: fix the call
    │   ├── UnknownSettingError
    │   ├── InvalidTopicError
    │   ├── TopicExistsError
    │   ├── AttachError
    │   ├── UnknownTopicError
    │   └── PolicyViolationError
    ├── PluginError                 a plugin cannot be used: install, block or choose
    │   ├── PluginImportError
    │   ├── PluginClashError
    │   └── UnknownComponentError
    ├── RecordError                 the records handed in are refused, nothing was written
    │   ├── InvalidRecordError
    │   │   ├── InvalidTimestampError
    │   │   └── UnsupportedForMessageFormatError
    │   ├── RecordTooLargeError
    │   ├── RecordBatchTooLargeError
    │   ├── OutOfOrderSequenceError
    │   ├── InvalidProducerEpochError
    │   │   └── ProducerFencedError
    │   ├── InvalidTxnStateError
    │   ├── TransactionCoordinatorFencedError
    │   ├── OffsetsExhaustedError
    │   ├── TransactionAbortedError
    │   ├── UnsupportedCompressionError
    │   ├── OffsetsOutOfOrderError
    │   └── UnexpectedAppendOffsetError
    ├── OffsetOutOfRangeError       ask for an offset that the log has
    ├── NoOffsetError               a group has committed nothing here: seek, or set auto_offset_reset
    ├── CorruptionError             bytes are not what they should be: repair, never retry
    │   ├── CorruptBatchError
    │   ├── CorruptIndexError
    │   ├── CorruptSnapshotError
    │   ├── CorruptCheckpointError
    │   ├── CorruptManifestError
    │   ├── CorruptObjectError
    │   └── DecompressedSizeError
    ├── LogDirError                 a log directory cannot be used
    │   ├── LogDirNotFoundError
    │   ├── LogDirLockedError
    │   ├── LogDirPermissionError
    │   ├── LogDirOfflineError
    │   ├── DiskFullError
    │   ├── SegmentGoneError        retriable
    │   └── ReadOnlyError
    ├── StoreError                  an object store refused or failed
    │   ├── ObjectNotFoundError
    │   ├── StorePermissionError
    │   ├── BucketNotFoundError
    │   ├── StoreTimeoutError       retriable
    │   ├── StoreThrottledError     retriable
    │   ├── TierUnavailableError    retriable; the store was away when the engine was opened
    │   └── StoreUntrustedError
    ├── LocalLimitError             retriable; appends wait for the tier
    ├── FencedEpochError            another writer owns this log's tier now: stop
    ├── ReplicaError                the log is not in the role or epoch that the call takes for granted
    │   ├── NotLeaderOrFollowerError    retriable
    │   ├── StaleLeaderEpochError
    │   ├── UnknownLeaderEpochError     retriable
    │   └── OffsetInTierError
    └── ClosedError                 used after close

``retriable`` says whether the same call may succeed later; ``kafka_code`` is the code that Kafka's protocol gives the
same condition (-1 where it has none). Arguments are positional and handed to ``super()``, so errors cross process
borders.
"""

from __future__ import annotations

from typing import ClassVar


class StorageError(Exception):
    """The root of the tree."""

    retriable: ClassVar[bool] = False
    kafka_code: ClassVar[int] = -1
    advice: ClassVar[str] = ""

    def __init__(self, reason: str, *details: object) -> None:
        super().__init__(reason, *details)  # what is called again when the error is unpickled
        self.reason = reason

    def _where(self) -> str:
        return ""

    def __str__(self) -> str:
        text = f"{self.reason}{self._where()}"
        return f"{text}: {self.advice}" if self.advice else text


class ConfigError(StorageError):
    """A setting or an argument is wrong. Fix the call or the file; never retry."""

    kafka_code = 40


class UnknownSettingError(ConfigError):
    """No setting has this name. ``nearest`` is the closest one there is, or ""."""

    def __init__(self, name: str, source: str, nearest: str = "") -> None:
        super().__init__(name, source, nearest)
        self.reason = f"unknown setting {name!r}"
        self.name, self.source, self.nearest = name, source, nearest

    def _where(self) -> str:
        hint = f"; did you mean {self.nearest!r}?" if self.nearest else ""
        return f" source={self.source}{hint}"


class InvalidTopicError(ConfigError):
    """A topic name breaks Kafka's rules (1 to 249 of ``[a-zA-Z0-9._-]``, not ``.`` or ``..``). Choose another."""

    kafka_code = 17


class TopicExistsError(ConfigError):
    """The topic is there already. Open it, or choose another name."""

    kafka_code = 36


class AttachError(ConfigError):
    """A directory cannot take over a tier as it is. Give an empty one, or open it without ``attach``."""


class UnknownTopicError(ConfigError):
    """There is no such topic or partition here. Create it, or look at ``topics()``."""

    kafka_code = 3


class PolicyViolationError(ConfigError):
    """The topic's settings do not allow it. Change them first, or leave it."""

    kafka_code = 44


class PluginError(StorageError):
    """A plugin breaks the contract. Fix or block it."""


class PluginImportError(PluginError):
    """A plugin, or what it needs, cannot be imported. Install what the text names, or block the plugin."""

    def __init__(self, reason: str, plugin: str, install: str = "") -> None:
        super().__init__(reason, plugin, install)
        self.plugin, self.install = plugin, install

    def __str__(self) -> str:
        hint = f": install it with: pip install '{self.install}'" if self.install else ""
        return f"{self.reason} plugin={self.plugin}{hint}"


class PluginClashError(PluginError):
    """Two distributions offer the same name or scheme. Uninstall or block one, or choose in the settings."""


class UnknownComponentError(PluginError):
    """Nothing installed offers this name, scheme or version. Install a plugin that does."""


class RecordError(StorageError):
    """The records handed in are refused; nothing was written."""

    kafka_code = 87


class InvalidRecordError(RecordError):
    """Contents break a rule. ``record_errors`` holds (index, message) where single records do.

    The index counts from the first record handed in, or of the batch whose position in the append the text names.
    """

    def __init__(self, reason: str, record_errors: tuple[tuple[int, str], ...] = ()) -> None:
        super().__init__(reason, record_errors)
        self.record_errors = record_errors

    def _where(self) -> str:
        if not self.record_errors:
            return ""
        index, message = self.record_errors[0]
        return f" records={len(self.record_errors)} first_index={index} first={message!r}"


class InvalidTimestampError(InvalidRecordError):
    """A timestamp is outside ``message.timestamp.before.max.ms`` / ``after.max.ms``. Correct the clock."""

    kafka_code = 32


class UnsupportedForMessageFormatError(InvalidRecordError):
    """The topic's ``record.version`` has no place for producer ids and transactions. Set it to 2, or write without."""

    kafka_code = 43


class RecordTooLargeError(RecordError):
    """A batch is above ``max.message.bytes``. Send smaller records or raise the setting."""

    kafka_code = 10


class RecordBatchTooLargeError(RecordError):
    """One append is above ``segment.bytes``. Append less at once or raise the setting."""

    kafka_code = 18


class OutOfOrderSequenceError(RecordError):
    """An idempotent producer skipped or repeated a sequence. The producer must start a new epoch."""

    kafka_code = 45


class InvalidProducerEpochError(RecordError):
    """A newer instance of this producer has written already. Stop this one."""

    kafka_code = 47


class ProducerFencedError(InvalidProducerEpochError):
    """A newer producer has this transactional id, or the transaction took too long. Close this one."""

    kafka_code = 90


class InvalidTxnStateError(RecordError):
    """A transactional rule is broken: a plain batch inside an open transaction, say. Abort it first."""

    kafka_code = 48


class TransactionCoordinatorFencedError(RecordError):
    """A newer coordinator has ended a transaction of this producer already. Stop this one."""

    kafka_code = 52


class OffsetsExhaustedError(RecordError):
    """The log would pass the last offset that there is, 2^63 - 2. Go on in another topic."""

    kafka_code = -1


class TransactionAbortedError(RecordError):
    """A transaction misses a record, or was aborted before this record was sent. Abort it and begin again."""

    kafka_code = 120


class UnsupportedCompressionError(RecordError):
    """The codec does not go with this record format or is not installed. Choose another ``compression.type``."""

    kafka_code = 76


class OffsetsOutOfOrderError(RecordError):
    """Offsets do not ascend in what a follower was given. Fetch it again: the leader, or the way from it, is at fault."""

    kafka_code = -1


class UnexpectedAppendOffsetError(RecordError):
    """A follower was given a batch that begins below its log end. Fetch from the log end, or truncate first."""

    kafka_code = -1

    def __init__(self, log: str, first_offset: int, last_offset: int, log_end: int) -> None:
        super().__init__(log, first_offset, last_offset, log_end)
        self.reason = "a batch begins below the log end"
        self.log, self.first_offset, self.last_offset, self.log_end = log, first_offset, last_offset, log_end

    def _where(self) -> str:
        offsets = f"first_offset={self.first_offset} last_offset={self.last_offset}"
        return f" log={self.log} {offsets} log_end={self.log_end}"


class OffsetOutOfRangeError(StorageError):
    """The offset is below the log start or above the log end. Ask again inside [log_start, log_end]."""

    kafka_code = 1

    def __init__(self, log: str, offset: int, log_start: int, log_end: int) -> None:
        super().__init__(log, offset, log_start, log_end)
        self.reason = "offset out of range"
        self.log, self.offset, self.log_start, self.log_end = log, offset, log_start, log_end

    def _where(self) -> str:
        return f" log={self.log} offset={self.offset} log_start={self.log_start} log_end={self.log_end}"


class NoOffsetError(StorageError):
    """There is no offset to begin at: none was committed, and ``auto_offset_reset`` is ``none``. Seek first."""


class CorruptionError(StorageError):
    """Bytes are not what they should be. ``file`` and ``position`` (bytes) say where; never retry."""

    kafka_code = 2

    def __init__(self, reason: str, file: str, position: int = 0) -> None:
        super().__init__(reason, file, position)
        self.file, self.position = file, position

    def _where(self) -> str:
        return f" file={self.file} position={self.position}"


class CorruptBatchError(CorruptionError):
    """The bytes at ``position`` are no valid record batch."""

    advice = "restore this range from a replica or the tier; an engine cuts a damaged tail when it opens uncleanly"


class CorruptIndexError(CorruptionError):
    """An index contradicts its log. Indexes are disposable: it is rebuilt from the log."""

    advice = "delete the index file, it is rebuilt from the .log at the next open"


class CorruptSnapshotError(CorruptionError):
    """A producer snapshot is damaged. An older one, or the log, is read instead."""

    advice = "delete the snapshot, an older one or the log is read instead"


class CorruptCheckpointError(CorruptionError):
    """A checkpoint file cannot be parsed."""

    advice = "delete the file if its log can be scanned again, or restore it"


class CorruptManifestError(CorruptionError):
    """A manifest root cannot be parsed, or does not continue the chain before it."""

    advice = "do not write to this tier; compare the root with the one before it"


class CorruptObjectError(CorruptionError):
    """An object of the tier is not what the manifest says it is."""

    advice = "restore the object from a version or a copy of the bucket; never delete local data for it"


class DecompressedSizeError(CorruptionError):
    """Compressed data would grow past the limit; nothing was allocated beyond it."""

    advice = "if the data is genuine, raise limits.decompressed_bytes"


class LogDirError(StorageError):
    """A log directory cannot be used. ``path`` names it, or the file in it."""

    kafka_code = 56

    def __init__(self, reason: str, path: str) -> None:
        super().__init__(reason, path)
        self.path = path

    def _where(self) -> str:
        return f" path={self.path}"


class LogDirNotFoundError(LogDirError):
    """There is no log directory here."""

    advice = "check the path; a log directory holds one folder a partition, named topic-partition"


class LogDirLockedError(LogDirError):
    """Another engine or a running Kafka broker holds the directory."""

    advice = "stop the other process, or read with open_reader, which takes no lock"


class LogDirPermissionError(LogDirError):
    """The operating system does not let this user do what was asked."""

    advice = "let this user read and write the directory, or read a copy of it"


class LogDirOfflineError(LogDirError):
    """An I/O error took the directory out of service. Repair the disk, then open again."""

    advice = "repair the disk and open the engine again; nothing is retried on a file that failed"


class DiskFullError(LogDirError):
    """No space is left. The append was cut back; reads go on."""

    advice = "free space or offload and evict, then append again"


class SegmentGoneError(LogDirError):
    """A segment's file was deleted by retention while it was read. Read again from the same offset."""

    retriable = True
    advice = "read again from the same offset: retention took the file, the log goes on without it or from the tier"


class ReadOnlyError(LogDirError):
    """A write was asked of something opened for reading."""

    advice = "open the directory with open_engine to write"


class StoreError(StorageError):
    """An object store refused or failed. ``key`` names the object or prefix."""

    kafka_code = 56

    def __init__(self, reason: str, key: str) -> None:
        super().__init__(reason, key)
        self.key = key

    def _where(self) -> str:
        return f" key={self.key}"


class ObjectNotFoundError(StoreError):
    """There is no such object."""


class StorePermissionError(StoreError):
    """The credentials do not allow the request."""

    advice = "grant list, get, put and delete on the prefix, or correct the credentials"


class BucketNotFoundError(StoreError):
    """The bucket, or the root folder of the store, is missing."""

    advice = "create it first, or correct the tier URI; stratalog creates no buckets"


class StoreTimeoutError(StoreError):
    """The store did not answer inside the deadline."""

    retriable = True
    advice = "check the network and the endpoint; the same call may succeed later"


class StoreThrottledError(StoreError):
    """The store asks for fewer requests; for none at all during ``retry_after_ms``, if it said so (else 0)."""

    retriable = True
    advice = "lower the request rate; the same call may succeed later"
    retry_after_ms: int = 0


class TierUnavailableError(StoreError):
    """The store of the tier was away when the engine was opened, and has not been back since.

    What is on local disk is served. What the tier alone has is neither lost nor out of range: ask again later.
    """

    retriable = True
    advice = "see to the store and the network; an engine that is open looks for the store by itself, then ask again"


class StoreUntrustedError(StoreError):
    """The store came back and does not keep what it promises, so the engine leaves it alone until it is opened again."""

    advice = "correct the store or the tier URI, then open the engine again; what is on local disk is served meanwhile"


class LocalLimitError(StorageError):
    """Local disk holds as much of a tiered log as it may, and the tier takes nothing. Later the append may succeed."""

    retriable = True
    kafka_code = 89
    advice = "see to the tier, or raise local.hard.limit.bytes, or set tier.outage.policy=grow"


class FencedEpochError(StorageError):
    """Another writer owns this log's tier now. Stop acknowledging; reopen to read what it did; never retry."""

    kafka_code = 74
    advice = "another writer owns this log now; stop this engine, or attach again to take over"


class ReplicaError(StorageError):
    """A log is not in the role or the leader epoch that the call takes for granted."""


class NotLeaderOrFollowerError(ReplicaError):
    """The log follows where it should lead, or leads where it should follow. Ask the leader, or change the role first."""

    retriable = True
    kafka_code = 6


class StaleLeaderEpochError(ReplicaError):
    """The leader epoch is older than the log's. Find out who leads now; never retry with this epoch."""

    kafka_code = 74


class UnknownLeaderEpochError(ReplicaError):
    """The leader epoch is newer than the log's, which has yet to hear of it. Ask again later."""

    retriable = True
    kafka_code = 75


class OffsetInTierError(ReplicaError):
    """The tier has committed what was asked of local disk alone."""

    kafka_code = 109


class ClosedError(StorageError):
    """Used after close. Open again."""
