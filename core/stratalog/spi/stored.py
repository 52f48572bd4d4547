"""The JSON form of a stored segment, for manifest entries and for the footers of objects.

The parser is strict: a field that is missing, unknown or of another type is an error. Each new manifest root copies the
entries of the previous root. If an older version ignored an unknown field, the copy would lose the field. New fields of
a layout go into ``extra``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, TypedDict, TypeVar

from stratalog.errors import CorruptObjectError, InvalidTopicError
from stratalog.model.names import TopicId, TopicPartition, check_topic
from stratalog.model.offsets import EpochEntry
from stratalog.model.segment_info import FileKind, ObjectSlice, SegmentInfo

FURTHER_OBJECTS: Final = "objects"  # in ``extra``; persistent
RECORD_FACTS: Final = {
    "records": 0,
    "min_timestamp_ms": -1,
    "original_bytes": 0,
}
"""Attributes of ``SegmentInfo`` that are stored in ``extra``, because older releases refuse a new field. The values
are the smallest allowed values. Names and meanings are persistent."""
MAX_KEY_BYTES: Final = 1024  # the limit of S3
MAX_EXTRA_DEPTH: Final = 8
MAX_EXTRA_VALUES: Final = 10_000
MAX_REQUIRES: Final = 64

_OF_SLICE: Final = frozenset({"key", "position", "size_bytes"})
_NO_PARTS: Final = frozenset({"", ".", ".."})  # texts between slashes that an object key must not have
_INT64_MAX: Final = (1 << 63) - 1
_INT32_MAX: Final = (1 << 31) - 1
_LABEL: Final = re.compile(r"[a-z][a-z0-9_]*@[1-9][0-9]{0,8}\Z")
_SHA256: Final = re.compile(r"[0-9a-f]{64}\Z")
_FIELDS: Final = frozenset({
    "topic", "partition", "topic_id", "base_offset", "end_offset", "size_bytes", "max_timestamp_ms", "modified_ms",
    "leader_epochs", "layout", "slices", "sha256", "requires", "extra",
})  # fmt: skip
_KINDS: Final = {str(kind): kind for kind in FileKind}  # ten times as fast as FileKind(text)
T = TypeVar("T")


class _StoredFields(TypedDict):
    """The attributes of a ``StoredSegment``."""

    info: SegmentInfo
    layout: str
    slices: dict[FileKind, ObjectSlice]
    sha256: str
    requires: tuple[str, ...]
    extra: dict[str, object]


def stored_fields(value: object, file: str, slices: dict[FileKind, ObjectSlice] | None = None) -> _StoredFields:
    """Return the attributes of the segment whose JSON form is ``value``; see ``StoredSegment.from_json``.

    If the caller has stored the slices in another form, it passes them as ``slices``. Then the field ``slices`` of
    ``value`` is ignored.
    """
    try:
        return _fields(value, slices)
    except (KeyError, TypeError, ValueError, InvalidTopicError) as error:
        text = f"no field {error}" if isinstance(error, KeyError) else error
        raise CorruptObjectError(f"this is not the description of a segment ({text})", file) from error


def _fields(value: object, slices: dict[FileKind, ObjectSlice] | None) -> _StoredFields:
    fields = exactly(dict, value, "entry")
    if not fields.keys() <= _FIELDS:
        raise ValueError(f"unknown field {str(min(fields.keys() - _FIELDS, key=str))[:64]!r}")
    extra = dict(exactly(dict, fields["extra"], "extra"))
    _check_extra(extra)
    facts = {name: extra.pop(name, None) for name in RECORD_FACTS}
    for other_key in exactly(list, extra.get(FURTHER_OBJECTS, []), "extra.objects"):
        _key(other_key)
    return _StoredFields(
        info=_info(fields, facts),
        layout=_matching(_LABEL, fields["layout"], "layout"),
        slices=checked_slices(_places(fields["slices"])) if slices is None else slices,
        sha256=_matching(_SHA256, fields["sha256"], "sha256"),
        requires=_requires(fields["requires"]),
        extra=extra,
    )


def record_facts(info: SegmentInfo) -> dict[str, int]:
    """Return the segment's attributes that ``RECORD_FACTS`` names, by name. Leave out attributes that are None."""
    facts = {name: getattr(info, name) for name in RECORD_FACTS}
    return {name: value for name, value in facts.items() if value is not None}


def _info(fields: Mapping[str, object], facts: Mapping[str, object]) -> SegmentInfo:
    info = SegmentInfo(
        log=_log(exactly(str, fields["topic"], "topic"), _integer(fields, "partition", at_most=_INT32_MAX)),
        topic_id=_topic_id(exactly(str, fields["topic_id"], "topic_id")),
        base_offset=_integer(fields, "base_offset"),
        end_offset=_integer(fields, "end_offset"),
        size_bytes=_integer(fields, "size_bytes"),
        max_timestamp_ms=_integer(fields, "max_timestamp_ms", at_least=-1),
        modified_ms=_integer(fields, "modified_ms", at_least=-_INT64_MAX),
        leader_epochs=tuple(_epoch(item) for item in exactly(list, fields["leader_epochs"], "leader_epochs")),
        **{
            name: None if facts[name] is None else _integer(facts, name, at_least=smallest)
            for name, smallest in RECORD_FACTS.items()
        },
    )
    if info.end_offset < info.base_offset:
        raise ValueError(f"end_offset {info.end_offset} is below base_offset {info.base_offset}")
    return info


@lru_cache(maxsize=64)  # all entries of a manifest have the same log
def _log(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(check_topic(topic), partition)


@lru_cache(maxsize=64)
def _topic_id(text: str) -> TopicId:
    return TopicId(text)


def _epoch(item: object) -> EpochEntry:
    pair = exactly(list, item, "leader_epochs")
    if len(pair) != 2:
        raise ValueError("leader_epochs must be pairs of epoch and start offset")
    fields = {"epoch": pair[0], "start_offset": pair[1]}
    return EpochEntry(_integer(fields, "epoch", at_most=_INT32_MAX), _integer(fields, "start_offset"))


def _places(value: object) -> Iterator[tuple[object, object, object, object]]:
    for kind, place in exactly(dict, value, "slices").items():
        fields = exactly(dict, place, "slices")
        if fields.keys() != _OF_SLICE:
            raise ValueError(f"a slice has key, position and size_bytes, not {sorted(map(str, fields))[:4]}")
        yield kind, fields["key"], fields["position"], fields["size_bytes"]


def checked_slices(places: Iterable[tuple[object, object, object, object]]) -> dict[FileKind, ObjectSlice]:
    """Return slices by file kind, from tuples of kind, object key, position (bytes) and size (bytes).

    Raises:
        TypeError, ValueError: a value is of the wrong type, or is not allowed.
    """
    slices, keys = {}, set[str]()  # most slices of a segment have the same key: check it once
    for kind, key, position, size_bytes in places:
        start, size = _number(position, "position"), _number(size_bytes, "size_bytes")
        if start + size > _INT64_MAX:
            raise ValueError(f"the slice of {kind} ends above {_INT64_MAX}")
        if key not in keys:
            keys.add(_key(key))
        if kind not in _KINDS:
            raise ValueError(f"{str(kind)[:64]!r} is not a kind of file")
        slices[_KINDS[exactly(str, kind, "kind")]] = ObjectSlice(exactly(str, key, "key"), start, size)
    return slices


def _key(value: object) -> str:
    key = exactly(str, value, "key")
    parts = key.split("/")
    if len(key.encode()) > MAX_KEY_BYTES or not key.isprintable() or not _NO_PARTS.isdisjoint(parts):
        raise ValueError(f"object key {key[:64]!r} is not allowed")
    return key


def _requires(value: object) -> tuple[str, ...]:
    items = exactly(list, value, "requires")
    if len(items) > MAX_REQUIRES:
        raise ValueError(f"there are {len(items)} requirements, but at most {MAX_REQUIRES} are allowed")
    return tuple(_matching(_LABEL, item, "requires") for item in items)


def _check_extra(extra: dict[str, object]) -> None:
    """Raise ValueError if ``extra`` has more than 8 levels or more than 10,000 values."""
    level: list[object] = [extra]
    count = 0
    # no recursion: deep nesting would exhaust the stack
    for _ in range(MAX_EXTRA_DEPTH):
        count += len(level)
        if count > MAX_EXTRA_VALUES:
            raise ValueError(f"extra holds more than {MAX_EXTRA_VALUES} values")
        nested = [item for item in level if isinstance(item, dict | list)]
        level = [child for item in nested for child in (item.values() if isinstance(item, dict) else item)]
        if not level:
            return
    raise ValueError(f"extra is nested deeper than {MAX_EXTRA_DEPTH}")


def _integer(fields: Mapping[str, object], name: str, *, at_least: int = 0, at_most: int = _INT64_MAX) -> int:
    return _number(fields[name], name, at_least, at_most)


def _number(value: object, name: str, at_least: int = 0, at_most: int = _INT64_MAX) -> int:
    number = exactly(int, value, name)
    if not at_least <= number <= at_most:
        raise ValueError(f"{name}={number} is not in [{at_least}, {at_most}]")
    return number


def _matching(pattern: re.Pattern[str], value: object, name: str) -> str:
    text = exactly(str, value, name)
    if not pattern.match(text):
        raise ValueError(f"{name} {text[:80]!r} is malformed")
    return text


def exactly(kind: type[T], value: object, name: str) -> T:
    """Return ``value``; raise TypeError, which names the field ``name``, unless its type is exactly ``kind``."""
    if type(value) is not kind:  # no isinstance: True is an int, but not a number in JSON
        raise TypeError(f"{name} is not of type {kind.__name__}")
    return value
