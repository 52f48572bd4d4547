"""Queries with SQL and with filters: their time, and the bytes that they read."""

from __future__ import annotations

import re
from typing import Any, Final

from spark_parts.cases import Sides, noop
from spark_parts.data import TOPIC, hundredth
from spark_parts.peer import NAME, Peer

_BYTES: Final = re.compile(r"bytes (\d+) of (\d+)")
_WITHOUT: Final = "without pruning"


def counting(session: Any, tier: str, peer: Peer | None, rows: int) -> Sides:
    """Return the sides that count the records of the second half of the time range."""
    start, _ = hundredth(rows)
    query = f"select count(*) from stratalog.`{tier}`.{TOPIC} where timestamp >= timestamp_millis({start})"  # noqa: S608 - made here
    sides: Sides = {"stratalog": lambda: session.sql(query).collect()[0][0]}
    if peer:
        sides[NAME] = lambda: peer.read(session).where(f"timestamp >= timestamp_millis({start})").count()
    return sides


def filtering(session: Any, tier: str, peer: Peer | None, rows: int) -> Sides:
    """Return the sides that read the values of 1 % of the time range.

    The predicate of the second side calls a function on the column, which prevents pruning.
    """
    predicate = _within("timestamp", rows)
    sides: Sides = {
        "stratalog": lambda: noop(_values(session, tier, predicate)),
        _WITHOUT: lambda: noop(_values(session, tier, _opaque(rows))),
    }
    if peer:
        sides[NAME] = lambda: noop(peer.read(session).where(predicate).select("value"))
    return sides


def filtered_bytes(session: Any, tier: str, rows: int) -> dict[str, int]:
    """Return the bytes of ``.log`` files that the plans of both sides of stratalog read."""
    bytes_by_side = {}
    for side, predicate in {"stratalog": _within("timestamp", rows), _WITHOUT: _opaque(rows)}.items():
        query = f"explain select value from stratalog.`{tier}`.{TOPIC} where {predicate}"  # noqa: S608 - made here
        plan = _BYTES.search(session.sql(query).collect()[0][0])
        assert plan is not None, "the plan does not show its bytes"
        bytes_by_side[side] = int(plan[1])
    return bytes_by_side


def check(session: Any, tier: str, peer: Peer | None, rows: int) -> None:
    """Check, outside of the measured time, that all sides count and find the same records."""
    counts = {call() for call in counting(session, tier, peer, rows).values()}
    assert len(counts) == 1
    frames = [_values(session, tier, predicate) for predicate in (_within("timestamp", rows), _opaque(rows))]
    if peer:
        frames.append(peer.read(session).where(_within("timestamp", rows)).select("value"))
    frame_counts = {frame.count() for frame in frames}
    assert len(frame_counts) == 1
    assert 0 < frame_counts.pop() < rows / 50, "1 % of the records"


def _values(session: Any, tier: str, predicate: str) -> Any:
    return session.table(f"stratalog.`{tier}`.{TOPIC}").where(predicate).select("value")


def _within(column: str, rows: int) -> str:
    start, end = hundredth(rows)
    return f"{column} >= timestamp_millis({start}) and {column} < timestamp_millis({end})"


def _opaque(rows: int) -> str:
    return _within("timestampadd(MICROSECOND, 0, timestamp)", rows)
