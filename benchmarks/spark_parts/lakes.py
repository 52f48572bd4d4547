"""A topic that becomes an Iceberg table: by stratalog's ``sync``, and by Spark's Kafka source with pyiceberg.

Iceberg's own sink is not compared: its newest release for Spark 4 (1.11.0, for Spark 4.1) fails in Spark 4.3 with an
IncompatibleClassChangeError.
"""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import stratalog_spark
from spark_parts.cases import Sides
from spark_parts.data import TOPIC
from spark_parts.peer import NAME, Peer

_TABLE: Final = f"bench.{TOPIC}"


def syncing(session: Any, folder: Path, peer: Peer | None, scratch: Path) -> Sides:
    """Return the sides that write all records of a topic to a new table without partitions."""
    sides: Sides = {"stratalog": lambda: _ours(session, folder, scratch / "lake")}
    if peer:
        sides[NAME] = lambda: _theirs(session, peer, scratch / "peer-lake")
    return sides


def check(peer: Peer | None, scratch: Path, rows: int) -> None:
    """Check, outside of the measured time, that each table has all rows."""
    for lake in ("lake", *(("peer-lake",) if peer else ())):
        assert _catalog(scratch / lake).load_table(_TABLE).scan().count() == rows


def _ours(session: Any, folder: Path, lake: Path) -> None:
    _empty(lake)
    table = stratalog_spark.IcebergTable(f"lake.{_TABLE}", _properties(lake))
    stratalog_spark.sync(
        session, str(folder), TOPIC, table, checkpoint=str(lake / "checkpoint"), partition_by="none"
    ).awaitTermination()


def _theirs(session: Any, peer: Peer, lake: Path) -> None:
    """Append each micro-batch with pyiceberg, as a program does without a connector for Spark."""
    _empty(lake)
    catalog = _catalog(lake)
    catalog.create_namespace("bench")

    def write(frame: Any, _: int) -> None:
        rows = frame.toArrow()
        catalog.create_table_if_not_exists(_TABLE, schema=rows.schema).append(rows)

    frame = peer.stream(session).select("key", "value", "partition", "offset", "timestamp")
    to_table = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(lake / "checkpoint"))
    to_table.trigger(availableNow=True).start().awaitTermination()


def _properties(lake: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{lake / 'catalog.db'}", "warehouse": lake.as_uri()}


def _catalog(lake: Path) -> Any:
    return import_module("pyiceberg.catalog").load_catalog("lake", **_properties(lake))


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
