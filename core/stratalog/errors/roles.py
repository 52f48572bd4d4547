"""Errors of logs that are not in the role or leader epoch that a call requires, and of closed objects."""

from __future__ import annotations

from stratalog.errors.base import StorageError

__all__ = [
    "ClosedError", "EngineAheadError", "EpochsExhaustedError", "FencedEpochError", "LogInUseError",
    "NotLeaderOrFollowerError", "OffsetInTierError", "ReplicaError", "StaleLeaderEpochError", "UnknownLeaderEpochError",
]  # fmt: skip


class FencedEpochError(StorageError, kafka_code=74):
    """Another writer has taken over the log's tier, or the records in tier and directory differ. Never retry."""

    advice = (
        "another writer owns this log: stop this one, or attach the tier to an empty directory to take the log over"
    )


class LogInUseError(FencedEpochError):
    """A job cannot write to a log of a tier: an engine may write to this log, or its leader epoch has changed.

    Stop the engine, then repeat the job with its take-over option. If the leader epoch changed during the job, start
    the job again.
    """

    advice = "stop the engine that writes to the log, then repeat the call with the take-over option"


class EngineAheadError(FencedEpochError):
    """An engine has records that the log's tier lacks. Offload the records, stop the engine, then repeat the call."""

    advice = "let the engine offload its segments and stop it, or write to its log directory"


class ReplicaError(StorageError):
    """A log is not in the role or the leader epoch that the call requires."""


class NotLeaderOrFollowerError(ReplicaError, kafka_code=6, retriable=True):
    """The call needs a leader, but the log is a follower, or vice versa. Call the leader, or change the role first."""


class StaleLeaderEpochError(ReplicaError, kafka_code=74):
    """The leader epoch of the call is older than the log's, or belongs to another leader. Find the current leader."""


class UnknownLeaderEpochError(ReplicaError, kafka_code=75, retriable=True):
    """The leader epoch of the call is newer than the log's. Retry after the log has the new leader epoch."""


class OffsetInTierError(ReplicaError, kafka_code=109):
    """A leader cannot truncate records that its tier has committed."""


class EpochsExhaustedError(ReplicaError):
    """The log is in the last possible leader epoch, 2^31 - 1. Restore the topic under another name."""

    advice = "restore the topic under another name, where leader epochs start at 0: stratalog restore --as OLD=NEW"


class ClosedError(StorageError):
    """The object is closed, was opened before a fork, or is out of service after a failed change. Open it again."""

    kafka_code = 6  # NOT_LEADER_OR_FOLLOWER, on which clients look for the log again: its topic may have been deleted
