"""Messages between Spark's driver and tasks arrive unchanged; other bytes raise an error, and cannot run code."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StructType

from stratalog import Isolation, Record, TopicPartition, open_engine
from stratalog.errors import CorruptBatchError
from stratalog.model.names import TopicId
from stratalog.model.offsets import EpochEntry
from stratalog.model.segment_info import AbortedTransaction, FileKind, ObjectSlice, SegmentInfo
from stratalog.reading import Split
from stratalog.reading.split import PackedSegment, Piece
from stratalog.spi.layouts import StoredSegment
from stratalog.writing import StagedSegment, WriteMark
from stratalog_spark.options.read_options import Options
from stratalog_spark.options.write_options import SinkOptions
from stratalog_spark.source import BatchReader
from stratalog_spark.tasks.messages import SPLIT, Message, MessageError
from stratalog_spark.write.sink import BatchWriter, Written

TOPIC_ID = TopicId("AAAAAAAAAAAAAAAAAAAAAQ")
LOG = TopicPartition("orders", 3)
INFO = SegmentInfo(LOG, TOPIC_ID, 5, 9, 100, -1, 1_700_000_000_000, (EpochEntry(0, 5), EpochEntry(2, 7)))
STORED = StoredSegment(
    INFO,
    "single@1",
    {
        FileKind.LOG: ObjectSlice("orders-AAAAAAAAAAAAAAAAAAAAAQ/3/segments/1.seg", 0, 100),
        FileKind.LEADER_EPOCHS: ObjectSlice("orders-AAAAAAAAAAAAAAAAAAAAAQ/3/segments/1.seg", 100, 9),
    },
    "ab" * 32,
    ("zstd@1",),
    {"sha256": {"index": "cd" * 32}, "objects": ["a", "b"], "number": 7, "nothing": None},
)
DAMAGE = CorruptBatchError("cut", "orders-3/00.log", 17)


class Kind(StrEnum):
    ONE = "one"
    TWO = "two"


class Pair(NamedTuple):
    name: str
    number: int


@dataclass(frozen=True)
class Value:
    numbers: tuple[int, ...]
    pair: Pair
    kind: Kind
    data: bytes
    share: float
    flag: bool
    mapping: Mapping[Pair, list[str]]
    either: str | int | Pair | None


values = st.builds(
    Value,
    st.lists(st.integers()).map(tuple),
    st.builds(Pair, st.text(), st.integers()),
    st.sampled_from(Kind),
    st.binary(),
    st.floats(allow_nan=False),
    st.booleans(),
    st.dictionaries(st.builds(Pair, st.text(), st.integers()), st.lists(st.text())),
    st.none() | st.text() | st.integers() | st.builds(Pair, st.text(), st.integers()),
)


@given(values)
def test_a_value_of_every_kind_of_type_arrives_as_it_was(value: Value) -> None:
    kind = Message(Value)
    assert kind.unpack(kind.pack(value)) == value


def test_a_split_and_what_was_staged_arrive_as_they_were() -> None:
    place = PackedSegment.of(STORED)
    piece = Piece(LOG, TOPIC_ID, 5, 9, 0, 100, 5, 9, 100, place, aborted=(AbortedTransaction(1, 5, 6, 7),))
    damaged_piece = Piece(LOG, None, 9, 9, 0, 0, 9, 9, 0, "", is_active=True, damage=DAMAGE)
    split = SPLIT.unpack(SPLIT.pack(Split((piece, damaged_piece), Isolation.READ_COMMITTED)))
    assert split.isolation is Isolation.READ_COMMITTED
    assert split.pieces[0] == piece
    assert split.pieces[0].stored_segment() == STORED
    for text in ("", "{}", place.text[:-3], place.text + "\n{}"):
        unreadable_piece = piece._replace(place=PackedSegment(text))
        with pytest.raises(MessageError):
            SPLIT.unpack(SPLIT.pack(Split((unreadable_piece,), Isolation.READ_COMMITTED)))
    damage = split.pieces[1].damage
    assert isinstance(damage, CorruptBatchError)
    assert (damage.reason, damage.file, damage.position) == ("cut", "orders-3/00.log", 17)
    message = Message(list[StagedSegment])
    staged_segments = [StagedSegment(LOG, TOPIC_ID, 0, 4, 100, 2, place) for place in ("a file", STORED)]
    assert message.unpack(message.pack(staged_segments)) == staged_segments


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{" * 10_000,
        '{"stratalog-message":1,"kind":"Pair","value":["a"]}',
        '{"stratalog-message":1,"kind":"Pair","value":["a",true]}',
        '{"stratalog-message":1,"kind":"Pair","value":["a",1.0]}',
        '{"stratalog-message":1,"kind":"Pair","value":["a",1,2]}',
        '{"stratalog-message":1,"kind":"Pair","value":{"name":"a","number":1}}',
        '{"stratalog-message":1,"kind":"Other","value":["a",1]}',
        '{"stratalog-message":2,"kind":"Pair","value":["a",1]}',
        '{"stratalog-message":1,"kind":"Pair"}',
        pickle.dumps(Pair("a", 1), protocol=0).decode("ascii"),
    ],
)
def test_bytes_that_are_no_message_of_the_kind_raise_a_typed_error(text: str) -> None:
    with pytest.raises(MessageError, match="same release"):
        Message(Pair).unpack(text)


def test_a_message_with_a_field_that_its_type_does_not_have_is_refused() -> None:
    marks = Message(WriteMark)
    body = json.loads(marks.pack(WriteMark("query", 3)))
    body["value"]["more"] = 1
    with pytest.raises(MessageError, match="more"):
        marks.unpack(json.dumps(body))


def test_a_value_of_another_type_than_declared_is_not_sent() -> None:
    hint: Any
    for hint, value in ((int, True), (bytes, "text"), (Pair, None), (str | None, 7), (object, {1: 2}), (Kind, "one")):
        with pytest.raises(MessageError, match="cannot be sent"):
            Message(hint).pack(value)


class Recording(pickle.Unpickler):
    """Unpickler that records the classes and functions that a pickle refers to."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        self.names = set[str]()

    def find_class(self, module: str, name: str) -> Any:
        self.names.add(f"{module}.{name}")
        return super().find_class(module, name)


def test_the_pickles_that_spark_makes_hold_text_and_the_options_alone(tmp_path: Path) -> None:
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("orders")
        engine.log("orders", 0).append([Record(value=b"v")])
    reader = BatchReader(Options({"path": str(tmp_path / "data"), "subscribe": "orders"}), ("value",))
    [task] = reader.partitions()
    sink = SinkOptions({"path": str(tmp_path / "data"), "topic": "orders"})
    writer = BatchWriter(sink, StructType().add("value", BinaryType()))
    written = Written([StagedSegment(LOG, TOPIC_ID, 0, 4, 100, 2, STORED)], WriteMark("query", 1))
    for value in (reader, task, writer, written):
        recording = Recording(pickle.dumps(value))
        recording.load()
        assert not [name for name in recording.names if name.startswith("stratalog.")], recording.names
    unpickled = pickle.loads(pickle.dumps(written))  # noqa: S301 - made just now
    assert unpickled == written
    unpickled_reader = pickle.loads(pickle.dumps(reader))  # noqa: S301 - made just now
    batches = list(unpickled_reader.read(pickle.loads(pickle.dumps(task))))  # noqa: S301 - the same
    assert [batch.to_pylist() for batch in batches] == [[{"value": b"v"}]]
