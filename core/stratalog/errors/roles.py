"""Errors of logs that are in another role or epoch than a call expects, and of what is closed."""

from __future__ import annotations

from stratalog.errors.base import StorageError


class FencedEpochError(StorageError):
    """Another writer owns this log's tier now. Stop acknowledging; reopen to read what it did; never retry."""

    kafka_code = 74
    advice = "another writer owns this log now: stop this one, or let it take the log over again"


class LogInUseError(FencedEpochError):
    """An engine may be writing to a log of a tier that a job or a query is to write to. Stop it first, then take over."""

    advice = "stop the engine, then take the log over (take_over=True, takeOver=true in Spark, --take-over of commands)"


class EngineAheadError(FencedEpochError):
    """An engine holds records of a log that its tier does not have. Let it offload them and stop, then repeat."""

    advice = "let the engine offload its segments and stop, or write to its directory"


class ReplicaError(StorageError):
    """A log is not in the role or the leader epoch that the call expects."""


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


class EpochsExhaustedError(ReplicaError):
    """The log is in the last leader epoch that there is, 2^31 - 1. Restore it under another name."""

    advice = "restore the topic under another name, where leader epochs begin at 0 (stratalog restore --as OLD=NEW)"


class ClosedError(StorageError):
    """Used after close. Open again."""
