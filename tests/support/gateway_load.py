"""Load of idempotent and transactional clients (librdkafka) on a gateway that is killed and started again."""

from __future__ import annotations

import contextlib
import operator
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import Consumer, KafkaException, Producer

PLAIN, DONE, WHOLE = "plain", "done", "whole"
GROUP: Final = "workers"
PARTITIONS: Final = 2
TOGETHER: Final = 5  # records of one transaction in ``whole``
PATIENCE_S: Final = 60
_PAUSE_S: Final = 0.01


class Killable:
    """``stratalog serve`` in its own process. Each start uses the same port. It is a context manager."""

    def __init__(self, directory: Path, port: int) -> None:
        self.bootstrap = f"127.0.0.1:{port}"
        self._command = [sys.executable, "-m", "stratalog", "serve", str(directory), "--listen", self.bootstrap]
        self._running: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process, and wait until it accepts connections."""
        self._running = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._running.stdout is not None
        assert self._running.stdout.readline().strip() == self.bootstrap

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._end(subprocess.Popen.kill)

    def stop(self) -> None:
        """Stop the process with SIGTERM."""
        self._end(subprocess.Popen.terminate)

    def _end(self, end: Callable[[subprocess.Popen[str]], None]) -> None:
        running, self._running = self._running, None
        if running is not None:
            with running:
                end(running)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Load:
    """Three clients, each in its own thread.

    One client appends to the topic ``plain``, one writes transactions to ``whole``, and one (the worker) copies
    ``plain`` to ``done`` in transactions.

    Attributes:
        acknowledged: values of ``plain`` whose append was acknowledged.
        committed: numbers of the transactions in ``whole`` whose commit was acknowledged.
        aborted: numbers of the transactions in ``whole`` whose abort was acknowledged.
        worked: number of commits of the worker.
        failures: number of records of ``whole`` that were not delivered, by the name of the error.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.acknowledged: list[bytes] = []
        self.committed: list[int] = []
        self.aborted: list[int] = []
        self.worked = 0
        self.failures: Counter[str] = Counter()
        self._steps = threading.Condition()
        self._ends, self._produced = threading.Event(), threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(target,)) for target in (self._plain, self._whole, self._work)
        ]

    def start(self) -> None:
        """Start all clients."""
        for thread in self._threads:
            thread.start()

    def wait(self, steps: int) -> None:
        """Wait until each client has ended this many further transactions."""
        with self._steps:
            goals = [count + steps for count in self._ended()]
            is_reached = self._steps.wait_for(
                lambda: self._errors or all(map(operator.ge, self._ended(), goals)), PATIENCE_S
            )
            assert is_reached, f"{self._ended()} transactions have ended, not {goals}"
        self.check()

    def _ended(self) -> tuple[int, int]:
        return len(self.committed) + len(self.aborted), self.worked

    def finish(self) -> None:
        """Stop the producers, and wait until the worker has processed all records of ``plain``."""
        self._ends.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE_S)
            assert not thread.is_alive()
        self.check()

    def check(self) -> None:
        """Raise the first error of a client, if there is one."""
        if self._errors:
            raise self._errors[0]

    def _run(self, client: Callable[[], None]) -> None:
        try:
            client()
        except BaseException as error:  # noqa: BLE001 - raised by check
            with self._steps:
                self._errors.append(error)
                self._steps.notify_all()

    def _step(self) -> None:
        with self._steps:
            self._steps.notify_all()

    def _plain(self) -> None:
        """Append numbers to ``plain`` with an idempotent producer."""

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            self.acknowledged.append(message.value())

        producer, number = Producer({**self._common(), "enable.idempotence": True, "linger.ms": 1}), 0
        while not self._ends.is_set():
            producer.produce(PLAIN, value=b"%08d" % number, partition=number % PARTITIONS, on_delivery=delivered)
            number += 1
            producer.poll(_PAUSE_S)
        assert producer.flush(PATIENCE_S) == 0
        self._produced.set()

    def _whole(self) -> None:
        """Write transactions of several records to ``whole``; every fourth one is aborted."""
        number = 0
        while not self._ends.is_set():
            with self._transactional("whole") as producer:
                while not self._ends.is_set():
                    number += 1
                    producer.begin_transaction()
                    for index in range(TOGETHER):
                        value = b"%08d %d" % (number, index)
                        producer.produce(
                            WHOLE, value=value, partition=index % PARTITIONS, on_delivery=self._note_failure
                        )
                    assert producer.flush(PATIENCE_S) == 0
                    self._end_whole(producer, number)
                    self._step()

    def _end_whole(self, producer: Any, number: int) -> None:
        try:
            if number % 4:
                _persistent(producer.commit_transaction)
                self.committed.append(number)
                return
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        _persistent(producer.abort_transaction)
        self.aborted.append(number)

    def _note_failure(self, error: Any, message: Any) -> None:
        del message
        if error is not None:
            self.failures[error.name()] += 1

    def _work(self) -> None:
        """Read ``plain``, and write ``done`` and the offsets in one transaction, until all records are processed."""
        is_unfinished = True
        while is_unfinished:
            with (
                contextlib.suppress(_TryAgainError),
                self._transactional("worker") as producer,
                self._consumer() as consumer,
            ):
                while is_unfinished:
                    messages = [message for message in consumer.consume(20, 0.2) if message.error() is None]
                    if messages:
                        self._work_on(producer, consumer, messages)
                    is_unfinished = bool(messages) or not self._produced.is_set() or not _is_at_end(consumer)

    def _work_on(self, producer: Any, consumer: Any, messages: list[Any]) -> None:
        producer.begin_transaction()
        for message in messages:
            producer.produce(DONE, value=message.value(), partition=message.partition())
        try:
            places = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), PATIENCE_S)
            _persistent(producer.commit_transaction)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            _persistent(producer.abort_transaction)
            raise _TryAgainError from error  # the next consumer starts at the last committed offsets
        self.worked += 1
        self._step()

    @contextlib.contextmanager
    def _transactional(self, name: str) -> Iterator[Any]:
        producer = Producer({**self._common(), "transactional.id": name, "transaction.timeout.ms": 60_000})
        _persistent(producer.init_transactions)
        try:
            yield producer
        except KafkaException as error:
            if not error.args[0].fatal():
                raise

    @contextlib.contextmanager
    def _consumer(self) -> Iterator[Any]:
        consumer = Consumer(
            {
                **self._common(), "group.id": GROUP, "isolation.level": "read_committed", "enable.auto.commit": False,
                "auto.offset.reset": "earliest", "fetch.wait.max.ms": 20, "session.timeout.ms": 10_000,
            }
        )  # fmt: skip
        consumer.subscribe([PLAIN])
        try:
            yield consumer
        finally:
            consumer.close()

    def _common(self) -> dict[str, Any]:
        """Return the settings of all clients.

        If all brokers are unavailable, librdkafka 2.16 forgets them and connects to the bootstrap servers again. A call
        that sends offsets to a transaction would then wait for a forgotten broker until its timeout.
        """
        return {
            "bootstrap.servers": self._bootstrap, "metadata.recovery.strategy": "none", "retry.backoff.ms": 20,
            "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "log_level": 0,
        }  # fmt: skip


class _TryAgainError(Exception):
    """A transaction was aborted. The caller must continue with new clients."""


def _persistent(call: Callable[[float], None]) -> None:
    """Repeat a call of a transactional producer while its error is retriable."""
    for _ in range(20):
        try:
            call(PATIENCE_S)
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return
    raise AssertionError("a retriable error never passes")


def _is_at_end(consumer: Any) -> bool:
    """Return True if the group has committed the end of each partition."""
    assigned = consumer.assignment()
    committed = consumer.committed(assigned, PATIENCE_S) if len(assigned) == PARTITIONS else []
    return bool(committed) and all(
        position.offset == consumer.get_watermark_offsets(position, PATIENCE_S)[1] for position in committed
    )
