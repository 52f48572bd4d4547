from __future__ import annotations

import copy
import gc
import inspect
import operator
import pickle
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from record_columns import fields, outcome
from stratalog.errors import InvalidRecordError
from stratalog.extensions import extension
from stratalog.model import record_py, records
from stratalog.model.batches import TimestampType

FULL: dict[str, Any] = {
    "offset": 5,
    "timestamp_ms": 1_700_000_000_123,
    "timestamp_type": TimestampType.LOG_APPEND_TIME,
    "key": b"k",
    "value": b"v",
    "headers": (("h", b"x"), ("h", None)),
    "leader_epoch": 7,
    "partition": 3,
}
ORDER = ("offset", "timestamp_ms", "timestamp_type", "key", "value", "headers", "leader_epoch", "partition")


class Text(str):
    __slots__ = ()


class Blob(bytes):
    def __bytes__(self) -> bytes:
        return b"a lie"


class Number(int):
    pass


class Index:
    def __index__(self) -> int:
        return 9


def test_the_chosen_record_is_the_compiled_one_where_it_can_be() -> None:
    compiled = extension("stratalog.model.record_c")
    assert records.Record is (record_py if compiled is None else compiled).Record


# --- creation ----------------------------------------------------------------------------------------------------


def test_a_record_has_what_it_is_given_by_name_or_in_order(twin: ModuleType) -> None:
    record = twin.Record(**FULL)
    assert {name: getattr(record, name) for name in ORDER} == FULL
    assert twin.Record(*FULL.values()) == record


def test_a_new_record_has_what_a_producer_leaves_out(twin: ModuleType) -> None:
    assert tuple(twin.Record()) == (-1, -1, TimestampType.CREATE_TIME, None, None, (), -1, -1)
    assert twin.Record._field_defaults == twin.Record()._asdict()


@pytest.mark.parametrize(
    "wrong",
    [
        {"offset": "1"},
        {"offset": 1.0},
        {"offset": None},
        {"timestamp_ms": b""},
        {"timestamp_type": 0},
        {"timestamp_type": None},
        {"key": "k"},
        {"key": bytearray(b"k")},
        {"value": 1},
        {"headers": None},
        {"headers": {"h": b""}},
        {"headers": "hh"},
        {"headers": (b"h",)},
        {"headers": (("h",),)},
        {"headers": (("h", b"", b""),)},
        {"headers": ("hv",)},
        {"headers": ((b"h", b""),)},
        {"headers": (("h", "v"),)},
        {"leader_epoch": "1"},
        {"partition": 1.5},
        {"topic": "t"},
    ],
    ids=str,
)
def test_a_wrong_type_is_refused_when_a_record_is_made_and_when_it_is_replaced(
    twin: ModuleType, wrong: dict[str, Any]
) -> None:
    with pytest.raises(TypeError):
        twin.Record(**wrong)
    with pytest.raises(TypeError):
        twin.Record()._replace(**wrong)


@pytest.mark.parametrize(
    ("field", "bits"), [("offset", 64), ("timestamp_ms", 64), ("leader_epoch", 32), ("partition", 32)]
)
def test_numbers_have_the_bits_that_they_have_in_a_batch(twin: ModuleType, field: str, bits: int) -> None:
    for valid in (-(1 << bits - 1), (1 << bits - 1) - 1):
        assert getattr(twin.Record(**{field: valid}), field) == valid
    for invalid in (-(1 << bits - 1) - 1, 1 << bits - 1, 1 << 80):
        for make in (twin.Record, twin.Record()._replace):
            with pytest.raises(InvalidRecordError, match=f"{field} {invalid} does not fit {bits} bits"):
                make(**{field: invalid})


def test_both_record_classes_hold_values_of_the_exact_types(twin: ModuleType) -> None:
    """An instance of a subclass can refer to itself. The garbage collector could not find it through a record."""
    record = twin.Record(Number(1), Index(), key=Blob(b"k"), value=Blob(b""), headers=[[Text("h"), Blob(b"x")]])
    assert record == (1, 9, TimestampType.CREATE_TIME, b"k", b"", (("h", b"x"),), -1, -1)
    assert [type(item) for item in record] == [int, int, TimestampType, bytes, bytes, tuple, int, int]
    assert [type(part) for header in record.headers for part in (header, *header)] == [tuple, str, bytes]


def test_make_takes_eight_fields(twin: ModuleType) -> None:
    assert twin.Record._make(iter(FULL.values())) == twin.Record(**FULL)
    for count in (0, 7, 9):
        with pytest.raises(TypeError, match=f"Expected 8 arguments, got {count}"):
            twin.Record._make(range(count))
    with pytest.raises(TypeError):
        twin.Record._make(["1", *list(FULL.values())[1:]])


def test_replacing_makes_another_record(twin: ModuleType) -> None:
    record = twin.Record(**FULL)
    for name in ORDER:
        default = getattr(twin.Record(), name)
        changed = record._replace(**{name: default})
        assert changed._asdict() == {**FULL, name: default}
    assert record._asdict() == FULL
    assert record._replace() == record


def test_a_record_does_not_change(twin: ModuleType) -> None:
    record = twin.Record(**FULL)
    for name in (*ORDER, "other"):
        with pytest.raises(AttributeError):
            setattr(record, name, 1)
        with pytest.raises(AttributeError):
            delattr(record, name)
    with pytest.raises(TypeError):
        record[0] = 1
    outcome(lambda: record.__init__(offset=9))
    assert record._asdict() == FULL


