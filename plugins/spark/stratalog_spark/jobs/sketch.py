"""Small summaries that tasks create and the driver merges: the number of distinct keys, and records over time.

Source of the count of keys: P. Flajolet and others, "HyperLogLog". Source of the estimator: O. Ertl, "New cardinality
estimation algorithms for HyperLogLog sketches". This estimator needs no correction for small or large counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

_BITS: Final = 12
_REGISTERS: Final = 1 << _BITS
_LARGEST_RANK: Final = 65
KEYS_ERROR: Final = 1.04 / math.sqrt(_REGISTERS)
"""Relative standard error of a count of keys: 1.6 %."""

BINS: Final = 512
_FIRST_WIDTH_MS: Final = 1_000


@dataclass(slots=True)
class KeySketch:
    """HyperLogLog sketch of 4 KiB, which estimates the number of distinct keys.

    ``registers`` is a numpy array of uint8.
    """

    registers: Any = field(default_factory=lambda: np.zeros(_REGISTERS, np.uint8))

    def add(self, hashes: Any) -> None:
        """Add keys by their hashes, a numpy array of shape (n, 2) of uint64."""
        # frexp returns the exponent: 64 minus the leading zeros
        ranks = (_LARGEST_RANK - np.frexp(hashes[:, 1].astype(np.float64))[1]).astype(np.uint8)
        np.maximum.at(self.registers, hashes[:, 0] >> np.uint64(64 - _BITS), ranks)

    def to_message(self) -> bytes:
        """Return the registers as bytes for ``from_message``."""
        data: bytes = self.registers.tobytes()
        return data

    @classmethod
    def from_message(cls, data: bytes) -> KeySketch:
        """Parse the output of ``to_message``.

        Raises:
            ValueError: the size of the data is not 4 KiB.
        """
        if len(data) != _REGISTERS:
            raise ValueError(f"a sketch has {_REGISTERS} bytes, not {len(data)}")
        return cls(np.frombuffer(data, np.uint8).copy())

    def merge(self, other: KeySketch) -> None:
        """Add all keys of another sketch."""
        np.maximum(self.registers, other.registers, out=self.registers)

    def count(self) -> int:
        """Return the estimated number of distinct keys; 0 if nothing was added."""
        counts = np.bincount(self.registers, minlength=_LARGEST_RANK + 1)
        limit = _LARGEST_RANK - 1  # ranks are 1 to 65; 65 means that the second half of the hash is 0
        total = float(_REGISTERS) * _tau(1.0 - float(counts[limit + 1]) / _REGISTERS)
        for rank in range(limit, 0, -1):
            total = 0.5 * (total + float(counts[rank]))
        total += _REGISTERS * _sigma(float(counts[0]) / _REGISTERS)
        return 0 if math.isinf(total) else round(_REGISTERS * _REGISTERS / (2 * math.log(2)) / total)


def _sigma(share: float) -> float:
    """Return the term of Ertl's estimator for registers that are 0; ``share`` is their share of all registers."""
    if share >= 1:
        return math.inf
    weight, total = 1.0, share
    while True:
        share *= share
        before = total
        total += share * weight
        weight += weight
        if total == before:
            return total


def _tau(share: float) -> float:
    """Return the term of Ertl's estimator for registers at their maximum; ``share`` is the share of all others."""
    if share in {0.0, 1.0}:
        return 0.0
    weight, total = 1.0, 1.0 - share
    while True:
        share = math.sqrt(share)
        before = total
        weight *= 0.5
        total -= (1.0 - share) ** 2 * weight
        if total == before:
            return total / 3


@dataclass(slots=True)
class TimeSketch:
    """Number of records over time, in at most 512 bins of equal width. The width doubles if more bins would be needed.

    ``counts[n]`` is the number of records in bin n, which starts at n x ``width_ms`` (ms since 1970). ``first_ms`` and
    ``last_ms`` are the smallest and the largest timestamp; both are None if there is no record.
    """

    width_ms: int = _FIRST_WIDTH_MS
    counts: dict[int, int] = field(default_factory=dict)
    first_ms: int | None = None
    last_ms: int | None = None

    def add(self, times_ms: Any) -> None:
        """Add timestamps, a numpy array of int64 in ms since 1970."""
        if not len(times_ms):
            return
        first, last = int(times_ms.min()), int(times_ms.max())
        self._include(first, last)
        while last // self.width_ms - first // self.width_ms >= BINS:
            self._widen(self.width_ms * 2)
        low = first // self.width_ms
        bin_counts = np.bincount(times_ms // self.width_ms - low)
        for number in np.flatnonzero(bin_counts).tolist():
            self.counts[low + number] = self.counts.get(low + number, 0) + int(bin_counts[number])
        self._shrink()

    def merge(self, other: TimeSketch) -> None:
        """Add all records of another sketch. The call may make the bins of the other sketch wider."""
        if other.first_ms is not None and other.last_ms is not None:
            self._include(other.first_ms, other.last_ms)
        width = max(self.width_ms, other.width_ms)
        self._widen(width)
        other._widen(width)
        for number, count in other.counts.items():
            self.counts[number] = self.counts.get(number, 0) + count
        self._shrink()

    def _include(self, first_ms: int, last_ms: int) -> None:
        self.first_ms = first_ms if self.first_ms is None else min(first_ms, self.first_ms)
        self.last_ms = last_ms if self.last_ms is None else max(last_ms, self.last_ms)

    def _shrink(self) -> None:
        while self.counts and max(self.counts) - min(self.counts) >= BINS:
            self._widen(self.width_ms * 2)

    def _widen(self, width_ms: int) -> None:
        if width_ms == self.width_ms:
            return
        new_counts: dict[int, int] = {}
        for number, count in self.counts.items():
            new_number = number * self.width_ms // width_ms
            new_counts[new_number] = new_counts.get(new_number, 0) + count
        self.width_ms, self.counts = width_ms, new_counts
