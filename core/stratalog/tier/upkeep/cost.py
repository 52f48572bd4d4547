"""Costs of a tier: estimated from a topic's settings and write rate, or computed from the stored segments.

The numbers of requests are the numbers that the S3 store sends; the tests of that store count them. A listing costs as
much as a write. Deletions cost nothing.
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
COMMIT_READS: Final = 1  # the check that no newer root exists
DEAR_SHARE: Final = 0.1  # requests that cost more than this share of a month of storage cause a warning
OBJECTS: Final = {"plain": 6}  # number of objects of a segment without a transaction index, by layout; others: 1
_GIB: Final = 1 << 30
_MONTH_S: Final = 730 * 3600
_THOUSAND: Final = 1000


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of 1,000 writes, 1,000 reads, and of 1 GiB stored for a month, in any currency.

    The defaults are the prices of S3 Standard in us-east-1, in US dollars, as published in 2025.
    """

    thousand_writes: float = 0.005
    thousand_reads: float = 0.0004
    gib_month: float = 0.023


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated costs of one topic for one month.

    Attributes:
        segment_bytes: size of a segment when it is rolled, by size or by time.
        segments: number of segments that all partitions offload in a month.
        writes, reads: numbers of requests to offload these segments; reads of records are not included.
        writes_per_gib: number of writes for each GiB of offloaded log.
        stored_bytes: number of bytes in the tier at the retention limit; without a limit, or without the cleanup policy
            ``delete``, after one month.
        request_cost, storage_cost: costs of a month, in the currency of the prices.
        warning: advice on settings, "" if there is none.
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
    """Costs of the current segments of one log in a tier: of the requests that uploaded them, and of their storage.

    Attributes:
        segments: number of the current segments.
        log_bytes: size of their ``.log`` files.
        stored_bytes: stored size of all their files. Manifests, and objects that the collector has not deleted yet, are
            not included.
        objects: number of objects with these files.
        smallest_bytes, largest_bytes: sizes of the smallest and the largest ``.log`` file; 0 without segments.
        commits: number of all commits of the log so far.
        writes: number of requests that uploaded the segments: the uploads, computed from the sizes of the objects, and
            the writes of one commit for each segment.
        writes_per_gib: number of writes for each GiB of log.
        request_cost: cost of these requests.
        storage_cost: cost of the storage for a month.
        warning: advice on settings, "" if there is none.
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
    """Return the costs of the segments of a log.

    Args:
        entries: all entries of the latest manifest root; consumed one by one.
        commits: the version of that root, which is the number of commits so far.
        part_bytes: size of the parts of an upload.
        prices: prices of requests and storage; None for the defaults of ``Prices``.
    """
    prices = prices or Prices()
    sizes: list[int] = []
    stored_bytes = objects = uploads = 0
    for entry in entries:
        size_by_key = Counter(dict.fromkeys(entry.keys, 0))
        for place in entry.slices.values():
            size_by_key[place.key] += place.size_bytes
        sizes.append(entry.info.size_bytes)
        stored_bytes += size_by_key.total()
        objects += len(size_by_key)
        uploads += sum(upload_writes(size_bytes, part_bytes) for size_bytes in size_by_key.values())
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
    """Return a warning if ``segment.bytes`` is so small that requests cost too much, at any write rate; otherwise "".

    The result is also "" if the topic does not use a tier.
    """
    if not config.remote_storage_enable:
        return ""
    prices = prices or Prices()
    size_bytes = config.segment_bytes
    writes = _segment_writes(config, size_bytes, PART_BYTES)
    warning = _warning("segment.bytes", size_bytes, _request_cost(writes, 1, prices), prices)
    return f"{warning} ({writes * _GIB / size_bytes:,.0f} writes a GiB)" if warning else ""


def upload_writes(size_bytes: int, part_bytes: int = PART_BYTES) -> int:
    """Return the number of requests to upload one object.

    An object of at most ``part_bytes`` needs one request. A larger one needs a request for each part, and two more.
    """
    return 1 if size_bytes <= part_bytes else -(-size_bytes // part_bytes) + 2


def estimate(
    config: TopicConfig,
    bytes_per_second: float,
    *,
    partitions: int = 1,
    part_bytes: int = PART_BYTES,
    prices: Prices | None = None,
) -> Estimate:
    """Return the estimated costs of a topic for one month.

    Args:
        config: settings of the topic.
        bytes_per_second: write rate of the whole topic, in bytes as segments store them (compressed). The estimate
            assumes the same rate for all partitions.
        partitions: number of partitions.
        part_bytes: size of the parts of an upload.
        prices: prices of requests and storage; None for the defaults of ``Prices``.
    """
    prices = prices or Prices()
    rate = bytes_per_second / max(1, partitions)
    segment_bytes = max(1, round(min(config.segment_bytes, rate * config.segment_ms / 1000)))
    month_bytes = bytes_per_second * _MONTH_S
    segments = round(month_bytes / segment_bytes)
    writes = segments * _segment_writes(config, segment_bytes, part_bytes)
    stored_bytes = round(_retained_bytes(config, bytes_per_second, partitions))
    request_cost = _request_cost(writes, segments, prices)
    setting = "segment.bytes" if segment_bytes >= config.segment_bytes else "segment.ms, or use fewer partitions"
    return Estimate(
        segment_bytes=segment_bytes,
        segments=segments,
        writes=writes,
        reads=segments * COMMIT_READS,
        writes_per_gib=writes / (month_bytes / _GIB) if month_bytes else 0.0,
        stored_bytes=stored_bytes,
        request_cost=request_cost,
        storage_cost=stored_bytes / _GIB * prices.gib_month,
        warning=_warning(setting, segment_bytes, request_cost / segments, prices) if segments else "",
    )


def _retained_bytes(config: TopicConfig, bytes_per_second: float, partitions: int) -> float:
    """Return the bytes that retention keeps; without retention, the bytes of a month."""
    month_bytes = bytes_per_second * _MONTH_S
    if "delete" not in config.cleanup_policy:
        return month_bytes
    by_time = float("inf") if config.retention_ms == UNLIMITED else bytes_per_second * config.retention_ms / 1000
    by_size = float("inf") if config.retention_bytes == UNLIMITED else float(config.retention_bytes * partitions)
    retained_bytes = min(by_time, by_size)
    return month_bytes if retained_bytes == float("inf") else retained_bytes


def _segment_writes(config: TopicConfig, segment_bytes: int, part_bytes: int) -> int:
    """Return the number of writes and listings that upload and commit one segment."""
    small_objects = OBJECTS.get(config.tier_layout, 1) - 1
    return upload_writes(segment_bytes, part_bytes) + small_objects + COMMIT_WRITES


def _request_cost(writes: int, segments: int, prices: Prices) -> float:
    return (writes * prices.thousand_writes + segments * COMMIT_READS * prices.thousand_reads) / _THOUSAND


def _warning(setting: str, segment_bytes: int, request_cost: float, prices: Prices) -> str:
    """Return advice if the requests for a segment cost too much compared with a month of its storage; otherwise ""."""
    storage_cost = segment_bytes / _GIB * prices.gib_month
    if not storage_cost or request_cost <= storage_cost * DEAR_SHARE:
        return ""
    share = request_cost / storage_cost
    return (
        f"segments have {segment_bytes} bytes: their requests cost {share:.0%} of a month of their storage; raise "
        f"{setting}"
    )
