"""The codecs of Produce and Fetch, compiled and in Python, read and write the same bytes as the library kio."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from types import ModuleType
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiled_twin import compiled_twin
from gateway_bed import frame_of, part, request, response
from stratalog import Fetched, LogOffsets, Transfer
from stratalog.env.posix_vfs import PosixVfs
from stratalog.segment.components import Components
from stratalog_gateway.wire import fetch_codec, produce_codec
from stratalog_gateway.wire.fetch_codec import FetchResult, decode_fetch, encode_fetch, frame_bytes
from stratalog_gateway.wire.messages import Header, read_header
from stratalog_gateway.wire.primitives import MalformedRequestError
from stratalog_gateway.wire.produce_codec import ProduceResult, decode_produce, encode_produce

names = st.text("abz.-_é", min_size=1, max_size=200)
small = st.integers(0, (1 << 31) - 1)
longs = st.integers(-1, (1 << 63) - 1)
stamps = st.integers(-1, 253_402_300_799_999)  # kio reads timestamps as dates, which end with the year 9999
partitions = st.integers(0, 1000)
wrong = st.lists(st.tuples(small, names), max_size=2).map(tuple)
errors = st.sampled_from([0, 1, 3, 6, 87])


@pytest.fixture(params=["compiled", "python"], autouse=True, scope="module")
def kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    """Use the compiled codecs, or those in Python."""
    with pytest.MonkeyPatch.context() as patched:
        module = compiled_twin("stratalog_gateway.wire.codecs_c") if request.param == "compiled" else None
        for codec in (fetch_codec, produce_codec):
            patched.setattr(codec, "_KERNEL", module)
        yield


def transfer_of(data: bytes) -> Transfer:
    """Return a transfer with batches in memory."""
    bounds = LogOffsets(0, 0, 0, 0, 0, 1)
    return Transfer(Fetched(memoryview(data), 1, bounds, 0, cast(Components, None)), PosixVfs())


def parts_of(frame: bytes) -> tuple[Header, memoryview]:
    data = memoryview(frame)
    return read_header(data), data


@settings(max_examples=60)
@given(
    st.integers(3, 12),
    st.none() | names,
    st.sampled_from([-1, 0, 1]),
    st.lists(st.tuples(names, st.lists(st.tuples(partitions, st.binary(max_size=300)), max_size=4)), max_size=3),
)
def test_a_produce_request_is_read_as_kio_writes_it(
    version: int, transactional_id: Any, acks: int, topics: list[tuple[str, list[tuple[int, bytes]]]]
) -> None:
    topic_data = tuple(
        part(
            "Produce", version, "TopicProduceData", name=name,
            partition_data=tuple(
                part("Produce", version, "PartitionProduceData", index=number, records=records)
                for number, records in numbered_records
            ),
        )
        for name, numbered_records in topics
    )  # fmt: skip
    frame = request(
        "Produce", version,
        {
            "transactional_id": transactional_id, "acks": acks, "timeout": dt.timedelta(milliseconds=1500),
            "topic_data": topic_data,
        },
    )  # fmt: skip
    decoded = decode_produce(*parts_of(frame))
    assert (decoded.transactional_id, decoded.acks, decoded.timeout_ms) == (transactional_id, acks, 1500)
    assert [(name, [(number, bytes(data)) for number, data in all_]) for name, all_ in decoded.topics] == topics


@settings(max_examples=60)
@given(
    st.integers(3, 12),
    st.lists(
        st.tuples(
            names,
            st.lists(
                st.builds(ProduceResult, partitions, errors, longs, stamps, longs, st.none() | names, wrong), max_size=3
            ),
        ),
        max_size=3,
    ),
)
def test_kio_reads_a_produce_response(version: int, topics: list[tuple[str, list[ProduceResult]]]) -> None:
    decoded = response("Produce", version, encode_produce(version, topics, 7)[4:])
    assert len(decoded.responses) == len(topics)
    for (name, results), topic in zip(topics, decoded.responses, strict=True):
        assert topic.name == name
        for result, partition in zip(results, topic.partition_responses, strict=True):
            assert (partition.index, partition.error_code, partition.base_offset) == result[:3]
            assert version < 5 or partition.log_start_offset == result.log_start
            assert version < 8 or partition.error_message == result.message
            if version >= 8:
                record_errors = tuple(
                    (item.batch_index, item.batch_index_error_message) for item in partition.record_errors
                )
                assert record_errors == result.record_errors


def wanted(version: int, number: int, fields: tuple[int, int, int, int]) -> Any:
    epoch, offset, last, limit = fields
    values = {"partition": number, "fetch_offset": offset, "partition_max_bytes": limit}
    if version >= 9:
        values["current_leader_epoch"] = epoch
    if version >= 12:
        values["last_fetched_epoch"] = last
    return part("Fetch", version, "FetchPartition", **values)


@settings(max_examples=60)
@given(
    st.integers(4, 17),
    st.lists(
        st.tuples(names, st.uuids(), st.dictionaries(partitions, st.tuples(small, longs, small, small), max_size=3)),
        max_size=3,
    ),
    st.tuples(small, small, st.sampled_from([0, 1]), small, small),
)
def test_a_fetch_request_is_read_as_kio_writes_it(
    version: int,
    topics: list[tuple[str, uuid.UUID, dict[int, tuple[int, int, int, int]]]],
    numbers: tuple[int, int, int, int, int],
) -> None:
    def key(name: str, topic_id: uuid.UUID) -> dict[str, Any]:
        return {"topic_id": topic_id} if version >= 13 else {"topic": name}

    topic_parts = tuple(
        part(
            "Fetch",
            version,
            "FetchTopic",
            **key(name, topic_id),
            partitions=tuple(wanted(version, *item) for item in fields_by_number.items()),
        )
        for name, topic_id, fields_by_number in topics
    )
    min_bytes, max_bytes, isolation, session, epoch = numbers
    values = {
        "max_wait": dt.timedelta(milliseconds=250),
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation,
        "topics": topic_parts,
    }
    if version < 15:
        values["replica_id"] = -1
    if version >= 7:
        forgotten = tuple(
            part("Fetch", version, "ForgottenTopic", **key(name, topic_id), partitions=tuple(all_))
            for name, topic_id, all_ in topics
        )
        values |= {"session_id": session, "session_epoch": epoch, "forgotten_topics_data": forgotten}
    if version >= 11:
        values["rack_id"] = ""
    decoded = decode_fetch(*parts_of(request("Fetch", version, values)))
    assert decoded[:4] == (250, min_bytes, max_bytes, isolation)
    assert decoded.session_epoch == (epoch if version >= 7 else -1)
    expected = [
        (
            topic_id.bytes if version >= 13 else name,
            number,
            f[0] if version >= 9 else -1,
            f[1],
            f[2] if version >= 12 else -1,
            f[3],
        )
        for name, topic_id, all_ in topics
        for number, f in all_.items()
    ]
    assert [tuple(item) for item in decoded.partitions] == expected
    assert decoded.forgotten == ([item[:2] for item in expected] if version >= 7 else [])


results = st.builds(
    FetchResult, st.just(""), partitions, errors, longs, longs, longs,
    st.lists(st.tuples(longs, longs), max_size=2), st.none() | st.sampled_from([b"", b"abc", bytes(70_000)]).map(transfer_of),
    st.none() | st.tuples(small, longs),
)  # fmt: skip


@settings(max_examples=60)
@given(st.integers(4, 17), st.dictionaries(names, st.lists(results, max_size=3), max_size=3), st.sampled_from([0, 70]))
def test_kio_reads_a_fetch_response(version: int, topics: dict[str, list[FetchResult]], error: int) -> None:
    ids = {name: uuid.uuid5(uuid.NAMESPACE_URL, name) for name in topics}
    keyed = {name: ids[name].bytes if version >= 13 else name for name in topics}
    given_results = [
        item._replace(topic=keyed[name]) for name, topic_results in topics.items() for item in topic_results
    ]
    pieces = encode_fetch(Header(1, version, 7, "", 0), given_results, error=error, session_id=9)
    frame = frame_of(pieces)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert frame_bytes(pieces) == len(frame)
    decoded = response("Fetch", version, frame[4:])
    assert version < 7 or (decoded.error_code, decoded.session_id) == (error, 9)
    read = [
        (topic.topic_id.bytes if version >= 13 else topic.topic, item)
        for topic in decoded.responses
        for item in topic.partitions
    ]
    assert len(read) == len(given_results)
    for (topic, partition), result in zip(read, given_results, strict=True):
        assert (topic, partition.partition_index, partition.error_code, partition.high_watermark) == result[:4]
        assert [
            (transaction.producer_id, transaction.first_offset) for transaction in partition.aborted_transactions or ()
        ] == list(result.aborted)
        assert (partition.records or b"") == (b"" if result.batches is None else bytes(result.batches.read()))
        if version >= 12 and result.diverging is not None:
            assert (partition.diverging_epoch.epoch, partition.diverging_epoch.end_offset) == result.diverging


@pytest.mark.parametrize(("api", "version", "decode"), [("Produce", 9, decode_produce), ("Fetch", 12, decode_fetch)])
def test_every_cut_of_a_request_is_refused(api: str, version: int, decode: Any) -> None:
    second = dt.timedelta(seconds=1)
    if api == "Produce":
        data = part(api, version, "PartitionProduceData", index=0, records=b"records")
        topic = part(api, version, "TopicProduceData", name="orders", partition_data=(data,))
        values: dict[str, Any] = {"transactional_id": None, "acks": 1, "timeout": second, "topic_data": (topic,)}
    else:
        topic = part(api, version, "FetchTopic", topic="orders", partitions=(wanted(version, 0, (1, 2, 3, 4)),))
        values = {
            "replica_id": -1,
            "max_wait": second,
            "min_bytes": 1,
            "max_bytes": 1,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": (topic,),
            "forgotten_topics_data": (),
            "rack_id": "",
        }
    header, data_ = parts_of(request(api, version, values))
    end = len(data_) - (0 if api == "Produce" else 3)  # the fields after the topics are not read
    for size in range(header.body_at, end - 1):
        with pytest.raises(MalformedRequestError):
            decode(header, data_[:size])


def test_lying_array_lengths_are_refused() -> None:
    for length in (b"\x7f\xff\xff\xff", b"\x00\x00\x10\x00"):
        frame = b"\xff\xff" + b"\x00\x01" + b"\x00\x00\x00\x01" + length
        with pytest.raises(MalformedRequestError, match="longer than the request"):
            decode_produce(Header(0, 3, 7, "", 0), memoryview(frame))


def in_python(codec: ModuleType, function: str, *arguments: Any, **options: Any) -> Any:
    """Return the result of a codec's function without the compiled form, or the type of its error."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(codec, "_KERNEL", None)
        return outcome(getattr(codec, function), *arguments, **options)


