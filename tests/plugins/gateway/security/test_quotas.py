from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway_bed import Wire, frame_of, part, request, response, served
from stratalog import Record, open_engine
from stratalog.env.clock import ManualClock
from stratalog.errors import ConfigError
from stratalog_gateway.handlers.fetch import FetchHandler
from stratalog_gateway.handlers.produce import ProduceHandler
from stratalog_gateway.node import Node
from stratalog_gateway.security.client import Client
from stratalog_gateway.security.connection_quotas import ConnectionQuotas
from stratalog_gateway.security.endpoints import Endpoint, SecurityProtocol
from stratalog_gateway.security.quotas import FETCHED, PRODUCED, Quotas, Rate
from stratalog_gateway.settings import GatewaySection
from stratalog_gateway.wire.messages import read_header

SECOND = dt.timedelta(seconds=1)
ENDPOINT = Endpoint("PLAINTEXT", SecurityProtocol.PLAINTEXT, "127.0.0.1", 9092, "127.0.0.1")


def quota_file(folder: Path, *quotas: dict[str, Any]) -> Path:
    path = folder / "quotas.json"
    fresh = folder / "quotas.new"
    fresh.write_text(json.dumps({"version": 1, "quotas": quotas}))
    fresh.replace(path)
    return path


def of(user: str) -> Client:
    client = Client("127.0.0.1", ENDPOINT)
    client.principal = f"User:{user}"
    return client


def test_the_wait_brings_the_rate_back_to_its_limit() -> None:
    rate = Rate(100)
    assert rate.record(1000, 0) == 0  # 100 a second over the window of ten seconds
    assert rate.record(500, 0) == 5000
    assert rate.record(0, 5000) == 5000  # the window is still ten seconds long
    assert rate.record(0, 11_000) == 0


def test_the_window_forgets_what_is_older_than_eleven_seconds() -> None:
    rate = Rate(10)
    rate.record(1000, 0)
    assert rate.record(0, 10_999) > 0
    assert rate.record(1, 11_001) == 0


def test_the_wait_fits_the_field_of_a_response() -> None:
    assert Rate(0.001).record(50 << 20, 0) == 2**31 - 1
    assert Rate(1e-320).record(50 << 20, 0) == 2**31 - 1


def test_the_most_specific_quota_counts(tmp_path: Path) -> None:
    default = "<default>"
    rates = {
        ("alice", "app"): 1, ("alice", default): 2, ("alice", ""): 3, (default, "app"): 4, (default, default): 5,
        (default, ""): 6, ("", "app"): 7, ("", default): 8,
    }  # fmt: skip
    for number, pair in enumerate(rates, 1):
        remaining_rates = {key: rate for key, rate in rates.items() if rate >= number}
        path = quota_file(tmp_path, *(
            {"user": user, "client-id": client, "consumer_byte_rate": rate}
            for (user, client), rate in remaining_rates.items()
        ))  # fmt: skip
        quotas = Quotas(str(path), ManualClock())
        assert quotas.window_bytes(of("alice"), "app") == rates[pair] * 10


def test_clients_of_a_default_quota_do_not_share_it_and_those_of_a_user_do(tmp_path: Path) -> None:
    path = quota_file(
        tmp_path,
        {"user": "<default>", "producer_byte_rate": 10},
        {"user": "<default>", "client-id": "<default>", "consumer_byte_rate": 10},
    )
    quotas = Quotas(str(path), ManualClock())
    assert quotas.record(PRODUCED, of("alice"), "a", 200) == 10_000
    assert quotas.record(PRODUCED, of("bob"), "a", 1) == 0
    assert quotas.record(PRODUCED, of("alice"), "b", 1) > 0
    assert quotas.record(FETCHED, of("alice"), "a", 200) == 10_000
    assert quotas.record(FETCHED, of("alice"), "b", 1) == 0


def test_a_changed_limit_counts_within_a_second(tmp_path: Path) -> None:
    clock = ManualClock()
    path = quota_file(tmp_path, {"client-id": "app", "producer_byte_rate": 10})
    quotas = Quotas(str(path), clock)
    assert quotas.record(PRODUCED, of("alice"), "app", 200) > 0
    quota_file(tmp_path, {"client-id": "app", "producer_byte_rate": 1_000_000})
    clock.advance_ms(1000)
    assert quotas.record(PRODUCED, of("alice"), "app", 200) == 0
    quota_file(tmp_path)
    clock.advance_ms(1000)
    assert quotas.window_bytes(of("alice"), "app") is None


