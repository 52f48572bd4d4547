"""Fetch sessions: a client names its partitions once, and later responses have only the changed partitions."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable
from typing import Any

import pytest

from gateway_bed import Served, Wire, part
from stratalog import Record
from stratalog_gateway.error_codes import RefusedError
from stratalog_gateway.handlers import fetch_sessions
from stratalog_gateway.handlers.fetch_sessions import FetchSessions
from stratalog_gateway.wire.fetch_codec import FetchRequest, FetchResult, WantedPartition

VERSION = 12
NOT_FOUND, WRONG_EPOCH, OTHER_KEYS = 70, 71, 106
OPENS, ENDS = 0, -1


@pytest.fixture
def orders(gateway: Served) -> Served:
    gateway.engine.create_topic("orders", partitions=3)
    return gateway


def ask(
    wire: Wire,
    session: tuple[int, int],
    offsets: dict[int, int],
    *,
    forgotten: Iterable[int] = (),
    max_bytes: int = 1 << 20,
    partition_bytes: int = 1 << 20,
) -> Any:
    """Fetch from partitions of ``orders`` at these offsets, without waiting for records."""
    requested = tuple(
        part(
            "Fetch",
            VERSION,
            "FetchPartition",
            partition=number,
            fetch_offset=offset,
            partition_max_bytes=partition_bytes,
        )
        for number, offset in offsets.items()
    )
    numbers = tuple(forgotten)
    return wire.ask(
        "Fetch", VERSION, replica_id=-1, max_wait=dt.timedelta(0), min_bytes=0, max_bytes=max_bytes, isolation_level=0,
        session_id=session[0], session_epoch=session[1],
        topics=(part("Fetch", VERSION, "FetchTopic", topic="orders", partitions=requested),) if requested else (),
        forgotten_topics_data=(
            part("Fetch", VERSION, "ForgottenTopic", topic="orders", partitions=numbers),
        ) if numbers else (),
        rack_id="",
    )  # fmt: skip


def partitions(response: Any) -> list[int]:
    assert response.error_code == 0
    return [item.partition_index for topic in response.responses for item in topic.partitions]


def opened(wire: Wire, numbers: Iterable[int] = range(3)) -> int:
    response = ask(wire, (0, OPENS), dict.fromkeys(numbers, 0))
    assert partitions(response) == list(numbers)
    assert response.session_id > 0
    session_id: int = response.session_id
    return session_id


def append(orders: Served, partition: int, count: int = 1) -> None:
    orders.engine.log("orders", partition).append([Record(value=b"v")] * count)


def test_a_response_has_the_partitions_that_have_changed(orders: Served) -> None:
    with orders.wire() as wire:
        session = opened(wire)
        assert partitions(ask(wire, (session, 1), {})) == []
        append(orders, 1)
        assert partitions(ask(wire, (session, 2), {})) == [1]
        assert partitions(ask(wire, (session, 3), {})) == [1]  # the client still has the same offset
        assert partitions(ask(wire, (session, 4), {1: 1})) == []
        assert partitions(ask(wire, (session, 5), {})) == []


def test_a_new_bound_is_reported_without_records(orders: Served) -> None:
    for number in (0, 1):
        append(orders, number, 2)
    with orders.wire() as wire:
        session = ask(wire, (0, OPENS), {0: 2, 1: 2}).session_id
        assert partitions(ask(wire, (session, 1), {})) == []
        orders.engine.log("orders", 1).delete_records(1)
        response = ask(wire, (session, 2), {})
        assert partitions(response) == [1]
        assert response.responses[0].partitions[0].log_start_offset == 1
        assert partitions(ask(wire, (session, 3), {})) == []


def test_an_error_is_reported_each_time_and_its_end_too(orders: Served) -> None:
    with orders.wire() as wire:
        session = opened(wire, [0])
        for epoch in (1, 2):
            response = ask(wire, (session, epoch), {1: 5} if epoch == 1 else {})
            assert [(item.partition_index, item.error_code) for item in response.responses[0].partitions] == [(1, 1)]
        response = ask(wire, (session, 3), {1: 0})
        assert [(item.partition_index, item.error_code) for item in response.responses[0].partitions] == [(1, 0)]
        assert partitions(ask(wire, (session, 4), {})) == []


def test_partitions_are_added_and_forgotten(orders: Served) -> None:
    with orders.wire() as wire:
        session = opened(wire, [0])
        assert partitions(ask(wire, (session, 1), {2: 0})) == [2]
        append(orders, 0)
        append(orders, 2)
        assert partitions(ask(wire, (session, 2), {}, forgotten=[0])) == [2]
        assert partitions(ask(wire, (session, 3), {2: 1}, forgotten=[7])) == []


def test_partitions_take_turns_if_a_response_has_no_room_for_all(orders: Served) -> None:
    with orders.wire() as wire:
        session = opened(wire)
        for number in range(3):
            append(orders, number, 5)
        first = []
        for epoch in range(1, 7):
            response = ask(wire, (session, epoch), {}, max_bytes=1)
            first += [item.partition_index for item in response.responses[0].partitions if item.records]
        assert first == [0, 1, 2, 0, 1, 2]


def test_a_request_that_is_not_the_next_one_is_refused(orders: Served) -> None:
    with orders.wire() as wire:
        session = opened(wire)
        for epoch, code in ((2, WRONG_EPOCH), (1, 0), (1, WRONG_EPOCH), (2, 0)):
            assert ask(wire, (session, epoch), {}).error_code == code
        response = ask(wire, (session % 1000 + 1, 1), {})
        assert (response.error_code, response.session_id, response.responses) == (NOT_FOUND, 0, ())


@pytest.mark.parametrize("epoch", [OPENS, ENDS])
def test_a_session_ends_at_the_request_of_its_client(orders: Served, epoch: int) -> None:
    with orders.wire() as wire:
        session = opened(wire)
        response = ask(wire, (session, epoch), {0: 0})
        assert partitions(response) == [0]
        assert (response.session_id > 0) == (epoch == OPENS)
        assert response.session_id != session
        assert ask(wire, (session, 1), {}).error_code == NOT_FOUND


def test_a_session_outlives_its_connection(orders: Served) -> None:
    with orders.wire() as wire:
        session = opened(wire)
    append(orders, 1)
    with orders.wire() as wire:
        assert partitions(ask(wire, (session, 1), {})) == [1]


def wanted(partition: int, topic: str | bytes = "t") -> WantedPartition:
    return WantedPartition(topic, partition, -1, 0, -1, 100)


def request(session: tuple[int, int], *wanted_partitions: WantedPartition, has_ids: bool = False) -> FetchRequest:
    return FetchRequest(0, 0, 100, 0, *session, list(wanted_partitions), [], has_ids)


class Sessions:
    """Fetch sessions with a time that the test sets."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.all = FetchSessions(lambda: self.now_ns)

    def open(self, *wanted_partitions: WantedPartition) -> int:
        fetch_request = request((0, OPENS), *wanted_partitions)
        assert self.all.partitions_to_read(fetch_request) == list(wanted_partitions)
        return self.all.results_to_send(fetch_request, [])[0]