def test_record_classes_cannot_have_subclasses(twin: ModuleType) -> None:
    """A subclass could add mutable attributes. Neither the compiled class nor the Python class can have subclasses."""
    with pytest.raises(TypeError, match="not an acceptable base type"):
        type("Mine", (twin.Record,), {})


# --- operations --------------------------------------------------------------------------------------------------


def test_a_record_unpacks_and_matches_as_a_tuple(twin: ModuleType) -> None:
    record = twin.Record(**FULL)
    offset, *_, partition = record
    assert (offset, partition, len(record), record[3], record[-1], record[3:5]) == (5, 3, 8, b"k", 3, (b"k", b"v"))
    assert b"v" in record
    with pytest.raises(IndexError):
        record[8]
    kind: Any = twin.Record
    match record:
        case kind(5, _, TimestampType.LOG_APPEND_TIME, key=key):
            assert key == b"k"
        case _:
            pytest.fail("it should match")
    assert twin.Record._fields == twin.Record.__match_args__ == ORDER


def test_both_record_classes_have_the_same_repr(record_c: ModuleType) -> None:
    # Python 3.13 removes the indentation of its own
    assert inspect.getdoc(record_c.Record) == inspect.getdoc(record_py.Record)
    assert (
        repr(record_c.Record(**FULL))
        == repr(record_py.Record(**FULL))
        == (
            "Record(offset=5, timestamp_ms=1700000000123, timestamp_type=<TimestampType.LOG_APPEND_TIME: 1>, key=b'k', "
            "value=b'v', headers=(('h', b'x'), ('h', None)), leader_epoch=7, partition=3)"
        )
    )


def ordered(operation: Callable[[Any, Any], bool], first: object, second: object) -> object:
    """Return the result of a comparison, or the type of its error."""
    return outcome(lambda: operation(first, second))


@given(fields, fields)
def test_twins_compare_order_and_hash_alike(
    record_c: ModuleType, first: dict[str, Any], second: dict[str, Any]
) -> None:
    a, b = (twin.Record(**first) for twin in (record_py, record_c))
    c, d = (twin.Record(**second) for twin in (record_py, record_c))
    assert a == b == tuple(a) == a
    assert hash(a) == hash(b) == hash(tuple(b))
    assert repr(a) == repr(b)
    assert (a == c) is (b == d) is (a == d) is (b == tuple(c)) is not (b != d)
    for operation in (operator.lt, operator.le, operator.gt, operator.ge):
        results = [ordered(operation, *pair) for pair in ((a, c), (b, d), (b, c), (b, tuple(c)), (tuple(a), d))]
        assert results[1:] == results[:1] * 4
    assert b != [*a]
    assert b.__lt__([*a]) is NotImplemented


@given(fields)
def test_a_record_is_copied_and_pickled_and_loads_as_the_class_in_use(twin: ModuleType, chosen: dict[str, Any]) -> None:
    record = twin.Record(**chosen)
    assert copy.copy(record) is copy.deepcopy(record) is record
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        record_copy = pickle.loads(pickle.dumps(record, protocol))  # noqa: S301 - our own bytes
        assert record_copy == record
        assert type(record_copy) is records.Record


def test_twins_pickle_to_the_same_bytes(record_c: ModuleType) -> None:
    assert pickle.dumps(record_c.Record(**FULL)) == pickle.dumps(record_py.Record(**FULL))


def test_a_compiled_record_is_made_once(record_c: ModuleType) -> None:
    """A record without fields can be initialized once, but not a second time."""
    record = record_c.Record.__new__(record_c.Record)
    record.__init__(offset=4)
    with pytest.raises(TypeError, match="does not change"):
        record.__init__(offset=5)
    assert record.offset == 4


def test_the_collector_does_not_walk_records_and_does_not_have_to(record_c: ModuleType) -> None:
    """The garbage collector does not know records. No reference leaks: a record releases its fields in each case."""
    key, value, headers = bytes(1000), bytes(1001), (("h", b"x"),)
    before = sys.getrefcount(key), sys.getrefcount(value), sys.getrefcount(headers)
    instances = [record_c.Record(key=key, value=value, headers=headers) for _ in range(600)]
    instances += [record._replace(offset=1) for record in instances]
    for record in instances[:10]:
        with pytest.raises(TypeError):
            record._replace(offset="no")
        with pytest.raises(InvalidRecordError):
            record_c.Record(key=key, value=value, headers=headers, partition=1 << 31)
    assert not any(map(gc.is_tracked, instances))
    assert sys.getrefcount(key) == before[0] + 1200
    del instances, record
    assert (sys.getrefcount(key), sys.getrefcount(value), sys.getrefcount(headers)) == before


@given(st.lists(fields, max_size=4))
def test_sorting_is_that_of_tuples(twin: ModuleType, chosen: list[dict[str, Any]]) -> None:
    instances = [twin.Record(**{**item, "key": None, "value": b"", "headers": ()}) for item in chosen]
    assert outcome(lambda: [tuple(item) for item in sorted(instances)]) == outcome(
        lambda: sorted(map(tuple, instances))
    )
