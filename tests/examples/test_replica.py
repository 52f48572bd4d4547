"""The example of a replication service: one engine follows another, through restarts and changes of the leader."""

from __future__ import annotations

import logging
import queue
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import replica
from replica.follower import Follower
from replica.leader import Leader, NotEnoughReplicasError
from replica.settings import ReplicaSection, address_of
from stratalog import Engine, LogOffsets, Record, open_engine
from stratalog.errors import ConfigError, NotLeaderOrFollowerError
from stratalog.log.log import Log
from stratalog.spi import Env, LogOpened, Service, hookimpl
from stratalog.testing.contracts import ServiceContract

WAIT_S = 60
PAGE = Path(__file__).parents[2] / "examples" / "replica" / "README.md"
ANYWHERE = "127.0.0.1:0"


def leader(*followers: str, **settings: object) -> Leader:
    section = {"listen": ANYWHERE, "followers": followers or ("follower",), **settings}
    return Leader(ReplicaSection.from_mapping(section, "test"), Env().clock)


def follower(leads: Leader, **settings: object) -> Follower:
    section = {"leader": leads.address, "poll.ms": 5, **settings}
    return Follower(ReplicaSection.from_mapping(section, "test"), Env().clock)


class Node:
    """A log directory, and an engine with at most one service."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._stack, self._made = folder, ExitStack(), threading.Event()
        self.engine = self._open()

    def _open(self) -> Engine:
        return self._stack.enter_context(open_engine(self._folder, config={"watermark": "external"}, plugins=[self]))

    def run(self, service: Service) -> None:
        """Start a service on the engine. ``close`` stops it."""
        service.start(self.engine)
        self._stack.callback(service.stop, Env().clock.monotonic_ns() + WAIT_S * 10**9)

    def restart(self) -> None:
        """Close the engine, and open it again without a service."""
        self.close()
        self.engine = self._open()

    def close(self) -> None:
        self._stack.close()

    @hookimpl
    def stratalog_on_log_opened(self, event: LogOpened) -> None:
        if event.log.topic == "orders":
            self._made.set()

    def log(self) -> Log:
        """Wait until the log exists, and return it. On a follower, the service creates it."""
        assert self._made.wait(WAIT_S)
        return self.engine.log("orders", 0)

    def contents(self) -> dict[str, bytes]:
        """Return the contents of the log's ``.log`` files by name. They are equal in all replicas."""
        folder = self._folder / "orders-0"
        return {path.name: path.read_bytes() for path in sorted(folder.glob("*.log"))}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable[[str], Node]]:
    with ExitStack() as stack:

        def made(name: str) -> Node:
            new_node = Node(tmp_path / name)
            stack.callback(new_node.close)
            return new_node

        yield made


def wait(log: Log, reached: Callable[[LogOffsets], bool]) -> None:
    """Wait until ``reached`` is True for the offsets of a log."""
    is_reached = threading.Event()

    def look(offsets: LogOffsets) -> None:
        if reached(offsets):
            is_reached.set()

    end = log.subscribe(look)
    look(log.offsets())
    arrived = is_reached.wait(WAIT_S)
    end()
    assert arrived, log.offsets()


def append(log: Log, *values: bytes) -> None:
    log.append([Record(value=value) for value in values])


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in log.records(isolation="log_end")]


def pair(node: Callable[[str], Node]) -> tuple[Node, Node, Leader]:
    """Return a leader node with one record, a node that follows it, and the leader service."""
    first, second, leads = node("first"), node("second"), leader()
    first.engine.create_topic("orders")
    append(first.log(), b"one")
    first.run(leads)
    second.run(follower(leads))
    return first, second, leads


def test_the_append_of_the_page_returns_when_all_followers_have_the_record(
    tmp_path: Path, node: Callable[[str], Node]
) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names = ("second", "third")
    section = {"listen": ANYWHERE, "followers": list(names), "min.insync.replicas": 3}
    settings = {"watermark": "external", "services": ["replica"], "plugins": {"replica": section}}
    with open_engine(tmp_path / "first", config=settings, plugins=[replica]) as engine:
        engine.create_topic("orders")
        engine.start()
        leads = engine.service("replica")
        assert isinstance(leads, Leader)
        followers = [node(name) for name in names]
        for node_of_follower, name in zip(followers, names, strict=True):
            node_of_follower.run(follower(leads, node=name))
        exec(block, {"engine": engine, "Record": Record})  # noqa: S102 - our own page
        assert leads.in_sync("orders", 0) == set(names)
        assert [values(node_of_follower.log()) for node_of_follower in followers] == [[b"order 1"]] * 2


