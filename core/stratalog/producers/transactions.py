"""What a log knows of transactions that have ended.

Source: apache/kafka CompletedTxn, ProducerStateManager.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """A transaction that a marker ended; offsets of its first record and of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool
