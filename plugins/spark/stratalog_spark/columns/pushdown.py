"""Predicates that a query pushes down: their parser, and the offset ranges whose records can satisfy them.

A predicate is a tree of JSON lists: ``["and", A, B]``, ``["or", A, B]``, ``["notnull", COLUMN]``, ``["in", COLUMN,
VALUE, ...]``, or a comparison such as ``["<", "offset", 10]``. Timestamps are in microseconds, as in Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any, Final, NamedTuple, TypeAlias

from stratalog import Isolation, LogReader
from stratalog.errors import ConfigError
from stratalog.reading import OffsetRange, timestamp_ranges

COMPARED: Final = ("topic", "partition", "offset", "timestamp")
COMPARISONS: Final = {"=": "equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
_NO_END: Final = 1 << 63
_FIRST_MS: Final = -(1 << 63)
_LAST_MS: Final = ((1 << 63) - 1) // 1000  # Spark's microseconds have no later time; later ones are null
UNORDERED: Final = (
    "an upper bound of timestamp prunes nothing here, because records of a partition may be out of order, and only manifests "
    "of a tier hold smallest timestamps: option endingTimestamp ends the read at the first record that is not older"
)

Spans: TypeAlias = list[tuple[int, int]]


class Node(NamedTuple):
    """One predicate.

    Attributes:
        operator: ``and``, ``or``, ``notnull``, ``in``, or a comparison such as ``<``.
        column: the column; empty for ``and`` and ``or``.
        values: values with which the operator compares the column.
        parts: predicates that ``and`` or ``or`` combines; empty for other operators.
    """

    operator: str
    column: str = ""
    values: tuple[int | str, ...] = ()
    parts: tuple[Node, ...] = ()

    def __str__(self) -> str:
        if self.parts:
            return "(" + f" {self.operator} ".join(map(str, self.parts)) + ")"
        if self.operator == "notnull":
            return f"{self.column} is not null"
        values = ", ".join(map(repr, self.values))
        return f"{self.column} {self.operator} " + (f"({values})" if self.operator == "in" else values)

    @property
    def leaves(self) -> Iterator[Node]:
        """Yield the predicates of the tree except ``and`` and ``or``."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves

    @property
    def has_late_bound(self) -> bool:
        """True if a comparison sets an upper bound for timestamps."""
        return any(leaf.column == "timestamp" and leaf.operator in {"<", "<=", "="} for leaf in self.leaves)


def parse_predicate(option: str, text: str) -> Node:
    """Parse the text of an option to a predicate. Raise ConfigError if the text is not a valid predicate."""
    try:
        return _parse_node(json.loads(text))
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise ConfigError(f"option {option}={text!r} is not a predicate: {error}") from None


def _parse_node(items: list[Any]) -> Node:
    operator = items[0]
    if operator in {"and", "or"}:
        if len(items) == 1:
            raise ValueError(f"{operator} needs a predicate")
        return Node(operator, parts=tuple(map(_parse_node, items[1:])))
    column, values = items[1], tuple(items[2:])
    value_type = str if column == "topic" else int
    if column not in COMPARED or not (operator in COMPARISONS or operator in {"in", "notnull"}):
        raise ValueError(f"there is no comparison {operator} of {column}")
    has_values = {"in": len(values) > 0, "notnull": not values}.get(operator, len(values) == 1)
    if any(type(value) is not value_type for value in values) or not has_values:
        raise ValueError(f"{operator} cannot compare {column} with {values}")
    return Node(operator, column, values)


def narrow_range(predicate: Node, log: LogReader, offset_range: OffsetRange, isolation: Isolation) -> list[OffsetRange]:
    """Return the ranges in ``offset_range`` that can have records for which the predicate is true.

    If the predicate is true for every record of a returned range, this range has the same ``is_counted`` as
    ``offset_range``. Other ranges have ``is_counted=False``, because their records must be read.
    """
    matches = _match(predicate, log, (offset_range.start, offset_range.end), isolation)
    if not offset_range.is_counted:
        return [OffsetRange(offset_range.log, start, end) for start, end in matches.possible]
    unsure = _intersect(matches.possible, _complement(matches.certain, (offset_range.start, offset_range.end)))
    parts = [(span, True) for span in matches.certain] + [(span, False) for span in unsure]
    return [OffsetRange(offset_range.log, *span, is_counted=is_counted) for span, is_counted in sorted(parts)]


