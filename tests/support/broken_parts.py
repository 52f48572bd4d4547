"""Components of plugins in which one method breaks the contract. All other methods are correct."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from stratalog.model.records import RecordColumns
from stratalog.spi import (
    BatchTable,
    CleanupPolicy,
    Codec,
    Created,
    ExtraIndex,
    ExtraIndexBuilder,
    ExtraIndexReader,
    FileSlice,
    IndexBuilder,
    IndexFile,
    IndexFormat,
    IndexReader,
    LogFiles,
    ObjectInfo,
    ObjectStore,
    PreparedBatches,
    RecordFilter,
    RecordFormat,
    SegmentFile,
    SegmentStore,
    Service,
    StoredSegment,
    TierLayout,
)


class Fault(enum.StrEnum):
    """The ways in which a method breaks the contract."""

    NONE = "returns None"
    TYPE = "returns another type"
    RAISES = "raises"
    HANGS = "hangs"
    LIES = "returns a wrong value"


class UnexpectedValue:
    """Value of a type that no method of the contract returns."""


# The classes of one kind of component, the component's own class first.
PARTS: Final[Mapping[str, tuple[type[Any], ...]]] = {
    "record_formats": (RecordFormat,),
    "codecs": (Codec,),
    "index_formats": (IndexFormat, IndexBuilder, IndexReader),
    "extra_indexes": (ExtraIndex, ExtraIndexBuilder, ExtraIndexReader),
    "segment_stores": (SegmentStore, LogFiles, SegmentFile, IndexFile),
    "object_stores": (ObjectStore,),
    "tier_layouts": (TierLayout,),
    "cleanup_policies": (CleanupPolicy, RecordFilter),
    "services": (Service,),
}
_NESTED: Final[Mapping[tuple[type[Any], str], type[Any]]] = {
    (IndexFormat, "builder"): IndexBuilder,
    (IndexFormat, "reader"): IndexReader,
    (ExtraIndex, "builder"): ExtraIndexBuilder,
    (ExtraIndex, "reader"): ExtraIndexReader,
    (SegmentStore, "open_log"): LogFiles,
    (LogFiles, "open_segment"): SegmentFile,
    (LogFiles, "open_index"): IndexFile,
    (CleanupPolicy, "record_filter"): RecordFilter,
}
_ATTRIBUTES: Final = (
    "id",
    "levels",
    "magic",
    "role",
    "suffix",
    "entry_bytes",
    "fields",
    "digest_kind",
    "name",
)
_SPECIAL: Final = ("__len__", "__getitem__")


def methods(part: type[Any]) -> list[str]:
    """Return the names of the methods and properties of a class of the contract."""
    names = [
        name
        for name, member in inspect.getmembers_static(part)
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    ]
    return sorted(names) + [name for name in _SPECIAL if name in vars(part)]


def parts_and_methods() -> Iterator[tuple[str, str]]:
    """Yield each kind of component with each of its methods, as ``Class.method``."""
    for kind, parts in PARTS.items():
        for part in parts:
            yield from ((kind, f"{part.__name__}.{name}") for name in methods(part))


@dataclass(eq=False)
class Breaker:
    """Breaks one method while ``on`` is True.

    Attributes:
        target: the broken method, as ``Class.method``.
        fault: the way in which the method breaks the contract.
        calls: number of broken calls.
        hung: threads of the calls that hang.
        gate: event that ends all hanging calls when it is set.
    """

    target: str = ""
    fault: Fault = Fault.NONE
    on: bool = False
    calls: int = 0
    hung: set[threading.Thread] = field(default_factory=set)
    gate: threading.Event = field(default_factory=threading.Event)
    changed: Callable[[], None] = lambda: None

    def call(self, label: str, work: Callable[[], Any], arguments: Sequence[Any], *, is_void: bool) -> Any:
        """Return the result of ``work``, or break the call if it is the target; ``label`` is ``Class.method``."""
        if not self.on or label != self.target:
            return work()
        self.calls += 1
        match self.fault:
            case Fault.NONE:
                return None
            case Fault.TYPE:
                return UnexpectedValue()
            case Fault.RAISES:
                raise ZeroDivisionError("division by zero")
            case Fault.HANGS:
                self.hung.add(threading.current_thread())
                self.changed()
                self.gate.wait()
                return work()
            case Fault.LIES:
                if label in _WITHOUT_EFFECT:
                    return _WITHOUT_EFFECT[label](*arguments)
                return None if is_void else lie(work())


def _put_nothing(store: ObjectStore, key: str, source: Any, **_: Any) -> ObjectInfo:
    del store
    return ObjectInfo(key, sum(len(chunk) for chunk in source.chunks(1 << 20)))


# Methods whose broken call returns without an error and does no work.
_WITHOUT_EFFECT: Final[Mapping[str, Callable[..., Any]]] = {
    "ObjectStore.put_file": _put_nothing,
    "ObjectStore.create": lambda *_: Created.CREATED,
    "ObjectStore.delete": lambda *_: {},
    "SegmentFile.append": lambda file, _: file.size_bytes,
}


def lie(value: Any) -> Any:
    """Return another value of the same type, which is wrong."""
    return next((wrong_value(value) for kind, wrong_value in _LIES if isinstance(value, kind)), value)


def _fewer_batches(table: BatchTable) -> BatchTable:
    columns = [column[:-1] for column in table.columns]
    return BatchTable(table.magic, columns, table.stop, table.stop_position, table.reason)


def _damaged(batches: PreparedBatches) -> PreparedBatches:
    batches.data[-1] ^= 1
    return batches


def _flipped(data: Any) -> bytes:
    changed = bytearray(data) or bytearray(b"\0")
    changed[-1] ^= 1
    return bytes(changed)


_LIES: Final[Sequence[tuple[type[Any], Callable[[Any], Any]]]] = (
    (enum.Enum, lambda value: next((other for other in type(value) if other is not value), value)),
    (bool, operator.not_),
    (int, lambda value: value + 1),
    (float, lambda value: value + 1),
    (str, lambda value: value + "x"),
    (bytes, _flipped),
    (bytearray, lambda value: bytearray(_flipped(value))),
    (memoryview, lambda value: memoryview(_flipped(value))),
    (BatchTable, _fewer_batches),
    (PreparedBatches, _damaged),
    (FileSlice, lambda value: FileSlice(memoryview(_flipped(value.data)))),
    (StoredSegment, lambda value: dataclasses.replace(value, sha256="0" * 64)),
    (ObjectInfo, lambda value: dataclasses.replace(value, size_bytes=value.size_bytes + 1)),
    (RecordColumns, lambda value: value.take(0, value.count - 1)),
    (Mapping, lambda _: {}),
    (tuple, lambda value: (lie(value[0]), *value[1:]) if value else (UnexpectedValue(),)),
    (Sequence, lambda value: value[:-1]),
    (Iterator, lambda value: iter([lie(piece) for piece in value])),
)
_classes: dict[tuple[type[Any], type[Any]], type[Any]] = {}


def broken(sound: Any, part: type[Any], breaker: Breaker) -> Any:
    """Return a component that calls ``sound``, except for the method that the breaker breaks."""
    key = (part, type(sound))
    if key not in _classes:
        _classes[key] = _class_of(part, type(sound))
    component = _classes[key]()
    component.sound, component.breaker = sound, breaker
    for name in _ATTRIBUTES:
        if hasattr(sound, name):
            setattr(component, name, getattr(sound, name))
    return component


def _class_of(part: type[Any], sound: type[Any]) -> type[Any]:
    body: dict[str, Any] = {}
    for name in methods(part):
        member = inspect.getattr_static(part, name)
        label = f"{part.__name__}.{name}"
        if isinstance(member, property):
            body[name] = property(_property(label, name))
            continue
        if name == "record_filter" and getattr(sound, name) is getattr(part, name):
            continue  # this policy plans no rewrites
        is_void = inspect.signature(member).return_annotation == "None"
        body[name] = _method(label, name, is_void=is_void, nested=_NESTED.get((part, name)))
    return type(f"Broken{part.__name__}", (part,), body)


def _property(label: str, name: str) -> Callable[[Any], Any]:
    return lambda self: self.breaker.call(label, lambda: getattr(self.sound, name), (self,), is_void=False)


def _method(label: str, name: str, *, is_void: bool, nested: type[Any] | None) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **keywords: Any) -> Any:
        def work() -> Any:
            result = getattr(self.sound, name)(*args, **keywords)
            return result if nested is None or result is None else broken(result, nested, self.breaker)

        return self.breaker.call(label, work, (self.sound, *args), is_void=is_void)

    return method