def outcome(function: Any, *arguments: Any, **options: Any) -> Any:
    try:
        return function(*arguments, **options)
    except MalformedRequestError as error:
        return str(error)


PARTITION = bytes.fromhex(
    "00000001" + "00000002" + "0000000000000003" + "00000004" + "0000000000000005" + "00000006" + "00"
)
FETCH_BODY = (
    b"\0" + bytes.fromhex("ffffffff" + "00000001" * 3 + "01" + "00000007" + "00000008")
    + b"\x02\x07orders\x03" + PARTITION + PARTITION + b"\x01\x00\x01a\x01\x01\x01"
)  # fmt: skip
PRODUCE_BODY = b"\0" + b"\x03tx\x00\x01\x00\x00\x00\x09\x02\x07orders\x02\x00\x00\x00\x01\x04abc\x00\x00\x00"


@settings(max_examples=150)
@given(
    st.sampled_from([(fetch_codec, "decode_fetch", 1), (produce_codec, "decode_produce", 0)]),
    st.integers(3, 18),
    st.sampled_from([FETCH_BODY, PRODUCE_BODY]) | st.binary(max_size=80),
    st.lists(st.tuples(st.integers(0, 150), st.binary(min_size=1, max_size=5)), max_size=3),
    st.integers(0, 200),
)
def test_both_codecs_read_wrong_requests_alike(
    decoder: tuple[ModuleType, str, int], version: int, body: bytes, changes: list[tuple[int, bytes]], size: int
) -> None:
    codec, function, api = decoder
    changed = bytearray(body)
    for position, new in changes:
        changed[position : position + len(new)] = new
    header, data = Header(api, max(version, 4), 7, "", 0), memoryview(bytes(changed[:size]))
    assert outcome(getattr(codec, function), header, data) == in_python(codec, function, header, data)