def test_a_follower_has_what_the_leader_has_and_readers_see_what_both_have(node: Callable[[str], Node]) -> None:
    first, second = node("first"), node("second")
    first.engine.create_topic("orders", partitions=2, config={"segment.bytes": 160})
    append(first.log(), b"one", b"two")
    append(first.log(), b"three")
    leads = leader()
    first.run(leads)
    assert first.log().offsets().high_watermark == 0
    second.run(follower(leads))
    log = second.log()
    wait(log, lambda offsets: offsets.high_watermark == 3)
    wait(first.log(), lambda offsets: offsets.high_watermark == 3)
    append(first.log(), b"four")
    wait(log, lambda offsets: offsets.high_watermark == 4)
    assert values(log) == values(first.log()) == [b"one", b"two", b"three", b"four"]
    assert second.engine.partitions() == first.engine.partitions()
    with pytest.raises(NotLeaderOrFollowerError):
        append(log, b"mine")


def test_readers_are_shown_what_all_replicas_in_sync_have(node: Callable[[str], Node]) -> None:
    first, second, third = node("first"), node("second"), node("third")
    first.engine.create_topic("orders")
    append(first.log(), b"one")
    leads = leader("second", "third", **{"min.insync.replicas": 3})
    first.run(leads)
    second.run(follower(leads, node="second"))
    wait(second.log(), lambda offsets: offsets.log_end == 1)
    assert first.log().offsets().high_watermark == 0
    third.run(follower(leads, node="third"))
    wait(first.log(), lambda offsets: offsets.high_watermark == 1)
    assert leads.in_sync("orders", 0) == {"second", "third"}


def test_a_follower_that_restarts_continues(node: Callable[[str], Node]) -> None:
    first, second, leads = pair(node)
    wait(second.log(), lambda offsets: offsets.log_end == 1)
    second.restart()
    append(first.log(), b"two", b"three")
    second.run(follower(leads))
    wait(second.log(), lambda offsets: offsets.log_end == 3)
    second.restart()
    first.restart()
    assert second.contents() == first.contents()


def test_a_returning_leader_truncates_records_that_no_other_replica_had(node: Callable[[str], Node]) -> None:
    first, second, _ = pair(node)
    wait(second.log(), lambda offsets: offsets.high_watermark == 1)
    second.restart()
    append(first.log(), b"only here", b"this too")
    first.restart()  # no reader has seen these records, which are above the high watermark
    now_leads = leader(epoch=1)
    second.run(now_leads)
    append(second.log(), b"two")
    first.run(follower(now_leads, epoch=1))
    wait(first.log(), lambda offsets: offsets.log_end == 2 and offsets.high_watermark == 2)
    assert values(first.log()) == [b"one", b"two"]
    first.restart()
    second.restart()
    assert first.contents() == second.contents()


def test_no_acknowledged_record_is_lost_when_one_leader_after_another_fails(node: Callable[[str], Node]) -> None:
    nodes = {name: node(name) for name in ("first", "second", "third")}
    nodes["first"].engine.create_topic("orders")
    acknowledged = list[bytes]()
    elected = "first"
    for epoch in range(4):
        followers = sorted(nodes.keys() - {elected})
        leads = leader(*followers, epoch=epoch, **{"min.insync.replicas": 3})
        nodes[elected].run(leads)
        for name in followers:
            nodes[name].run(follower(leads, node=name, epoch=epoch))
        for number in range(3):
            record = Record(value=b"acknowledged %d.%d" % (epoch, number))
            leads.append("orders", 0, [record], WAIT_S * 1000)
            acknowledged.append(record.value or b"")
        for name in followers:
            nodes[name].restart()  # without followers: only the leader has the next records
        with pytest.raises(NotEnoughReplicasError, match="did not commit offset"):
            leads.append("orders", 0, [Record(value=b"only here")], 1)
        electable = sorted(leads.in_sync("orders", 0))
        nodes[elected].restart()
        elected = electable[epoch % len(electable)]
        assert values(nodes[elected].log()) == acknowledged
    leads = leader(*(nodes.keys() - {elected}), epoch=4)
    nodes[elected].run(leads)
    for name in nodes.keys() - {elected}:
        nodes[name].run(follower(leads, node=name, epoch=4))
        wait(nodes[name].log(), lambda offsets: offsets.high_watermark == offsets.log_end == len(acknowledged))
    for restarted_node in nodes.values():
        restarted_node.restart()
        assert values(restarted_node.log()) == acknowledged
        assert restarted_node.contents() == nodes[elected].contents()


