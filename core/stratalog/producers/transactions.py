"""Transactions that have ended in a log.

Source: apache/kafka CompletedTxn, ProducerStateManager.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """A transaction that a marker ended.

    ``first_offset`` is the offset of its first record, and ``last_offset`` is the marker's offset.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool
