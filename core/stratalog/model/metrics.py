"""Figures of a running engine, named and described, and the text in which collectors read them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import NamedTuple


class MetricKind(StrEnum):
    """GAUGE goes up and down; COUNTER begins at 0 when the engine opens, and only grows."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Metric:
    """What a figure means.

    Attributes:
        name: ``stratalog_`` and what it counts, the unit last; of a counter, ``_total`` after that.
        kind: how it moves.
        doc: one sentence.
        labels: what tells its samples apart.
        kafka: what Kafka calls the same figure, "" if it has none.
    """

    name: str
    kind: MetricKind
    doc: str
    labels: tuple[str, ...] = ()
    kafka: str = ""


class Sample(NamedTuple):
    """One figure: the values of the metric's labels, in their order, and how much it is now."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


def exposition(samples: Iterable[Sample]) -> str:
    """Samples in Prometheus' text format, version 0.0.4; those of one metric must follow each other."""
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
