"""Metrics of a running engine, with names and descriptions, and Prometheus' text format for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple


class MetricKind(StrEnum):
    """The kind of a metric. A GAUGE may rise and fall; a COUNTER starts at 0 when the engine opens, and only grows."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Metric:
    """The description of a metric.

    Attributes:
        name: ``stratalog_``, the measured quantity and the unit; a counter's name ends with ``_total``.
        kind: gauge or counter.
        doc: one sentence.
        labels: names of the labels that distinguish its samples.
        kafka: Kafka's name of the same metric, "" if Kafka has none.
    """

    name: str
    kind: MetricKind
    doc: str
    labels: tuple[str, ...] = ()
    kafka: str = ""


class Sample(NamedTuple):
    """One value of a metric, with the values of the metric's labels in their order."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


def exposition(samples: Iterable[Sample]) -> str:
    """Return samples in Prometheus' text format, version 0.0.4. The samples of one metric must be consecutive."""
    lines = []
    for metric, found in groupby(samples, key=lambda sample: sample.metric):
        lines.append(f"# HELP {metric.name} {_escaped(metric.doc)}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for sample in found:
            pairs = ",".join(
                f'{name}="{_escaped(value, quoted=True)}"'
                for name, value in zip(metric.labels, sample.labels, strict=True)
            )
            lines.append(f"{metric.name}{{{pairs}}} {sample.value}" if pairs else f"{metric.name} {sample.value}")
    return "".join(f"{line}\n" for line in lines)


def _escaped(text: str, *, quoted: bool = False) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quoted else text
