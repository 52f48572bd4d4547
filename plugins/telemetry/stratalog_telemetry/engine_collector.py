"""Collector of an engine's metrics for ``prometheus_client``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from math import isinf
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from stratalog import Engine, MetricKind

_FAMILIES: Final = {MetricKind.GAUGE: GaugeMetricFamily, MetricKind.COUNTER: CounterMetricFamily}


class EngineCollector(Collector):
    """Collector of all metrics and latencies of an engine, for a registry of ``prometheus_client``.

    Args:
        engine: an open engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def describe(self) -> Iterator[Metric]:
        """Yield nothing.

        Because of this method, a registry does not collect the metrics when the collector is registered.
        """
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics and latencies of the engine. Raise ClosedError if the engine is closed."""
        for metric, samples in groupby(self._engine.metrics(), key=lambda sample: sample.metric):
            family = _FAMILIES[metric.kind](metric.name, metric.doc, labels=metric.labels)
            for sample in samples:
                family.add_metric(sample.labels, sample.value)
            yield family
        for metric, latencies in groupby(self._engine.latencies(), key=lambda sample: sample.metric):
            histogram = HistogramMetricFamily(metric.name, metric.doc, labels=metric.labels)
            for latency in latencies:
                buckets = [("+Inf" if isinf(bound) else str(bound), float(count)) for bound, count in latency.buckets]
                histogram.add_metric(latency.labels, buckets, latency.sum)
            yield histogram
