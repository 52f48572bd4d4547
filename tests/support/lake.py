"""Topics and tables for tests of ``stratalog_spark.sync``. The tasks run in this process, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import stratalog_spark
from inside import write_checkpoints
from stratalog import Engine, Record, TopicPartition
from stratalog_spark.lake.schemas import SchemaSet
from stratalog_spark.lake.syncer import Maintenance, Syncer
from stratalog_spark.lake.table import Layout
from stratalog_spark.options.read_options import Options
from stratalog_spark.read.stream_offsets import Offsets
from stratalog_spark.read.stream_planner import Planner

TOPIC = "orders"
HOUR_MS = 3_600_000
START_MS = 1_790_000_000_000 // HOUR_MS * HOUR_MS


def prefixed(schema_id: int, body: bytes) -> bytes:
    """Return a message body with the prefix of a schema registry: 0, and the schema id."""
    return b"\0" + schema_id.to_bytes(4, "big") + body


def record(key: bytes | None, value: bytes | None, *, hour: float = 0) -> Record:
    return Record(key=key, value=value, timestamp_ms=START_MS + int(hour * HOUR_MS))


@dataclass
class Lake:
    """A topic, lake tables, and the writer that copies records from the topic to the tables.

    Attributes:
        folder: folder of the log directory and the tables.
        engine: engine with the topic.
        kind: kind of the tables, ``iceberg`` or ``delta``.
    """

    folder: Path
    engine: Engine
    kind: str
    tables: dict[str, Any] = field(default_factory=dict)

    def append(self, partition: int, records: Iterable[Record]) -> None:
        self.engine.log(TOPIC, partition).append(list(records))
        write_checkpoints(self.engine)

    def target(self, name: str = "orders") -> Any:
        """Return the table of this name. Any: its class is from a plugin."""
        if self.kind == "delta":
            return stratalog_spark.DeltaTable(str(self.folder / "delta" / name))
        (self.folder / "iceberg").mkdir(exist_ok=True)
        properties = {
            "type": "sql",
            "uri": f"sqlite:///{self.folder / 'iceberg' / 'catalog.db'}",
            "warehouse": (self.folder / "iceberg").as_uri(),
        }
        return stratalog_spark.IcebergTable(f"lake.sales.{name}", properties)

    def syncer(
        self,
        schema: str = "raw",
        schemas: Any = None,
        *,
        partition_by: str = "hour",
        upsert: int = 0,
        maintenance: Maintenance | None = None,
        **options: str,
    ) -> Syncer:
        """Return the writer of micro-batches that ``sync`` would create for a stream."""
        source_options = {"path": str(self.folder / "data"), "subscribe": TOPIC, **options}
        topic_id = str(self.engine.log(TOPIC, 0).topic_id)
        syncer = Syncer(
            Options({"startingOffsets": "earliest", **source_options}, streaming=True),
            self.target(),
            self.target().quarantine(),
            Layout(TOPIC, topic_id, schema, "bucket" if upsert else partition_by, upsert),
            SchemaSet(schema, schemas),
            maintenance or Maintenance(small_files=0),
        )
        syncer.prepare([0, 1])
        return syncer

    def splits(self, start: Mapping[int, int], end: Mapping[int, int]) -> list[Any]:
        """Return the splits of a micro-batch from ``start`` to ``end``, offsets by partition."""
        planner = Planner(Options({"path": str(self.folder / "data"), "subscribe": TOPIC}, streaming=True))
        try:
            bounds = [
                Offsets({TopicPartition(TOPIC, number): offset for number, offset in offsets.items()})
                for offsets in (start, end)
            ]
            return planner.splits(bounds[0], bounds[1])
        finally:
            planner.close()

    def ends(self) -> dict[int, int]:
        return {number: self.engine.log(TOPIC, number).offsets().log_end for number in (0, 1)}

    def sync(self, syncer: Any, start: Mapping[int, int] | None = None) -> int:
        """Run one micro-batch from ``start`` to the end of the topic; return its number of records."""
        count: int = syncer.apply(None, self.splits(start or {0: 0, 1: 0}, self.ends()))
        return count

    def rows(self, name: str = "orders") -> list[dict[str, Any]]:
        """Return the rows of a table, ordered by partition and offset. The table format's own library reads them."""
        table = self.target(name).open_table()._table  # noqa: SLF001 - the library's own table
        arrow_table = table.scan().to_arrow() if self.kind == "iceberg" else table.to_pyarrow_table()
        rows: list[dict[str, Any]] = arrow_table.to_pylist()
        columns = (
            ("kafka_partition", "kafka_offset")
            if "kafka_offset" in arrow_table.schema.names
            else ("partition", "offset")
        )
        return sorted(rows, key=lambda row: tuple(row[column] for column in columns))

    def places(self, name: str = "orders") -> list[tuple[int, int]]:
        """Return partition and offset of each row of a table."""
        prefix = "" if name.endswith("quarantine") else "kafka_"
        return [(row[f"{prefix}partition"], row[f"{prefix}offset"]) for row in self.rows(name)]

    def files(self, name: str = "orders") -> list[str]:
        """Return the URIs or paths of the data files of a table."""
        table = self.target(name).open_table()._table  # noqa: SLF001 - as above
        if self.kind == "iceberg":
            return [task.file.file_path for task in table.scan().plan_files()]
        uris: list[str] = table.file_uris()
        return uris
