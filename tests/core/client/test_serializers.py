"""Serializers and deserializers of producers and consumers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from stratalog import Consumer, DeserializedRecord, Engine, Record, TopicPartition
from stratalog.aio import AsyncConsumer, AsyncProducer
from stratalog.client.partitioner import partition_of_key
from stratalog.errors import SerializationError, WrongTypeError

ONE = TopicPartition("one", 0)


def to_json(value: object) -> bytes:
    return json.dumps(value).encode()


def reading(
    engine: Engine,
    key_deserializer: Callable[[bytes], Any] | None = None,
    value_deserializer: Callable[[bytes], Any] | None = None,
) -> Consumer[DeserializedRecord]:
    return engine.consumer(
        topics=["one"],
        auto_offset_reset="earliest",
        key_deserializer=key_deserializer,
        value_deserializer=value_deserializer,
    )


def test_keys_and_values_are_converted_both_ways(engine: Engine) -> None:
    with engine.producer(key_serializer=str.encode, value_serializer=to_json) as producer:
        producer.send("one", key="k", value={"amount": 3}, headers=[("h", b"1")], timestamp_ms=7)
    assert [(record.key, record.value) for record in engine.log("one").records()] == [(b"k", b'{"amount": 3}')]
    with reading(engine, key_deserializer=bytes.decode, value_deserializer=json.loads) as consumer:
        (record,) = consumer.poll()[ONE]
    assert isinstance(record, DeserializedRecord)
    assert record._asdict() == dict(
        zip(record._fields, next(engine.log("one").records()), strict=True), key="k", value={"amount": 3}
    )


def test_a_deserialized_record_has_the_fields_of_a_record() -> None:
    assert DeserializedRecord._fields == Record._fields


def test_none_stays_none(engine: Engine) -> None:
    with engine.producer(key_serializer=str.encode, value_serializer=to_json) as producer:
        producer.send("one")
    assert next(engine.log("one").records()).value is None
    with reading(engine, key_deserializer=bytes.decode, value_deserializer=json.loads) as consumer:
        assert [(record.key, record.value) for record in consumer.poll()[ONE]] == [(None, None)]


def test_one_part_without_a_function_is_bytes(engine: Engine) -> None:
    with engine.producer(value_serializer=str.encode) as producer:
        producer.send("one", key=b"k", value="v")
        with pytest.raises(WrongTypeError, match="key is bytes or None, not str"):
            producer.send("one", key="k")
    with reading(engine, value_deserializer=bytes.decode) as consumer:
        assert [(record.key, record.value) for _, record in consumer] == [(b"k", "v")]


def test_the_partition_is_that_of_the_serialized_key(engine: Engine) -> None:
    with engine.producer(key_serializer=str.encode) as producer:
        sent = [producer.send("t", key=f"k{number}") for number in range(9)]
        producer.flush()
    assert [future.result().partition for future in sent] == [partition_of_key(b"k%d" % n, 3) for n in range(9)]


def test_a_serializer_that_fails_queues_nothing_and_leaves_the_transaction(engine: Engine) -> None:
    with engine.producer(transactional_id="x", value_serializer=to_json) as producer:
        producer.begin_transaction()
        producer.send("one", value=1)
        with pytest.raises(SerializationError, match=r"the value cannot be serialized: TypeError: .* topic=one"):
            producer.send("one", value={1})
        producer.commit_transaction()
    assert [record.value for record in engine.log("one").records()] == [b"1"]


def test_a_serializer_must_return_bytes(engine: Engine) -> None:
    text: Any = str
    expected = pytest.raises(SerializationError, match="key_serializer returned str instead of bytes topic=one")
    with engine.producer(key_serializer=text) as producer, expected:
        producer.send("one", key=1)


def test_a_bad_record_is_named_after_the_good_ones_before_it(engine: Engine) -> None:
    engine.log("one").append([Record(value=value) for value in (b"1", b"2", b"{", b"4")])
    with reading(engine, value_deserializer=json.loads) as consumer:
        assert [record.value for record in consumer.poll()[ONE]] == [1, 2]
        for _ in range(2):  # the position stays
            with pytest.raises(SerializationError, match=r"the value cannot be deserialized: .*seek") as caught:
                consumer.poll()
            assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("one", 0, 2)
            assert consumer.position(ONE) == 2
        consumer.seek(ONE, 3)
        assert [record.value for _, record in consumer.records()] == [4]


def test_a_serializer_that_is_no_function_is_refused(engine: Engine) -> None:
    no_function: Any = "json"
    with pytest.raises(WrongTypeError, match="value_deserializer of consumer"):
        engine.consumer(topics=["one"], value_deserializer=no_function)
    with pytest.raises(WrongTypeError, match="value_serializer of ProducerOptions"):
        engine.producer(value_serializer=no_function)


def test_coroutines_convert_too(engine: Engine) -> None:
    async def work() -> list[object]:
        async with AsyncProducer(engine.producer(value_serializer=to_json)) as producer:
            await (await producer.send("one", value=[1]))
        async with AsyncConsumer(reading(engine, value_deserializer=json.loads)) as consumer:
            return [record.value async for _, record in consumer.records()]

    assert asyncio.run(work()) == [[1]]
