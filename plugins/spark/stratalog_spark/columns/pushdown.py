"""Predicates that a query pushes down: the offsets whose records can satisfy them, and the rows that satisfy them.

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
_LAST_MS: Final = ((1 << 63) - 1) // 1000  # the largest time that Spark's microseconds hold; later ones are null
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
        values: values with which the column is compared.
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
        """The predicates of the tree, without ``and`` and ``or``."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves

    @property
    def has_late_bound(self) -> bool:
        """True if a comparison gives timestamps an upper bound."""
        return any(leaf.column == "timestamp" and leaf.operator in {"<", "<=", "="} for leaf in self.leaves)


def parsed(option: str, text: str) -> Node:
    """Return the predicate of an option.

    Raises:
        ConfigError: the text is not a valid predicate.
    """
    try:
        return _node(json.loads(text))
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise ConfigError(f"option {option}={text!r} is no predicate: {error}") from None


def _node(found: list[Any]) -> Node:
    operator = found[0]
    if operator in {"and", "or"}:
        if len(found) == 1:
            raise ValueError(f"{operator} of no predicates")
        return Node(operator, parts=tuple(map(_node, found[1:])))
    column, values = found[1], tuple(found[2:])
    wanted = str if column == "topic" else int
    if column not in COMPARED or not (operator in COMPARISONS or operator in {"in", "notnull"}):
        raise ValueError(f"{operator} {column}")
    has_values = {"in": len(values) > 0, "notnull": not values}.get(operator, len(values) == 1)
    if any(type(value) is not wanted for value in values) or not has_values:
        raise ValueError(f"values {values} of {column}")
    return Node(operator, column, values)


def narrowed(node: Node, log: LogReader, whole: OffsetRange, isolation: Isolation) -> list[OffsetRange]:
    """Return the parts of the range ``whole`` that can have records for which the predicate is true.

    A part in which the predicate is true for every record keeps ``is_counted`` of ``whole``. Other parts have
    ``is_counted=False``, because their records must be read.
    """
    found = _spans(node, log, (whole.start, whole.end), isolation)
    if not whole.is_counted:
        return [OffsetRange(whole.log, start, end) for start, end in found.possible]
    unsure = _common(found.possible, _without(found.certain, (whole.start, whole.end)))
    parts = [(span, True) for span in found.certain] + [(span, False) for span in unsure]
    return [OffsetRange(whole.log, *span, is_counted=counted) for span, counted in sorted(parts)]


class _Found(NamedTuple):
    """Offsets of records for which a predicate can be true, and of those for which it is certainly true."""

    possible: Spans
    certain: Spans


def _spans(node: Node, log: LogReader, whole: tuple[int, int], isolation: Isolation) -> _Found:
    if node.parts:
        found = [_spans(part, log, whole, isolation) for part in node.parts]
        if node.operator == "and":
            return _Found(*(reduce(_common, spans) for spans in zip(*found, strict=True)))
        return _Found(*map(_joined, zip(*found, strict=True)))
    if node.column == "timestamp":
        return _at_times(node, log, whole, isolation)
    if node.operator == "notnull":
        exact = _joined([[whole]])
    elif node.column == "offset":
        exact = _common([whole], _joined([[_offsets(node.operator, int(value))] for value in node.values]))
    else:
        here: int | str = log.name.topic if node.column == "topic" else log.name.partition
        exact = _joined([[whole]] if any(_holds(node.operator, here, value) for value in node.values) else [])
    return _Found(exact, exact)


def _holds(operator: str, here: Any, value: Any) -> bool:
    order: int = (here > value) - (here < value)
    found = {"<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}
    return found.get(operator, order == 0)


def _offsets(operator: str, value: int) -> tuple[int, int]:
    return {
        "=": (value, value + 1),
        "in": (value, value + 1),
        "<": (0, value),
        "<=": (0, value + 1),
        ">": (value + 1, _NO_END),
        ">=": (value, _NO_END),
    }[operator]


def _times_ms(operator: str, value_us: int) -> tuple[int, int]:
    """Return the first and the last time (ms) for which a comparison is true; first > last if there is no such time."""
    return {
        "=": (-(-value_us // 1000), value_us // 1000),
        "in": (-(-value_us // 1000), value_us // 1000),
        "<": (_FIRST_MS, -(-value_us // 1000) - 1),
        "<=": (_FIRST_MS, value_us // 1000),
        ">": (value_us // 1000 + 1, _LAST_MS),
        ">=": (-(-value_us // 1000), _LAST_MS),
    }[operator]


def _at_times(node: Node, log: LogReader, whole: tuple[int, int], isolation: Isolation) -> _Found:
    """Return the offsets of records whose timestamps can satisfy, or certainly satisfy, a comparison or ``notnull``."""
    each = [_times_ms(node.operator, int(value)) for value in node.values] or [(_FIRST_MS, _LAST_MS)]
    found = [_between(first, last, log, whole, isolation) for first, last in each]
    return _Found(*map(_joined, zip(*found, strict=True)))


def _between(first_ms: int, last_ms: int, log: LogReader, whole: tuple[int, int], isolation: Isolation) -> _Found:
    """Return the offsets of records that can have, or certainly have, timestamps from ``first_ms`` to ``last_ms``.

    The offsets begin at the first record with a timestamp of at least ``first_ms``. Segments without a suitable record
    are left out.
    """
    start, end = whole
    if first_ms > last_ms or start >= end:
        return _Found([], [])
    first = log.offset_for_timestamp(first_ms, isolation) if first_ms > _FIRST_MS else start
    if first is None:
        return _Found([], [])
    parts = list(timestamp_ranges(log, max(start, first), end, first_ms, last_ms))
    return _Found(
        _joined([[(part.start, part.end) for part in parts]]),
        _joined([[(part.start, part.end) for part in parts if part.is_certain]]),
    )


def _without(spans: Spans, whole: tuple[int, int]) -> Spans:
    """Return the parts of ``whole`` that are outside of ``spans``, which are ascending."""
    edges = [whole[0], *(edge for span in spans for edge in span), whole[1]]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]


def _common(one: Spans, other: Spans) -> Spans:
    pairs = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return sorted((start, end) for start, end in pairs if start < end)


def _joined(found: Iterable[Spans]) -> Spans:
    joined: Spans = []
    for start, end in sorted(span for spans in found for span in spans if span[0] < span[1]):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined
