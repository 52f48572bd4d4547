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
        left = labels_left(part)
        if left is not None:
            return left
    return None


def _selectors(found: Any, named: frozenset[str]) -> Iterator[tuple[str, set[str]]]:
    if isinstance(found, promql_parser.MatrixSelector):
        found = found.vector_selector
    if isinstance(found, promql_parser.VectorSelector):
        yield found.name or "", {matcher.name for matcher in found.matchers.matchers} | named
        return
    if isinstance(found, promql_parser.AggregateExpr) and found.modifier is not None:
        named |= frozenset(found.modifier.labels)
    for part in _parts(found):
        yield from _selectors(part, named)


def _parts(found: Any) -> list[Any]:
    if isinstance(found, promql_parser.Call):
        return list(found.args)
    if isinstance(found, promql_parser.BinaryExpr):
        return [found.lhs, found.rhs]
    if isinstance(found, promql_parser.AggregateExpr | promql_parser.ParenExpr | promql_parser.UnaryExpr):
        return [found.expr]
    return []
