"""What a tier costs: requests and storage of a topic, from its settings and from how fast it is written.

Requests are those that the S3 store makes, as its tests count them. Listings are priced like writes, deletions are free.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stratalog.config.topic import UNLIMITED, TopicConfig

PART_BYTES: Final = 64 << 20  # the S3 store's default
COMMIT_WRITES: Final = 2  # a root, and the listing that proves it
COMMIT_READS: Final = 1  # whether the head is still the head
DEAR_SHARE: Final = 0.1  # of a month of storage, for the requests that bring a segment there
OBJECTS: Final = {"plain": 6}  # a segment of a layout with more than one; transaction indexes are rare
_GIB: Final = 1 << 30
_MONTH_S: Final = 730 * 3600
_THOUSAND: Final = 1000


@dataclass(frozen=True, slots=True)
class Prices:
    """In any currency. The defaults are US dollars, S3 Standard in us-east-1, as published in 2025."""

    thousand_writes: float = 0.005
    thousand_reads: float = 0.0004
    gib_month: float = 0.023


@dataclass(frozen=True, slots=True)
class Estimate:
    """A month of one topic, once its retention is reached; without retention, its first month.

    Attributes:
        segment_bytes: of a segment when it rolls, by size or by time.
        segments: offloaded a month, of all partitions.
        writes, reads: requests to offload them; reading records comes on top.
        writes_per_gib: of what is offloaded.
        stored_bytes: kept in the tier.
        request_cost, storage_cost: a month, in the currency of the prices.
        warning: what to change, or "".
    """

    segment_bytes: int
    segments: int
    writes: int
    reads: int
    writes_per_gib: float
    stored_bytes: int
    request_cost: float
    storage_cost: float
    warning: str = ""


def upload_writes(size_bytes: int, part_bytes: int = PART_BYTES) -> int:
    """Requests to upload one object: one, or its parts with a first and a last request."""
    return 1 if size_bytes <= part_bytes else -(-size_bytes // part_bytes) + 2


def estimate(
    config: TopicConfig,
    bytes_per_second: float,
    *,
    partitions: int = 1,
    part_bytes: int = PART_BYTES,
    prices: Prices | None = None,
) -> Estimate:
    """What a topic costs.

    Args:
        config: its settings.
        bytes_per_second: as its segments hold them, compressed; of the whole topic, spread evenly.
        partitions: how many it has.
        part_bytes: of uploads in parts.
        prices: what requests and storage cost.
    """
    prices = prices or Prices()
    rate = bytes_per_second / max(1, partitions)
    segment_bytes = max(1, round(min(config.segment_bytes, rate * config.segment_ms / 1000)))
    month_bytes = bytes_per_second * _MONTH_S
    segments = round(month_bytes / segment_bytes)
    small_objects = OBJECTS.get(config.tier_layout, 1) - 1
    writes = segments * (upload_writes(segment_bytes, part_bytes) + small_objects + COMMIT_WRITES)
    stored_bytes = round(_kept_bytes(config, bytes_per_second, partitions))
    request_cost = (writes * prices.thousand_writes + segments * COMMIT_READS * prices.thousand_reads) / _THOUSAND
    return Estimate(
        segment_bytes=segment_bytes,
        segments=segments,
        writes=writes,
        reads=segments * COMMIT_READS,
        writes_per_gib=writes / (month_bytes / _GIB) if month_bytes else 0.0,
        stored_bytes=stored_bytes,
        request_cost=request_cost,
        storage_cost=stored_bytes / _GIB * prices.gib_month,
        warning=_warning(config, segment_bytes, request_cost / segments, prices) if segments else "",
    )


def _kept_bytes(config: TopicConfig, bytes_per_second: float, partitions: int) -> float:
    """What retention leaves; without any, a month."""
    by_time = float("inf") if config.retention_ms == UNLIMITED else bytes_per_second * config.retention_ms / 1000
    by_size = float("inf") if config.retention_bytes == UNLIMITED else float(config.retention_bytes * partitions)
    kept = min(by_time, by_size)
    return bytes_per_second * _MONTH_S if kept == float("inf") else kept


def _warning(config: TopicConfig, segment_bytes: int, request_cost: float, prices: Prices) -> str:
    """Whether requests are dear beside storage: for one segment, and the month in which it is written."""
    storage_cost = segment_bytes / _GIB * prices.gib_month
    if not storage_cost or request_cost <= storage_cost * DEAR_SHARE:
        return ""
    what = "segment.bytes" if segment_bytes >= config.segment_bytes else "segment.ms, or use fewer partitions"
    share = request_cost / storage_cost
    return f"segments of {segment_bytes} bytes: requests cost {share:.0%} of a month of their storage; raise {what}"
