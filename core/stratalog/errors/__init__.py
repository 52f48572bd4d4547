"""All errors that stratalog raises, as one class tree.

::

    StorageError
    ├── ConfigError                 a setting, a name or an argument is wrong: fix the call
    │   ├── WrongTypeError          subclass of TypeError, too
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
    ├── RecordError                 the appended records are refused, nothing was written
    │   ├── InvalidRecordError
    │   │   ├── InvalidTimestampError
    │   │   └── UnsupportedForMessageFormatError
    │   ├── RecordTooLargeError
    │   ├── RecordBatchTooLargeError
    │   ├── OutOfOrderSequenceError
    │   ├── InvalidProducerEpochError
    │   │   └── ProducerFencedError
    │   │       └── InvalidProducerIdMappingError
    │   ├── InvalidTxnStateError
    │   │   └── ConcurrentTransactionsError     retriable
    │   ├── TransactionCoordinatorFencedError
    │   ├── OffsetsExhaustedError
    │   ├── TransactionAbortedError
    │   ├── UnsupportedCompressionError
    │   ├── OffsetsOutOfOrderError
    │   └── UnexpectedAppendOffsetError
    ├── SerializationError          a serializer or a deserializer of the caller failed
    ├── OffsetOutOfRangeError       ask for an offset that the log has
    ├── NoOffsetError               the group has no committed offset: seek, or set auto_offset_reset
    ├── CorruptionError             stored bytes are damaged: repair, never retry
    │   ├── CorruptBatchError
    │   ├── CorruptIndexError
    │   ├── CorruptSnapshotError
    │   ├── CorruptCheckpointError
    │   ├── CorruptManifestError
    │   │   └── TamperedManifestError
    │   ├── CorruptObjectError
    │   └── DecompressedSizeError
    ├── LogDirError                 a log directory cannot be used
    │   ├── LogDirNotFoundError
    │   ├── LogDirLockedError
    │   ├── LogDirPermissionError
    │   ├── LogDirOfflineError
    │   ├── NotAFileError
    │   ├── FileReplacedError
    │   ├── OutOfResourcesError     the call was undone
    │   │   ├── SystemLimitError    retriable
    │   │   └── DiskFullError
    │   ├── SegmentGoneError        retriable
    │   └── ReadOnlyError
    ├── StoreError                  an object store refused or failed
    │   ├── ObjectNotFoundError
    │   ├── StorePermissionError
    │   ├── BucketNotFoundError
    │   ├── StoreTimeoutError       retriable
    │   ├── StoreThrottledError     retriable
    │   ├── TierUnavailableError    retriable; the store was unavailable when the engine was opened
    │   └── StoreUntrustedError
    ├── LocalLimitError             retriable; appends wait for the tier
    ├── FencedEpochError            another writer owns this log's tier now: stop this writer
    │   ├── EngineAheadError        an engine holds records that the tier does not have
    │   └── LogInUseError           an engine may be writing to the log: stop it, then take over
    ├── ReplicaError                the log is not in the role or epoch that the call requires
    │   ├── NotLeaderOrFollowerError    retriable
    │   ├── StaleLeaderEpochError
    │   ├── UnknownLeaderEpochError     retriable
    │   ├── OffsetInTierError
    │   └── EpochsExhaustedError
    └── ClosedError                 closed, or out of service: open it again

``retriable`` is True if the same call may succeed later. ``kafka_code`` is the error code of Kafka's protocol for the
same condition, or -1 if Kafka has none. All errors can be pickled: the constructor of each class passes all its
arguments to ``super()``.
"""

from __future__ import annotations

from stratalog.errors import base, corruption, places, record_errors, roles
from stratalog.errors.base import *  # noqa: F403 - the module lists its names in __all__
from stratalog.errors.corruption import *  # noqa: F403 - the module lists its names in __all__
from stratalog.errors.places import *  # noqa: F403 - the module lists its names in __all__
from stratalog.errors.record_errors import *  # noqa: F403 - the module lists its names in __all__
from stratalog.errors.roles import *  # noqa: F403 - the module lists its names in __all__
from stratalog.errors.system import log_dir_error

__all__ = ["log_dir_error"]
__all__ += base.__all__
__all__ += corruption.__all__
__all__ += places.__all__
__all__ += record_errors.__all__
__all__ += roles.__all__

for _name in __all__:
    globals()[_name].__module__ = __name__  # the public module, for tracebacks and for unpickling in another process