def test_names_and_ids_of_topics_are_not_mixed() -> None:
    sessions = Sessions()
    session, by_id = sessions.open(wanted(0)), wanted(0, uuid.uuid4().bytes)
    for topics in ((by_id,), ()):
        with pytest.raises(RefusedError) as caught:
            sessions.all.partitions_to_read(request((session, 1), *topics, has_ids=True))
        assert caught.value.kafka_code == OTHER_KEYS


def test_a_session_that_was_opened_with_ids_is_not_answered_in_a_version_with_names(orders: Served) -> None:
    topic_id = orders.engine.topics()["orders"].topic_id
    assert topic_id is not None
    partition = part("Fetch", 13, "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = (part("Fetch", 13, "FetchTopic", topic_id=topic_id.as_uuid, partitions=(partition,)),)
    with orders.wire() as wire:
        session = wire.ask(
            "Fetch", 13, replica_id=-1, max_wait=dt.timedelta(0), min_bytes=0, max_bytes=1 << 20, isolation_level=0,
            session_id=0, session_epoch=OPENS, topics=topics, forgotten_topics_data=(), rack_id="",
        ).session_id  # fmt: skip
        append(orders, 0)
        assert ask(wire, (session, 1), {}).error_code == OTHER_KEYS


def test_a_new_session_replaces_only_one_that_was_not_used_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "_MAX_SESSIONS", 2)
    sessions = Sessions()
    first, second = sessions.open(wanted(0)), sessions.open(wanted(1))
    sessions.now_ns = fetch_sessions._UNUSED_NS  # noqa: SLF001 - the limit is no setting
    assert sessions.open(wanted(2)) == 0
    sessions.all.partitions_to_read(request((first, 1)))
    sessions.now_ns += 1
    assert sessions.open(wanted(2)) > 0
    with pytest.raises(RefusedError):
        sessions.all.partitions_to_read(request((second, 1)))
    assert sessions.all.partitions_to_read(request((first, 2))) == [wanted(0)]


def test_the_partitions_of_all_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "_MAX_PARTITIONS", 3)
    sessions = Sessions()
    first = sessions.open(wanted(0), wanted(1))
    assert sessions.open(wanted(2), wanted(3)) == 0
    second = sessions.open(wanted(2))
    with pytest.raises(RefusedError) as caught:
        sessions.all.partitions_to_read(request((second, 1), wanted(3)))
    assert caught.value.kafka_code == NOT_FOUND
    sessions.all.partitions_to_read(request((first, ENDS)))
    assert sessions.open(wanted(2), wanted(3), wanted(4)) > 0


def test_partitions_of_a_session_that_is_not_used_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "_MAX_PARTITIONS", 3)
    sessions = Sessions()
    unused_session = sessions.open(wanted(0), wanted(1), wanted(2))
    sessions.now_ns = fetch_sessions._UNUSED_NS + 1  # noqa: SLF001 - the limit is no setting
    assert sessions.open() == 0
    assert sessions.all.partitions_to_read(request((unused_session, 1))) == [wanted(0), wanted(1), wanted(2)]
    sessions.now_ns *= 3
    session = sessions.open(wanted(3))
    assert sessions.all.partitions_to_read(request((session, 1), wanted(4), wanted(5))) == [
        wanted(3),
        wanted(4),
        wanted(5),
    ]
    with pytest.raises(RefusedError):
        sessions.all.partitions_to_read(request((unused_session, 2)))


def test_a_session_without_partitions_is_not_opened() -> None:
    assert Sessions().open() == 0


def test_partitions_withheld_by_throttling_are_sent_later(orders: Served) -> None:
    """A throttled response has no partitions. The next response has them."""
    bounds = orders.engine.log("orders", 0).offsets()
    result = FetchResult("t", 0, 0, bounds.high_watermark, bounds.last_stable, bounds.log_start)
    sessions = Sessions()
    opening = request((0, OPENS), wanted(0))
    session, _ = sessions.all.results_to_send(opening, [result])
    following = request((session, 1))
    sessions.all.partitions_to_read(following)
    assert sessions.all.results_to_send(following, [result]) == (session, [])
    assert sessions.all.withhold_results(following, session) == session
    assert sessions.all.results_to_send(following, [result]) == (session, [result])
    assert sessions.all.withhold_results(opening, session) == 0
