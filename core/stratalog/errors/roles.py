"""Errors of logs in another role or epoch than a call requires, and of closed objects."""

from __future__ import annotations

from stratalog.errors.base import StorageError


class FencedEpochError(StorageError):
    """Another writer owns the log's tier now. Never retry; open the log again to read the new writer's records."""

    kafka_code = 74
    advice = (
        "another writer owns this log: stop this one, or attach the tier to an empty directory to take the log over"
    )


class LogInUseError(FencedEpochError):
    """A job or query cannot write to a tier's log while an engine may write to it. Stop the engine, then take over."""

    advice = "stop the engine that writes to the log, then repeat the call with the take-over option"


class EngineAheadError(FencedEpochError):
    """An engine has records that its log's tier lacks. Offload them, stop the engine, then repeat the call."""

    advice = "let the engine offload its segments and stop it, or write to its log directory"


class ReplicaError(StorageError):
    """A log is not in the role or the leader epoch that the call requires."""


class NotLeaderOrFollowerError(ReplicaError):
    """The log follows but must lead, or leads but must follow. Call the leader, or change the role first."""

    retriable = True
    kafka_code = 6


class StaleLeaderEpochError(ReplicaError):
    """The leader epoch is older than the log's. Find the current leader; never retry with this epoch."""

    kafka_code = 74


class UnknownLeaderEpochError(ReplicaError):
    """The leader epoch is newer than the log's. Retry after the log was given the new epoch."""

    retriable = True
    kafka_code = 75


class OffsetInTierError(ReplicaError):
    """A leader cannot truncate records that its tier has committed."""

    kafka_code = 109


class EpochsExhaustedError(ReplicaError):
    """The log is in the last possible leader epoch, 2^31 - 1. Restore it under another name."""

    advice = "restore the topic under another name, where leader epochs start at 0: stratalog restore --as OLD=NEW"


class ClosedError(StorageError):
    """The object is closed, or a failed change that could not be undone took it out of service. Open it again."""
