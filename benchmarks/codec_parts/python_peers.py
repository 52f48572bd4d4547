"""The record classes of the Python clients, as their consumers and producers use them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final, TypeAlias

from crc32c import crc32c

from codec_parts.formats import CODECS
from codec_parts.operations import Operation
from codec_parts.peer import Maker, Peer, arrow_job, encode_job, gathered_job, lists_job, objects_job
from codec_parts.workloads import Row, Workload, canonical_bounds
from harness import Job

Inputs: TypeAlias = Sequence[tuple[int, bytes | None, bytes | None, list[Any]]]  # timestamp, key, value, headers
_NO_PRODUCER: Final = (-1, -1, -1)  # id, epoch, sequence
_NEVER_FULL_BYTES: Final = 1 << 30


class CrcAlone(Peer):
    """One call that computes the CRC of all bytes: a lower limit for the time of every program that checks batches."""

    name = "crc32c alone"
    distribution = "crc32c"

    def makers(self) -> dict[Operation, Maker]:
        """Return the only job: a checksum, compared with the operation that scans."""
        return {Operation.SCAN: lambda workload: Job(lambda: crc32c(workload.data), lambda: workload.bounds)}


class Client(Peer):
    """A client library whose classes have Kafka's names: MemoryRecords, DefaultRecordBatchBuilder.

    Args:
        package: the package with the modules ``record.memory_records``, ``record.default_records`` and ``codec``.
    """

    def __init__(self, package: str) -> None:
        memory = importlib.import_module(f"{package}.record.memory_records")
        self._memory_records: Callable[[bytes], Any] = memory.MemoryRecords
        defaults = importlib.import_module(f"{package}.record.default_records")
        self._builder: Callable[..., Any] = defaults.DefaultRecordBatchBuilder
        self._codecs: ModuleType = importlib.import_module(f"{package}.codec")

    def makers(self) -> dict[Operation, Maker]:
        """Return a function that makes the job, for each operation that these classes support."""
        return {
            Operation.COLUMNS: lambda workload: lists_job(self._parts(workload)),
            Operation.GATHERED: lambda workload: gathered_job(lists_job(self._parts(workload))),
            Operation.OBJECTS: lambda workload: objects_job(self._parts(workload), row_of_peer),
            Operation.TOUCHED: self._touched_job,
            Operation.SCAN: self._scan_job,
            Operation.ENCODE: self._encode_job,
            **({Operation.ARROW: lambda workload: arrow_job(self._parts(workload))} if find_spec("pyarrow") else {}),
        }

    def cannot(self, codec: str) -> str | None:
        """Return the reason if the library reports that it lacks the codec."""
        if codec == "none" or getattr(self._codecs, f"has_{codec}")():
            return None
        return f"{self.name} finds no library for {codec}"

    def _parts(self, workload: Workload) -> Callable[[], Iterator[Any]]:
        data = workload.data
        return lambda: self.batches(data)

    def batches(self, data: bytes) -> Iterator[Any]:
        """Yield the batches, each an iterable of records.

        Raises:
            ValueError: a CRC does not match.
        """
        records = self._memory_records(data)
        while records.has_next():
            batch = records.next_batch()
            if not batch.validate_crc():
                raise ValueError("the CRC does not match")
            yield batch

    def _touched_job(self, workload: Workload) -> Job:
        data = workload.data

        def touch() -> None:
            for batch in self.batches(data):
                for record in batch:
                    record.offset, record.timestamp, record.key, record.value, record.headers  # noqa: B018 - the work

        return Job(touch, objects_job(self._parts(workload), row_of_peer).outcome)

    def _scan_job(self, workload: Workload) -> Job:
        data = workload.data

        def bounds() -> list[tuple[int, int]]:
            return [(batch.base_offset, batch.next_offset) for batch in self.batches(data)]

        return Job(bounds, lambda: canonical_bounds((first, after - 1) for first, after in bounds()))

    def encoder(self, codec: str) -> Callable[[Inputs], bytes]:
        """Return the function that encodes a batch; ``codec`` is "none" or the name of one of Kafka's codecs."""
        codec_id = CODECS[codec].id if codec != "none" else 0

        def encode(rows: Inputs) -> bytes:
            builder = self._builder(2, codec_id, 0, *_NO_PRODUCER, _NEVER_FULL_BYTES)
            add = builder.append
            for offset, (stamp, key, value, headers) in enumerate(rows):
                add(offset, stamp, key, value, headers)
            data: bytes = builder.build()
            return data

        return encode

    def _encode_job(self, workload: Workload) -> Job:
        return encode_job(self.encoder(workload.codec), inputs_of(workload))


class Aiokafka(Client):
    """aiokafka, whose record classes are compiled."""

    name = "aiokafka"
    distribution = "aiokafka"

    def __init__(self) -> None:
        super().__init__("aiokafka")
        kinds = (self._memory_records, self._builder)
        if any("._crecords." not in str(getattr(kind, "__module__", "")) for kind in kinds):
            raise ImportError("aiokafka runs without its compiled record classes")


class KafkaPython(Client):
    """kafka-python, in pure Python. If the package crc32c is installed, as in this benchmark, it computes the CRC."""

    name = "kafka-python"
    distribution = "kafka-python"

    def __init__(self) -> None:
        super().__init__("kafka")


def python_peers() -> tuple[list[Peer], list[str]]:
    """Return the installed peers, and a sentence for each missing one."""
    peers: list[Peer] = [CrcAlone()]
    missing = []
    for kind in (Aiokafka, KafkaPython):
        try:
            peers.append(kind())
        except ImportError as error:
            missing.append(f"{kind.name}: {error}; the dependency group 'bench' has it")
    if not find_spec("pyarrow"):
        missing.append("pyarrow: the cases that decode to Arrow need the extra 'arrow'")
    return peers, missing


def inputs_of(workload: Workload) -> list[Inputs]:
    """Return the library's input for each batch."""
    return [[(stamp, key, value, list(headers)) for _, stamp, key, value, headers in rows] for rows in workload.batches]


def row_of_peer(record: Any) -> Row:
    """Return the row of a peer's record."""
    return (record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