@settings(max_examples=40)
@given(st.integers(4, 18), st.lists(st.tuples(names | st.binary(min_size=16, max_size=16), results), max_size=5))
def test_both_codecs_write_a_fetch_response_alike(version: int, found: list[tuple[str | bytes, FetchResult]]) -> None:
    header, keyed_results = Header(1, version, 7, "", 0), [result._replace(topic=topic) for topic, result in found]
    plain_results = [result._replace(aborted=(), diverging=None) for result in keyed_results]
    for given_results in (keyed_results, plain_results):
        pieces = encode_fetch(header, given_results, error=1, session_id=2, throttle_ms=3)
        python_pieces = in_python(
            fetch_codec, "encode_fetch", header, given_results, error=1, session_id=2, throttle_ms=3
        )
        assert frame_of(pieces) == frame_of(python_pieces)
        assert [len(frame_of([piece])) for piece in pieces] == [len(frame_of([piece])) for piece in python_pieces]


@settings(max_examples=60)
@given(
    st.integers(3, 13),
    st.lists(
        st.tuples(
            names | st.binary(min_size=16, max_size=16),
            st.lists(
                st.builds(ProduceResult, partitions, errors, longs, stamps, longs, st.none(), st.just(())), max_size=9
            ),
        ),
        max_size=5,
    ),
)
def test_both_codecs_write_a_produce_response_alike(
    version: int, topics: list[tuple[str | bytes, list[ProduceResult]]]
) -> None:
    python_frame = in_python(produce_codec, "encode_produce", version, topics, 7, 3)
    assert encode_produce(version, topics, 7, 3) == python_frame