def test_a_clock_that_is_set_back_does_not_add_to_a_rate(tmp_path: Path) -> None:
    class SetBack(ManualClock):
        set_back_ms = 0

        def now_ms(self) -> int:
            return super().now_ms() - self.set_back_ms

    clock = SetBack()
    bytes_a_second = {"client-id": "app", "producer_byte_rate": 10}
    path = quota_file(tmp_path, bytes_a_second, {"ip": "::1", "connection_creation_rate": 2})
    quotas = Quotas(str(path), clock)
    of_all = ConnectionQuotas(GatewaySection(connection_rate=10), quotas, clock)
    for number in range(30):
        assert quotas.record(PRODUCED, of("alice"), "app", 5) == 0
        assert not quotas.refuses_connection("::1")
        assert of_all.pause_ms() == 0
        clock.advance_ms(1000)
        clock.set_back_ms = 3_600_000 if number else 0


@pytest.mark.parametrize(
    ("quota", "reason"),
    [
        (1, "is not an object"),
        ({"user": "a"}, "has no limit"),
        ({"producer_byte_rate": 1}, "name a user, a client-id or both, or an ip"),
        ({"user": "a", "ip": "::1", "producer_byte_rate": 1}, "name a user, a client-id or both, or an ip"),
        ({"user": "a", "connection_creation_rate": 1}, "is not a limit of users and clients"),
        ({"ip": "::1", "producer_byte_rate": 1}, "is not a limit of an ip"),
        ({"ip": "localhost", "connection_creation_rate": 1}, "does not appear to be an IPv4 or IPv6 address"),
        ({"user": "a", "producer_byte_rate": 0}, "must be a number above 0"),
        ({"user": "a", "producer_byte_rate": "1"}, "must be a number above 0"),
        ({"user": "a", "consumer_byte_rate": float("inf")}, "at most 2^63"),
        ({"ip": "::1", "connection_creation_rate": 10**400}, "at most 2^63"),
        ({"user": "a", "color": 1}, "unknown field color"),
    ],
)
def test_a_wrong_quota_is_an_error_with_its_number(tmp_path: Path, quota: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"quotas\[0\].*{re.escape(reason)}"):
        Quotas(str(quota_file(tmp_path, quota)), ManualClock())


def test_quotas_in_too_many_brackets_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "quotas.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ConfigError, match="is not JSON"):
        Quotas(str(path), ManualClock())


def connection_quotas(tmp_path: Path, clock: ManualClock, *quotas: dict[str, Any], **settings: Any) -> ConnectionQuotas:
    return ConnectionQuotas(GatewaySection(**settings), Quotas(str(quota_file(tmp_path, *quotas)), clock), clock)


def test_connections_are_limited_in_all_and_by_address(tmp_path: Path) -> None:
    connection_limits = connection_quotas(
        tmp_path,
        ManualClock(),
        connections=4,
        connections_per_ip=2,
        connections_per_ip_overrides=("10.0.0.9:3", "::1:0"),
    )
    assert [connection_limits.acquire("10.0.0.1") for _ in range(3)] == ["", "", "max.connections.per.ip=2"]
    assert connection_limits.acquire("::1") == "max.connections.per.ip=0"
    assert [connection_limits.acquire("10.0.0.9") for _ in range(3)] == ["", "", "max.connections=4"]
    connection_limits.release("10.0.0.1")
    assert [connection_limits.acquire("10.0.0.9") for _ in range(2)] == ["", "max.connections=4"]


def test_new_connections_wait_if_there_are_too_many_in_a_second(tmp_path: Path) -> None:
    clock = ManualClock()
    connection_limits = connection_quotas(tmp_path, clock, connection_rate=2)
    assert [connection_limits.pause_ms() for _ in range(21)] == [*[0] * 20, 500]
    clock.advance_ms(11_000)
    assert connection_limits.pause_ms() == 0


def test_new_connections_of_an_address_have_a_limit_of_their_own(tmp_path: Path) -> None:
    # 0:0:0:0:0:0:0:1 is Java's text of ::1
    of_localhost = {"ip": "0:0:0:0:0:0:0:1", "connection_creation_rate": 9}
    quotas = ({"ip": "<default>", "connection_creation_rate": 0.2}, of_localhost)
    connection_limits = connection_quotas(tmp_path, ManualClock(), *quotas)
    assert [connection_limits.acquire("10.0.0.1") for _ in range(3)] == ["", "", "connection_creation_rate"]
    assert {connection_limits.acquire("::1") for _ in range(9)} == {""}
    assert connection_limits.acquire("10.0.0.2") == ""


