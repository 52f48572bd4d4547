"""Metrics of a running engine, with names and descriptions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class MetricKind(StrEnum):
    """The kind of a metric.

    A GAUGE may rise and fall. A COUNTER starts at 0 when the engine opens, and only grows. A HISTOGRAM counts
    observations by their size.
    """

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """The description of a metric.

    Attributes:
        name: ``stratalog_``, the measured quantity and the unit; a counter's name ends with ``_total``.
        labels: names of the labels that distinguish the samples of this metric.
        kafka: Kafka's name of this metric; "" if Kafka has no such metric.
    """

    name: str
    kind: MetricKind
    doc: str
    labels: tuple[str, ...] = ()
    kafka: str = ""


class Sample(NamedTuple):
    """One value of a metric. ``labels`` are the values of the metric's labels, in the order of ``Metric.labels``."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


class HistogramSample(NamedTuple):
    """The observations of a histogram. ``labels`` are the label values, in the order of ``Metric.labels``.

    ``buckets`` has pairs of an upper bound (inclusive) and the number of all observations up to that bound. The last
    bound is infinite. ``sum`` is the sum of all observations. Bounds and ``sum`` are in the unit of the metric.
    """

    metric: Metric
    labels: tuple[str, ...]
    buckets: tuple[tuple[float, int], ...]
    sum: float
