"""Predicates that a query pushes down: which offsets can satisfy them, and which rows do.

A predicate is a tree of JSON lists: ``["and", A, B]``, ``["or", A, B]``, ``["notnull", COLUMN]``,
``["in", COLUMN, VALUE, ...]``, or a comparison such as ``["<", "offset", 10]``. Timestamps are in microseconds, as in Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from stratalog import Isolation, LogReader
from stratalog.errors import ConfigError
from stratalog.reading import OffsetRange

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - a type alone

COMPARED: Final = ("topic", "partition", "offset", "timestamp")
_COMPARISONS: Final = {"=": "equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
_LATER: Final = frozenset({"=", ">", ">="})
_NO_END: Final = 1 << 63
UNORDERED: Final = (
    "an upper bound of timestamp prunes nothing, because records of a partition may be out of order: option "
    "endingTimestamp ends the read at the first record that is not older"
)

Spans: TypeAlias = list[tuple[int, int]]


class Node(NamedTuple):
    """One predicate. ``parts`` are the children of ``and`` and ``or``; ``values`` are those of ``column``."""

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
        """The comparisons of the tree."""
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
        ConfigError: the text is no predicate.
    """
    try:
        return _node(json.loads(text))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ConfigError(f"option {option}={text!r} is no predicate: {error}") from None


def _node(found: list[Any]) -> Node:
    operator = found[0]
    if operator in {"and", "or"}:
        return Node(operator, parts=tuple(map(_node, found[1:])))
    column, values = found[1], tuple(found[2:])
    wanted = str if column == "topic" else int
    if column not in COMPARED or not (operator in _COMPARISONS or operator in {"in", "notnull"}):
        raise ValueError(f"{operator} {column}")
    if any(type(value) is not wanted for value in values) or (operator in _COMPARISONS and len(values) != 1):
        raise ValueError(f"values {values} of {column}")
    return Node(operator, column, values)


def narrowed(node: Node, log: LogReader, whole: OffsetRange, isolation: Isolation) -> list[OffsetRange]:
    """Return the parts of a range that can have records for which the predicate is true."""
    spans = _spans(node, log, (whole.start, whole.end), isolation)
    return [OffsetRange(whole.log, start, end) for start, end in spans if start < end]


def _spans(node: Node, log: LogReader, whole: tuple[int, int], isolation: Isolation) -> Spans:
    if node.parts:
        found = [_spans(part, log, whole, isolation) for part in node.parts]
        return reduce(_common, found) if node.operator == "and" else _joined(found)
    if node.operator == "notnull":
        return [whole]
    if node.column in {"topic", "partition"}:
        here: int | str = log.name.topic if node.column == "topic" else log.name.partition
        return [whole] if any(_holds(node.operator, here, value) for value in node.values) else []
    if node.column == "offset":
        return _common([whole], _joined([[_offsets(node.operator, int(value))] for value in node.values]))
    return _joined([_since(node.operator, int(value), log, whole, isolation) for value in node.values])


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


def _since(operator: str, value_us: int, log: LogReader, whole: tuple[int, int], isolation: Isolation) -> Spans:
    """Return the offsets from the first record that is late enough: all records before it are older."""
    if operator in {"<", "<="}:
        return [whole]
    first_ms = value_us // 1000 + 1 if operator == ">" else -(-value_us // 1000)
    first = log.offset_for_timestamp(first_ms, isolation)
    return [] if first is None else _common([whole], [(first, _NO_END)])


def _common(one: Spans, other: Spans) -> Spans:
    pairs = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return sorted((start, end) for start, end in pairs if start < end)


def _joined(found: Iterable[Spans]) -> Spans:
    joined: Spans = []
    for start, end in sorted(span for spans in found for span in spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def accepted(node: Node, column: Callable[[str], Any]) -> pyarrow.BooleanArray:
    """Return for each row whether the predicate is true, as SQL evaluates it: null if it is unknown.

    Args:
        node: the predicate.
        column: returns the column of a name as Arrow array.
    """
    import pyarrow as pa  # noqa: PLC0415 - an extra of the core, here when Spark is

    pc: Any = import_module("pyarrow.compute")
    if node.parts:
        combine = pc.and_kleene if node.operator == "and" else pc.or_kleene
        found = reduce(combine, (accepted(part, column) for part in node.parts))
    elif node.operator == "notnull":
        found = pc.is_valid(column(node.column))
    else:
        array = column(node.column)
        kind = array.type
        values = [
            pa.scalar(value, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else value for value in node.values
        ]
        compare = getattr(pc, _COMPARISONS.get(node.operator, "equal"))
        found = reduce(pc.or_kleene, (compare(array, value) for value in values))
    mask: pyarrow.BooleanArray = found
    return mask