@pytest.mark.parametrize("text", ["10.0.0.1", "example.org:1", "10.0.0.1:many", ""])
def test_a_wrong_exception_for_an_address_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="is not of the form ADDRESS:NUMBER"):
        connection_quotas(tmp_path, ManualClock(), connections_per_ip_overrides=(text,))


def throttled(tmp_path: Path, **rates: int) -> tuple[list[int], list[int]]:
    """Return the throttle times (ms) of three Produce and three Fetch requests, and the sizes of the Fetch responses.

    Each Produce request has 200 bytes.
    """
    path = quota_file(tmp_path, {"client-id": "test", **rates})
    with open_engine(tmp_path / "logs") as engine:
        engine.create_topic("orders")
        engine.log("orders").append([Record(value=b"v" * 150)])
        node = Node(engine, GatewaySection(quotas_file=str(path)), ManualClock())
        produce, fetch, client = ProduceHandler(node), FetchHandler(node), of("alice")
        waits, sizes = [], []
        for _ in range(3):
            frame = request("Produce", 3, {"transactional_id": None, "acks": 1, "timeout": SECOND, "topic_data": ()})
            frame += bytes(200 - len(frame))
            handler_response = produce(read_header(memoryview(frame)), memoryview(frame), client)
            answer = response("Produce", 3, frame_of(handler_response.pieces)[4:])
            assert answer.throttle_time == dt.timedelta(milliseconds=handler_response.throttle_ms)
            waits.append(handler_response.throttle_ms)
        for _ in range(3):
            answer, wait_ms = fetched(fetch, client)
            waits.append(wait_ms)
            sizes.append(len(answer.responses))
        node.close()
    return waits, sizes


def fetched(fetch: FetchHandler, client: Client, session: tuple[int, int] = (0, -1)) -> tuple[Any, int]:
    """Fetch ``orders`` from its start, and return the response and its throttle time in ms."""
    partition = part("Fetch", 11, "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = (part("Fetch", 11, "FetchTopic", topic="orders", partitions=(partition,)),)
    frame = request("Fetch", 11, {
        "replica_id": -1, "max_wait": SECOND, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0,
        "session_id": session[0], "session_epoch": session[1], "topics": topics, "forgotten_topics_data": (),
        "rack_id": "",
    })  # fmt: skip
    handler_response = fetch(read_header(memoryview(frame)), memoryview(frame), client)
    answer = response("Fetch", 11, frame_of(handler_response.pieces)[4:])
    handler_response.release()
    assert answer.throttle_time == dt.timedelta(milliseconds=handler_response.throttle_ms)
    return answer, handler_response.throttle_ms


def test_a_producer_above_its_quota_is_answered_and_then_waits(tmp_path: Path) -> None:
    assert throttled(tmp_path, producer_byte_rate=50)[0] == [0, 0, 2000, 0, 0, 0]


def test_a_fetch_above_its_quota_is_empty_and_does_not_count(tmp_path: Path) -> None:
    waits, sizes = throttled(tmp_path, consumer_byte_rate=40)
    assert waits[:4] == [0, 0, 0, 0]
    assert waits[4] == waits[5] > 0
    assert sizes == [1, 0, 0]


def test_a_session_continues_after_a_throttled_fetch_and_is_not_opened_by_one(tmp_path: Path) -> None:
    path, clock, client = (
        quota_file(tmp_path, {"client-id": "test", "consumer_byte_rate": 40}),
        ManualClock(),
        of("alice"),
    )
    with open_engine(tmp_path / "logs") as engine:
        engine.create_topic("orders")
        engine.log("orders").append([Record(value=b"v" * 150)])
        node = Node(engine, GatewaySection(quotas_file=str(path)), clock)
        fetch = FetchHandler(node)
        first_answer, _ = fetched(fetch, client, (0, 0))
        assert first_answer.session_id > 0
        for session, expected_id in (((first_answer.session_id, 1), first_answer.session_id), ((0, 0), 0)):
            answer, wait_ms = fetched(fetch, client, session)
            assert (answer.session_id, answer.responses, wait_ms > 0) == (expected_id, (), True)
        clock.advance_ms(11_000)
        answer, wait_ms = fetched(fetch, client, (first_answer.session_id, 2))
        assert (answer.session_id, len(answer.responses), wait_ms) == (first_answer.session_id, 1, 0)
        node.close()


def test_connections_above_the_limit_of_an_address_are_closed(tmp_path: Path) -> None:
    with served(tmp_path / "logs", connections_per_ip=1) as few, few.wire() as first:
        assert first.ask("ApiVersions", 0).error_code == 0
        with Wire(few.bootstrap) as second:
            assert second.receive() is None
        assert first.ask("ApiVersions", 0).error_code == 0