def test_too_few_replicas_in_sync_write_nothing(node: Callable[[str], Node]) -> None:
    first, leads = node("first"), leader("second")
    first.engine.create_topic("orders")
    with pytest.raises(NotEnoughReplicasError, match="has not started"):
        leads.append("orders", 0, [Record(value=b"one")], 1)
    first.run(leads)
    with pytest.raises(NotEnoughReplicasError, match="too few replicas in sync"):
        leads.append("orders", 0, [Record(value=b"one")], 1)
    assert first.log().offsets().log_end == 0


def test_a_leader_continues_alone_if_its_followers_stay_away_and_that_is_enough(node: Callable[[str], Node]) -> None:
    first, leads = node("first"), leader("second", **{"min.insync.replicas": 1, "replica.lag.time.max.ms": 50})
    first.engine.create_topic("orders")
    first.run(leads)
    second = node("second")
    second.run(follower(leads, node="second"))
    wait(second.log(), lambda offsets: offsets.log_end == 0)
    second.restart()
    leads.append("orders", 0, [Record(value=b"one")], WAIT_S * 1000)
    assert leads.in_sync("orders", 0) == set()


def test_a_follower_that_was_left_behind_begins_again(node: Callable[[str], Node]) -> None:
    first, second, leads = pair(node)
    wait(first.log(), lambda offsets: offsets.high_watermark == 1)
    second.restart()
    append(first.log(), b"two", b"three")
    first.log().set_high_watermark(3)
    first.log().delete_records(2)
    second.run(follower(leads))
    wait(second.log(), lambda offsets: offsets.log_start == 2 and offsets.log_end == 3)
    assert values(second.log()) == [b"three"]


def test_a_leader_of_an_older_epoch_is_not_followed(
    node: Callable[[str], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = node("first"), node("second")
    for replica_node in (first, second):
        replica_node.engine.create_topic("orders")
    append(first.log(), b"of an old reign")
    leads = leader(epoch=3)
    first.run(leads)
    warnings = queue.SimpleQueue[str]()

    def note(record: logging.LogRecord) -> bool:
        warnings.put(record.getMessage())
        return True

    monkeypatch.setattr(logging.getLogger("replica.follower"), "filters", [note])
    second.run(follower(leads, epoch=4))
    assert "UnknownLeaderEpochError" in warnings.get(timeout=WAIT_S)
    assert second.log().offsets().log_end == 0


def test_nonsense_on_the_wire_ends_that_connection_alone(node: Callable[[str], Node]) -> None:
    first, second = node("first"), node("second")
    first.engine.create_topic("orders")
    append(first.log(), b"one")
    leads = leader()
    first.run(leads)
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"ask": "fetch"}\n', b"\xff" * 100 + b"\n"):
        with socket.create_connection(address_of(leads.address), WAIT_S) as connection:
            connection.sendall(nonsense)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(100) == b""
    second.run(follower(leads))
    wait(second.log(), lambda offsets: offsets.log_end == 1)


def test_it_is_found_by_the_settings_and_they_are_checked(tmp_path: Path) -> None:
    settings: dict[str, object] = {"services": ["replica"], "plugins": {"replica": {"listen": ANYWHERE}}}
    with open_engine(tmp_path / "a", config=settings, plugins=[replica]) as engine:
        engine.start()
        assert "replica-leader" in {thread.name for thread in threading.enumerate()}
    assert "replica-leader" not in {thread.name for thread in threading.enumerate()}
    for invalid_section in (
        {},
        {"listen": ANYWHERE, "leader": ANYWHERE},
        {"listen": "nowhere"},
        {"leader": "host:port"},
    ):
        with pytest.raises(ConfigError, match=r"plugins\.replica"):
            open_engine(tmp_path / "b", config={**settings, "plugins": {"replica": invalid_section}}, plugins=[replica])


class TestLeader(ServiceContract):
    @pytest.fixture
    def service(self) -> Service:
        return leader()


class TestFollower(ServiceContract):
    """Contract tests of a follower whose leader does not exist: it reconnects until it is stopped."""

    @pytest.fixture
    def service(self) -> Service:
        with socket.create_server(("127.0.0.1", 0)) as server:
            closed_address = f"127.0.0.1:{server.getsockname()[1]}"
        return Follower(ReplicaSection.from_mapping({"leader": closed_address}, "test"), Env().clock)
