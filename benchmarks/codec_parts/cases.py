"""Cases of the codec benchmark: operations, workloads, sides and required ratios."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from codec_parts import java
from codec_parts.formats import NAME, PURE_NAME
from codec_parts.operations import GATHERED_TIMES, Operation, check
from codec_parts.ours import Stratalog
from codec_parts.peer import Peer
from codec_parts.workloads import CODEC_NAMES, Shape, Workload, make
from harness import Bound, Case, LocalSide, Side, Worker, WorkerSide

TARGET: Final = Shape()
VALUE_BYTES: Final = (10, 100, 1024)
BATCH_RECORDS: Final = (1, 10, 100, 1000)
_BOUNDS: Final = (
    (Operation.COLUMNS, NAME, "aiokafka", 30),
    (Operation.GATHERED, NAME, "aiokafka", 30),
    (Operation.COLUMNS, NAME, java.NAME, 2),
    (Operation.ARROW, NAME, "aiokafka", 30),
    (Operation.OBJECTS, NAME, "aiokafka", 3),
    (Operation.OBJECTS, NAME, "kafka-python", 40),
    (Operation.OBJECTS, NAME, java.NAME, 0.8),
    (Operation.ENCODE, NAME, "aiokafka", 3),
    (Operation.ENCODE, NAME, java.NAME, 1.5),
    (Operation.ENCODE_COLUMNS, NAME, java.NAME, 3),
    (Operation.SCAN, NAME, "crc32c alone", 0.85),
    (Operation.SCAN, NAME, "aiokafka", 4),
    (Operation.COLUMNS, PURE_NAME, "kafka-python", 5),
    (Operation.OBJECTS, PURE_NAME, "kafka-python", 5),
    (Operation.ENCODE, PURE_NAME, "kafka-python", 4),
)


def shapes(*, quick: bool, full: bool) -> list[Shape]:
    """Return the shapes of the workloads, the target first.

    The others differ from the target in one attribute. With ``full``, all combinations of sizes, batch lengths and
    codecs are returned. With ``quick``, one small shape is returned for each codec.
    """
    if full:
        all_shapes = [
            Shape(size, count, codec) for codec in CODEC_NAMES for size in VALUE_BYTES for count in BATCH_RECORDS
        ]
        other_shapes = [shape for shape in all_shapes if shape != TARGET]
        return [TARGET, *other_shapes, Shape(headers=2)]
    if quick:
        return [TARGET, *(Shape(10, 10, codec, headers=1) for codec in CODEC_NAMES)]
    other_shapes = [Shape(value_bytes=size) for size in VALUE_BYTES] + [
        Shape(batch_records=count) for count in BATCH_RECORDS
    ]
    other_shapes += [Shape(codec=codec) for codec in CODEC_NAMES] + [Shape(headers=2)]
    return [TARGET, *dict.fromkeys(shape for shape in other_shapes if shape != TARGET)]


def operations_on(shape: Shape) -> list[Operation]:
    """Return the operations measured on a shape. ``GATHERED`` is measured only on the target."""
    return [operation for operation in Operation if shape == TARGET or operation is not Operation.GATHERED]


def bounds() -> list[Bound]:
    """Return the bounds: the required speed of stratalog on the target's workload, relative to other sides."""
    return [
        Bound("pure twin" if side == PURE_NAME else operation.does, f"{operation}/{TARGET.name}", side, peer, at_least)
        for operation, side, peer, at_least in _BOUNDS
    ]


class Assembly:
    """Makes cases, one workload at a time.

    Args:
        peers: the other libraries, which run in this process.
        pure: a worker with the pure Python kernels; None if this process already uses them.
        jvm: a worker with Kafka's classes; None if there is no Java.
        scratch: a folder for the files of workers.
        quick: makes tiny workloads.
    """

    def __init__(
        self, peers: Sequence[Peer], pure: Worker | None, jvm: Worker | None, scratch: Path, *, quick: bool
    ) -> None:
        self._peers, self._pure, self._jvm = [Stratalog(), *peers], pure, jvm
        self._scratch, self._quick = scratch, quick
        self.skipped: list[str] = []

    def cases(self, shape: Shape, wants: Callable[[str], bool]) -> Iterator[Case]:
        """Yield the selected cases on the workload of a shape."""
        operations = [operation for operation in operations_on(shape) if wants(f"{operation}/{shape.name}")]
        if not operations:
            return
        workload = make(shape, quick=self._quick)
        file = self._scratch / shape.name
        file.write_bytes(workload.data)
        for worker in (self._pure, self._jvm):
            if worker is not None:
                worker.load(shape.name, file)
        for operation in operations:
            sides = [*self._local_sides(operation, workload), *self._worker_sides(operation, shape, workload)]
            if sides:
                title = f"{operation.does}; {shape.title}"
                times = GATHERED_TIMES if operation is Operation.GATHERED else 1
                name = f"{operation}/{shape.name}"
                yield Case(name, title, sides, times * workload.records, times * workload.raw_bytes)

    def _local_sides(self, operation: Operation, workload: Workload) -> Iterator[Side]:
        for peer in self._peers:
            maker = peer.makers().get(operation)
            reason = peer.cannot(workload.codec)
            if reason is not None and reason not in self.skipped:
                self.skipped.append(reason)
            if maker is None or reason is not None:
                continue
            job = maker(workload)

            def verify(name: str = peer.name, outcome: Callable[[], bytes] = job.outcome) -> None:
                check(name, operation, workload, outcome())

            yield LocalSide(peer.name, job.call, verify)

    def _worker_sides(self, operation: Operation, shape: Shape, workload: Workload) -> Iterator[Side]:
        if self._pure is not None and operation in Stratalog().makers():
            verify = partial(check, PURE_NAME, operation, workload)
            yield WorkerSide(PURE_NAME, self._pure, operation, shape.name, self._scratch, verify)
        if self._jvm is not None:
            yield from java.java_sides(
                self._jvm, operation, shape.name, workload, self._scratch, unchecked=shape == TARGET
            )
