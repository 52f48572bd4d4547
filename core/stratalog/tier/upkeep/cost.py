"""Costs of a tier: estimated from a topic's settings and write rate, or computed from the stored segments.

Requests are those that the S3 store makes, as its tests count them. A listing costs as much as a write; deletions are
free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from stratalog.config.topic import UNLIMITED, TopicConfig
from stratalog.spi.layouts import StoredSegment

PART_BYTES: Final = 64 << 20  # the S3 store's default
COMMIT_WRITES: Final = 2  # a root, and the listing that confirms it
COMMIT_READS: Final = 1  # the check that the head is still the head
DEAR_SHARE: Final = 0.1  # of a month of storage, for the requests that upload a segment
OBJECTS: Final = {"plain": 6}  # objects of a segment, for layouts with more than one; transaction indexes are rare
_GIB: Final = 1 << 30
_MONTH_S: Final = 730 * 3600
_THOUSAND: Final = 1000


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in any currency. The defaults are US dollars, S3 Standard in us-east-1, as published in 2025."""

    thousand_writes: float = 0.005
    thousand_reads: float = 0.0004
    gib_month: float = 0.023


@dataclass(frozen=True, slots=True)
class Estimate:
    """Costs of one topic in a month after its retention is reached; without retention, in its first month.

    Attributes:
        segment_bytes: of a segment when it rolls, by size or by time.
        segments: number offloaded in a month, of all partitions.
        writes, reads: requests to offload them; reads of records are not included.
        writes_per_gib: of offloaded log.
        stored_bytes: kept in the tier.
        request_cost, storage_cost: in a month, in the currency of the prices.
        warning: advice on settings, or "".
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


@dataclass(frozen=True, slots=True)
class Bill:
    """Content of the tier of one log now, and the requests that uploaded it.

    Attributes:
        segments: number in the latest root.
        log_bytes: of their ``.log`` files.
        stored_bytes: of all their files as they are stored; without manifests and uncollected objects.
        objects: number of objects that hold them.
        smallest_bytes, largest_bytes: of the ``.log`` files.
        commits: of the log so far, including those of segments that have left the tier.
        writes: requests that uploaded the segments: uploads by the sizes of the objects, and the writes of one commit
            each.
        writes_per_gib: of log.
        request_cost: of uploading them, once.
        storage_cost: of a month.
        warning: advice on settings, or "".
    """

    segments: int
    log_bytes: int
    stored_bytes: int
    objects: int
    smallest_bytes: int
    largest_bytes: int
    commits: int
    writes: int
    writes_per_gib: float
    request_cost: float
    storage_cost: float
    warning: str = ""


def bill(
    entries: Iterable[StoredSegment], commits: int, *, part_bytes: int = PART_BYTES, prices: Prices | None = None
) -> Bill:
    """Return the cost of the segments of a log; they are read one by one.

    Args:
        entries: all entries of the latest root.
        commits: the version of that root.
        part_bytes: size of the parts of an upload.
        prices: of requests and storage.
    """
    prices = prices or Prices()
    sizes: list[int] = []
    stored_bytes = objects = uploads = 0
    for entry in entries:
        held = Counter(dict.fromkeys(entry.keys, 0))
        for place in entry.slices.values():
            held[place.key] += place.size_bytes
        sizes.append(entry.info.size_bytes)
        stored_bytes += held.total()
        objects += len(held)
        uploads += sum(upload_writes(size_bytes, part_bytes) for size_bytes in held.values())
    log_bytes, segments = sum(sizes), len(sizes)
    writes = uploads + segments * COMMIT_WRITES
    request_cost = _request_cost(writes, segments, prices)
    mean_bytes = log_bytes // segments if segments else 0
    return Bill(
        segments=segments,
        log_bytes=log_bytes,
        stored_bytes=stored_bytes,
        objects=objects,
        smallest_bytes=min(sizes, default=0),
        largest_bytes=max(sizes, default=0),
        commits=commits,
        writes=writes,
        writes_per_gib=writes / (log_bytes / _GIB) if log_bytes else 0.0,
        request_cost=request_cost,
        storage_cost=stored_bytes / _GIB * prices.gib_month,
        warning=_warning("segment.bytes or segment.ms", mean_bytes, request_cost / segments, prices)
        if segments
        else "",
    )


def tiny_segments(config: TopicConfig, prices: Prices | None = None) -> str:
    """Return why the settings of a topic make too small segments for a tier, at any write rate; "" if they do not."""
    if not config.remote_storage_enable:
        return ""
    prices = prices or Prices()
    size_bytes = config.segment_bytes
    writes = _segment_writes(config, size_bytes, PART_BYTES)
    found = _warning("segment.bytes", size_bytes, _request_cost(writes, 1, prices), prices)
    return f"{found} ({writes * _GIB / size_bytes:,.0f} writes a GiB)" if found else ""


def upload_writes(size_bytes: int, part_bytes: int = PART_BYTES) -> int:
    """Return the number of requests to upload one object: one; or its parts, with a first and a last request."""
    return 1 if size_bytes <= part_bytes else -(-size_bytes // part_bytes) + 2


def estimate(
    config: TopicConfig,
    bytes_per_second: float,
    *,
    partitions: int = 1,
    part_bytes: int = PART_BYTES,
    prices: Prices | None = None,
) -> Estimate:
    """Return the estimated cost of a topic.

    Args:
        config: its settings.
        bytes_per_second: write rate of the whole topic, in compressed bytes as in segments, spread evenly.
        partitions: number of partitions.
        part_bytes: size of the parts of an upload.
        prices: of requests and storage.
    """
    prices = prices or Prices()
    rate = bytes_per_second / max(1, partitions)
    segment_bytes = max(1, round(min(config.segment_bytes, rate * config.segment_ms / 1000)))
    month_bytes = bytes_per_second * _MONTH_S
    segments = round(month_bytes / segment_bytes)
    writes = segments * _segment_writes(config, segment_bytes, part_bytes)
    stored_bytes = round(_kept_bytes(config, bytes_per_second, partitions))
    request_cost = _request_cost(writes, segments, prices)
    what = "segment.bytes" if segment_bytes >= config.segment_bytes else "segment.ms, or use fewer partitions"
    return Estimate(
        segment_bytes=segment_bytes,
        segments=segments,
        writes=writes,
        reads=segments * COMMIT_READS,
        writes_per_gib=writes / (month_bytes / _GIB) if month_bytes else 0.0,
        stored_bytes=stored_bytes,
        request_cost=request_cost,
        storage_cost=stored_bytes / _GIB * prices.gib_month,
        warning=_warning(what, segment_bytes, request_cost / segments, prices) if segments else "",
    )


def _kept_bytes(config: TopicConfig, bytes_per_second: float, partitions: int) -> float:
    """Return the bytes that retention keeps; without retention, the bytes of a month."""
    by_time = float("inf") if config.retention_ms == UNLIMITED else bytes_per_second * config.retention_ms / 1000
    by_size = float("inf") if config.retention_bytes == UNLIMITED else float(config.retention_bytes * partitions)
    kept = min(by_time, by_size)
    return bytes_per_second * _MONTH_S if kept == float("inf") else kept


def _segment_writes(config: TopicConfig, segment_bytes: int, part_bytes: int) -> int:
    """Return the requests, at the price of writes, that upload and commit one segment."""
    small_objects = OBJECTS.get(config.tier_layout, 1) - 1
    return upload_writes(segment_bytes, part_bytes) + small_objects + COMMIT_WRITES


def _request_cost(writes: int, segments: int, prices: Prices) -> float:
    return (writes * prices.thousand_writes + segments * COMMIT_READS * prices.thousand_reads) / _THOUSAND


def _warning(what: str, segment_bytes: int, request_cost: float, prices: Prices) -> str:
    """Return advice if the requests of a segment cost too much compared with a month of its storage, or ""."""
    storage_cost = segment_bytes / _GIB * prices.gib_month
    if not storage_cost or request_cost <= storage_cost * DEAR_SHARE:
        return ""
    share = request_cost / storage_cost
    return (
        f"segments have {segment_bytes} bytes: their requests cost {share:.0%} of a month of their storage; raise "
        f"{what}"
    )