class _Matches(NamedTuple):
    """Offset ranges whose records can satisfy a predicate (``possible``), or certainly satisfy it (``certain``)."""

    possible: Spans
    certain: Spans


def _match(node: Node, log: LogReader, bounds: tuple[int, int], isolation: Isolation) -> _Matches:
    if node.parts:
        part_matches = [_match(part, log, bounds, isolation) for part in node.parts]
        if node.operator == "and":
            return _Matches(*(reduce(_intersect, spans) for spans in zip(*part_matches, strict=True)))
        return _Matches(*map(_merge, zip(*part_matches, strict=True)))
    if node.column == "timestamp":
        return _match_times(node, log, bounds, isolation)
    if node.operator == "notnull":
        exact = _merge([[bounds]])
    elif node.column == "offset":
        intervals = [_interval(node.operator, value, value, 0, _NO_END - 1) for value in map(int, node.values)]
        exact = _intersect([bounds], _merge([[(first, last + 1)] for first, last in intervals]))
    else:
        log_value: int | str = log.name.topic if node.column == "topic" else log.name.partition
        exact = _merge([[bounds]] if any(_holds(node.operator, log_value, value) for value in node.values) else [])
    return _Matches(exact, exact)


def _holds(operator: str, log_value: Any, value: Any) -> bool:
    order: int = (log_value > value) - (log_value < value)
    results = {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}
    return results.get(operator, order == 0)


def _interval(operator: str, floor: int, ceiling: int, lowest: int, highest: int) -> tuple[int, int]:
    """Return the first and the last integer for which a comparison is true; first > last if there is no such integer.

    The value of the comparison, rounded down and up, is ``floor`` and ``ceiling``.
    """
    return {
        "=": (ceiling, floor),
        "in": (ceiling, floor),
        "<": (lowest, ceiling - 1),
        "<=": (lowest, floor),
        ">": (floor + 1, highest),
        ">=": (ceiling, highest),
    }[operator]


def _match_times(node: Node, log: LogReader, bounds: tuple[int, int], isolation: Isolation) -> _Matches:
    """Return the offset ranges for a predicate on the column ``timestamp``: a comparison, ``in`` or ``notnull``."""
    values_us = map(int, node.values)
    intervals = [
        _interval(node.operator, value // 1000, -(-value // 1000), _FIRST_MS, _LAST_MS) for value in values_us
    ] or [(_FIRST_MS, _LAST_MS)]
    matches = [_match_interval(first, last, log, bounds, isolation) for first, last in intervals]
    return _Matches(*map(_merge, zip(*matches, strict=True)))


def _match_interval(
    first_ms: int, last_ms: int, log: LogReader, bounds: tuple[int, int], isolation: Isolation
) -> _Matches:
    """Return the offset ranges whose records have timestamps from ``first_ms`` to ``last_ms``, inclusive.

    The ranges begin at the first record with a timestamp of at least ``first_ms``. Segments without a matching record
    are left out.
    """
    start, end = bounds
    if first_ms > last_ms or start >= end:
        return _Matches([], [])
    first = log.offset_for_timestamp(first_ms, isolation) if first_ms > _FIRST_MS else start
    if first is None:
        return _Matches([], [])
    parts = list(timestamp_ranges(log, max(start, first), end, first_ms, last_ms))
    return _Matches(
        _merge([[(part.start, part.end) for part in parts]]),
        _merge([[(part.start, part.end) for part in parts if part.is_certain]]),
    )


def _complement(spans: Spans, bounds: tuple[int, int]) -> Spans:
    """Return the ranges in ``bounds`` that are outside of ``spans``. The spans must be ascending."""
    edges = [bounds[0], *(edge for span in spans for edge in span), bounds[1]]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]


def _intersect(first_spans: Spans, second_spans: Spans) -> Spans:
    pairs = ((max(a, c), min(b, d)) for a, b in first_spans for c, d in second_spans)
    return sorted((start, end) for start, end in pairs if start < end)


def _merge(span_lists: Iterable[Spans]) -> Spans:
    merged: Spans = []
    for start, end in sorted(span for spans in span_lists for span in spans if span[0] < span[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged
