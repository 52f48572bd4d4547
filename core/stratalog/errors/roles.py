"""Errors of logs that are in another role or epoch than a call expects, and of what is closed."""

from __future__ import annotations

from stratalog.errors.base import StorageError


class FencedEpochError(StorageError):
    """Another writer owns this log's tier now. Stop acknowledging; reopen to read what it did; never retry."""

    kafka_code = 74
    advice = "another writer owns this log now; stop this engine, or attach again to take over"


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
