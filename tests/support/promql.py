"""Metrics and labels that a PromQL expression uses, found with the parser of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import promql_parser

PROCESS_METRICS = {"process_resident_memory_bytes", "process_cpu_seconds_total"}
TARGET_LABELS = {"instance", "job"}


def selectors(expression: Any) -> Iterator[tuple[str, set[str]]]:
    """Yield each metric of a parsed expression, with the labels that its matchers or aggregations use."""
    yield from _selectors(expression, frozenset())


def labels_left(expression: Any) -> set[str] | None:
    """Return the labels that the result of an aggregation has; None if the expression keeps all labels."""
    if isinstance(expression, promql_parser.AggregateExpr):
        return set(expression.modifier.labels) if expression.modifier is not None else set()
    for part in _parts(expression):
        labels = labels_left(part)
        if labels is not None:
            return labels
    return None


def _selectors(expression: Any, grouped_labels: frozenset[str]) -> Iterator[tuple[str, set[str]]]:
    if isinstance(expression, promql_parser.MatrixSelector):
        expression = expression.vector_selector
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression.name or "", {matcher.name for matcher in expression.matchers.matchers} | grouped_labels
        return
    if isinstance(expression, promql_parser.AggregateExpr) and expression.modifier is not None:
        grouped_labels |= frozenset(expression.modifier.labels)
    for part in _parts(expression):
        yield from _selectors(part, grouped_labels)


def _parts(expression: Any) -> list[Any]:
    if isinstance(expression, promql_parser.Call):
        return list(expression.args)
    if isinstance(expression, promql_parser.BinaryExpr):
        return [expression.lhs, expression.rhs]
    if isinstance(expression, promql_parser.AggregateExpr | promql_parser.ParenExpr | promql_parser.UnaryExpr):
        return [expression.expr]
    return []
