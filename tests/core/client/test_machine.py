"""Producers, groups and crashes in random order: readers see exactly the committed records."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratalog import CommittedOffset, Engine, Producer, TopicPartition, open_engine
from stratalog.client.statetopic import CONFIG
from stratalog.errors import ProducerFencedError, TransactionAbortedError
from stratalog.model.messages.offsets_topic import OFFSETS_TOPIC
from stratalog.model.messages.transactions_topic import TRANSACTIONS_TOPIC
from stratalog.model.names import LOCK_FILE

IDS = st.sampled_from(["a", "b"])
PARTITIONS = st.integers(0, 1)
GROUP = "g"
SMALL = {"segment.bytes": 600, "index.interval.bytes": 50}


class Clients(RuleBasedStateMachine):
    """State machine of two transactional ids and two partitions. Its model is the list of committed values."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.opened = 0
        self.number = 0
        self.producers: dict[str, Producer] = {}
        self.pending: dict[str, tuple[list[tuple[int, bytes]], int | None]] = {}
        self.visible: list[set[bytes]] = [set(), set()]
        self.committed: int | None = None

    @initialize()
    def begin(self) -> None:
        self.engine: Engine = open_engine(self.root / "0")
        self.engine.create_topic("t", partitions=2, config=SMALL)
        for topic in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):  # fewer partitions than usual: restarts are cheaper
            self.engine.create_topic(topic, partitions=2, config=CONFIG)

    @rule(name=IDS)
    def open(self, name: str) -> None:
        """Open another producer with the id, and check that this fences the earlier producer of the id.

        The uncommitted records of the earlier producer are then aborted.
        """
        old = self.producers.get(name)
        self.producers[name] = self.engine.producer(transactional_id=name)
        if old is not None:
            # one of these calls must raise; readers never see the record
            with contextlib.suppress(ProducerFencedError, TransactionAbortedError):
                if name not in self.pending:
                    old.begin_transaction()
                old.send("t", partition=0, value=b"fenced")
                old.send_offsets(f"{GROUP}-{name}", {TopicPartition("t", 1): 0})
                old.commit_transaction()
            old.close()
        self.pending.pop(name, None)

    @precondition(lambda self: bool(set(self.producers) - set(self.pending)))
    @rule(data=st.data())
    def begin_transaction(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(set(self.producers) - set(self.pending))))
        self.producers[name].begin_transaction()
        self.pending[name] = ([], None)

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), partition=PARTITIONS, count=st.integers(1, 3))
    def send(self, data: st.DataObject, partition: int, count: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.pending)))
        for _ in range(count):
            self.number += 1
            value = b"%d" % self.number
            self.producers[name].send("t", partition=partition, value=value)
            self.pending[name][0].append((partition, value))

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), offset=st.integers(0, 1000))
    def send_offsets(self, data: st.DataObject, offset: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.pending)))
        self.producers[name].send_offsets(f"{GROUP}-{name}", {TopicPartition("t", 0): offset})
        self.pending[name] = (self.pending[name][0], offset)

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), commit=st.booleans())
    def end(self, data: st.DataObject, *, commit: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.pending)))
        producer = self.producers[name]
        (producer.commit_transaction if commit else producer.abort_transaction)()
        values, offset = self.pending.pop(name)
        if commit:
            for partition, value in values:
                self.visible[partition].add(value)
            if offset is not None:
                self.offsets[f"{GROUP}-{name}"] = offset

    @initialize()
    def no_offsets(self) -> None:
        self.offsets: dict[str, int] = {}

    @rule(partition=PARTITIONS)
    def send_plainly(self, partition: int) -> None:
        self.number += 1
        with self.engine.producer() as producer:
            producer.send("t", partition=partition, value=b"%d" % self.number)
        self.visible[partition].add(b"%d" % self.number)

    @rule(crash=st.booleans())
    def restart(self, *, crash: bool) -> None:
        """Close and open the engine, or, for a crash, open a copy of its directory in its present state."""
        before = self.root / str(self.opened)
        self.opened += 1
        after = self.root / str(self.opened)
        if crash:
            for producer in self.producers.values():
                producer.flush()
            shutil.copytree(before, after, ignore=shutil.ignore_patterns(LOCK_FILE))
            self.engine.close()
        else:
            self.engine.close()
            before.rename(after)
        shutil.rmtree(before, ignore_errors=True)
        self.producers.clear()
        self.pending.clear()
        self.engine = open_engine(after)

    @rule()
    def everything_is_seen(self) -> None:
        """Check that a consumer reads each committed record once, if no transaction is open."""
        if self.pending:
            return
        with self.engine.consumer(topics=["t"], isolation="read_committed", auto_offset_reset="earliest") as consumer:
            read_values: list[list[bytes]] = [[], []]
            for name, record in consumer:
                read_values[name.partition].append(record.value or b"")
            assert [sorted(values) for values in read_values] == [sorted(values) for values in self.visible]
            assert set(consumer.lag().values()) == {0}

    @invariant()
    def nothing_else_is_seen(self) -> None:
        if not hasattr(self, "engine"):
            return
        for partition, visible in enumerate(self.visible):
            values = [record.value for record in self.engine.log("t", partition).records(isolation="read_committed")]
            assert len(values) == len(set(values))
            assert set(values) <= visible

    @invariant()
    def offsets_are_those_that_were_committed(self) -> None:
        for group in (f"{GROUP}-a", f"{GROUP}-b") if hasattr(self, "engine") else ():
            with self.engine.consumer(topics=["t"], group=group) as consumer:
                expected = (
                    {TopicPartition("t", 0): CommittedOffset(self.offsets[group])} if group in self.offsets else {}
                )
                assert consumer.committed() == expected

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close()
        shutil.rmtree(self.root)


TestClients = pytest.mark.long(Clients.TestCase)
TestClients.settings = settings(
    max_examples=10, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
