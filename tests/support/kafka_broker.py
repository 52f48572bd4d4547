"""A real Kafka broker on loopback, and clients (librdkafka) that write to it and read from it."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kafka_tools import KafkaTools
from ports import free_ports
from stratalog import Record, TimestampType
from stratalog.env.clock import SystemClock
from stratalog.model.names import LEADER_EPOCHS_FILE, PARTITION_METADATA_FILE, parse_segment_file

CLUSTER_ID: Final = "c3RyYXRhbG9nLW9yYWNsZQ"  # any 16 bytes in Kafka's base64
START_SECONDS: Final = 120
STOP_SECONDS: Final = 60
CLIENT_SECONDS: Final = 30
DUTY_SECONDS: Final = 60
_STARTED: Final = re.compile(r"Kafka Server started|\[KafkaServer id=1\] started")
# Errors of all code that keeps or reads files, and warnings of the code that handles the files themselves. Warnings of
# coordinators and of the replica manager are about time (a late heartbeat, a slow flush), which depends on the machine.
_REMARK: Final = re.compile(
    r"\] (WARN (kafka\.log|org\.apache\.kafka\.(storage|server\.log))|"
    r"ERROR (kafka\.(log|cluster|coordinator|server\.ReplicaManager)|"
    r"org\.apache\.kafka\.(storage|coordinator|server\.(log|common))))"
)
_ANSWERED: Final = "Error processing append operation"  # harmless: the client also gets the error
# harmless: the broker's stop interrupted a coordinator
_INTERRUPTED: Final = ("Stopped loading records from", "EventProcessor is closed")
SYSLOG_ERROR: Final = 3  # librdkafka also logs retries while a broker starts


class KafkaBroker:
    """A broker and controller in one process, with its log directory in ``folder / "logs"``.

    It is a context manager: entering formats the directory and starts the broker, leaving stops it. The broker can be
    stopped and started in between. It then continues with the contents of the log directory.

    Args:
        tools: Kafka's jars.
        folder: an empty folder.
        settings: additional settings for the properties file.
    """

    def __init__(self, tools: KafkaTools, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.tools = tools
        self.log_dir = folder / "logs"
        self._folder = folder
        self._output = folder / "broker.out"
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._new_archive: Path | None = None
        port, self._second_port = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self._settings = {
            **self._cluster(),
            "log.dirs": str(self.log_dir),
            "log.retention.ms": "-1",
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            **(settings or {}),
        }

    def _cluster(self) -> dict[str, str]:
        """Return the settings of a cluster with one broker, for the Kafka versions that use KRaft."""
        controller = f"127.0.0.1:{self._second_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
        }

    def __enter__(self) -> Self:
        properties = self._folder / "server.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in self._settings.items()))
        self._prepare(properties)
        self.start()
        return self

    def _prepare(self, properties: Path) -> None:
        """Format the log directory before the first start."""
        result = self.tools.run(
            "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties), folder=self._folder
        )
        assert not result.returncode, result.stdout

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the broker, and return when it reports its start; fail with its output if it does not start."""
        assert self._process is None
        command = self.tools.command("kafka.Kafka", str(self._folder / "server.properties"))
        if not self.tools.class_archive.exists():
            self._new_archive = self.tools.class_archive.with_suffix(f".{uuid.uuid4().hex}")
            command.insert(1, f"-XX:ArchiveClassesAtExit={self._new_archive}")
        started, ended = threading.Event(), threading.Event()
        self._process = subprocess.Popen(
            command, cwd=self._folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._follow, args=(self._process, started, ended), name="broker-output")
        self._reader.start()
        if not started.wait(START_SECONDS) or ended.is_set():
            self._kill()
            raise AssertionError(f"the broker did not start:\n{self._output.read_text()[-5000:]}")

    def _follow(self, process: subprocess.Popen[str], started: threading.Event, ended: threading.Event) -> None:
        assert process.stdout is not None
        with process.stdout, self._output.open("a") as copy:
            for line in process.stdout:
                copy.write(line)
                if _STARTED.search(line):
                    started.set()
            if not started.is_set():
                ended.set()
                started.set()

    def stop(self) -> None:
        """Stop the broker cleanly; its log directory is complete afterwards. Do nothing if it is not running."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        finally:
            self._kill()
        if self._new_archive is not None and self._new_archive.exists():
            self._new_archive.replace(self.tools.class_archive)  # other brokers see only a complete archive

    def kill(self) -> None:
        """Kill the broker as a crash does: files stay as they are, without a clean shutdown marker."""
        self._kill()

    def remarks(self) -> list[str]:
        """Return the warnings and errors about files since the first start."""
        lines = self._output.read_text().splitlines()
        return [
            line
            for line in lines
            if _REMARK.search(line) and not any(harmless in line for harmless in (_ANSWERED, *_INTERRUPTED))
        ]

    def _kill(self) -> None:
        assert self._process is not None
        assert self._reader is not None
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._process = self._reader = None

    def create_topics(
        self, topics: Mapping[str, int], configs: Mapping[str, Mapping[str, object]] | None = None
    ) -> None:
        """Create topics with these numbers of partitions and without time retention; ``configs`` adds settings."""
        topic_configs = {
            name: {key: str(value) for key, value in config.items()} for name, config in (configs or {}).items()
        }
        new = [
            NewTopic(name, count, 1, config={"retention.ms": "-1", **topic_configs.get(name, {})})
            for name, count in topics.items()
        ]
        admin = self._admin()
        for future in admin.create_topics(new).values():
            future.result()

    @property
    def pid(self) -> int:
        """Return the id of the running process."""
        assert self._process is not None
        return self._process.pid

    def await_state(self, is_reached: Callable[[Path], bool], what: str) -> None:
        """Wait until ``is_reached`` returns True for the log directory; fail after a minute."""
        clock = SystemClock()
        end_ns = clock.monotonic_ns() + DUTY_SECONDS * 1_000_000_000
        while not is_reached(self.log_dir):
            assert clock.monotonic_ns() < end_ns, f"not {what}; {self.remarks()[-3:]}"
            clock.sleep_ms(50)

    def take_over(self, source: Path, name: str = "") -> None:
        """Replace the segment files and leader epochs of a log of this stopped broker by the files in ``source``.

        ``name`` is the broker's folder of the log. By default, it is the folder name of ``source``.
        """
        assert self._process is None
        target = self.log_dir / (name or source.name)
        for file in target.iterdir():
            if file.name != PARTITION_METADATA_FILE:  # the topic id belongs to the broker's cluster
                file.unlink()
        for file in source.iterdir():
            if parse_segment_file(file.name) or file.name == LEADER_EPOCHS_FILE:
                shutil.copy(file, target)

    def produce(self, topics: Iterable[str], records: Sequence[Record]) -> None:
        """Produce the records to partition 0 of each topic with an idempotent producer. Wait until all are stored."""
        producer = Producer({**self._client(), "enable.idempotence": True})
        for topic in topics:
            _send(producer, topic, records)
        assert producer.flush(CLIENT_SECONDS) == 0

    def produce_transactions(
        self,
        topic: str,
        transactions: Sequence[tuple[Sequence[Record], bool]],
        transactional_id: str = "oracle",
    ) -> None:
        """Produce to partition 0, one transaction for each pair of records and True for commit, False for abort."""
        producer = Producer({**self._client(), "transactional.id": transactional_id})
        producer.init_transactions(CLIENT_SECONDS)
        for records, is_committed in transactions:
            producer.begin_transaction()
            _send(producer, topic, records)
            assert producer.flush(CLIENT_SECONDS) == 0  # an abort would otherwise remove unsent records
            (producer.commit_transaction if is_committed else producer.abort_transaction)(CLIENT_SECONDS)

    def producer(self, **settings: str | bool) -> Producer:
        """Return a client that survives a restart of the broker: the address stays the same."""
        return Producer({**self._client(), **settings})

    def begin(self, topic: str, records: Sequence[Record], transactional_id: str) -> Producer:
        """Produce to partition 0 in a transaction, leave it open, and return the producer."""
        producer = self.producer(**{"transactional.id": transactional_id})
        producer.init_transactions(CLIENT_SECONDS)
        producer.begin_transaction()
        self.send(producer, topic, records)
        return producer

    @staticmethod
    def send(producer: Producer, topic: str, records: Sequence[Record]) -> None:
        """Produce to partition 0, and wait until all records are acknowledged."""
        _send(producer, topic, records)
        assert producer.flush(CLIENT_SECONDS) == 0

    def delete_records(self, topic: str, share: float) -> int:
        """Delete records of partition 0 and return the new log start.

        ``share`` is the place of the new log start between the old log start (0) and the log end (1).
        """
        name = TopicPartition(topic, 0)
        settings = {**self._client(), "group.id": "oracle", "isolation.level": "read_uncommitted"}
        with closing(Consumer(settings)) as consumer:
            start, end = consumer.get_watermark_offsets(name, CLIENT_SECONDS)
        name.offset = start + int((end - start) * share)
        admin = self._admin()
        (future,) = admin.delete_records([name]).values()
        return int(future.result(CLIENT_SECONDS).low_watermark)

    def commit(self, group: str, topic: str, offset: int) -> None:
        """Commit an offset of partition 0, without metadata."""
        with closing(Consumer({**self._client(), "group.id": group})) as consumer:
            for committed_offset in (
                consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False) or ()
            ):
                assert committed_offset.error is None

    def committed(self, group: str, topic: str) -> tuple[int, str | None]:
        """Return the group's committed offset of partition 0 (negative if there is none) and its metadata."""
        with closing(Consumer({**self._client(), "group.id": group})) as consumer:
            (committed_offset,) = consumer.committed([TopicPartition(topic, 0)], CLIENT_SECONDS)
            assert committed_offset.error is None
            return committed_offset.offset, committed_offset.metadata

    def read(self, topics: Iterable[str], *, isolation: str = "read_uncommitted") -> dict[str, list[Record]]:
        """Return all records of partition 0 of each topic, as librdkafka reads them. It checks the CRCs."""
        settings: dict[str, str | int | float | bool | None] = {
            **self._client(),
            "group.id": "oracle",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 50,  # of the last, empty fetch
        }
        records: dict[str, list[Record]] = {topic: [] for topic in topics}
        unfinished = set(records)
        with closing(Consumer(settings)) as consumer:
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in records])
            while unfinished:
                message = consumer.poll(CLIENT_SECONDS)
                assert message is not None, f"no more records, and no end of {unfinished}"
                topic, error = message.topic(), message.error()
                assert topic is not None
                if error is None:
                    records[topic].append(_to_record(message))
                elif error.name() == "_PARTITION_EOF":
                    unfinished.discard(topic)
                else:
                    raise KafkaException(error)
        return records

    def _admin(self) -> AdminClient:
        """Return a client that knows the controller. The caller must keep it until its futures are done.

        A broker that has just started may know neither a controller nor itself. If the first metadata of a client lacks
        the controller, librdkafka 2.16 does not request it later, and requests time out. Each attempt therefore uses a
        new client.
        """
        clock = SystemClock()
        end_ns = clock.monotonic_ns() + CLIENT_SECONDS * 1_000_000_000
        while True:
            admin = AdminClient(self._client())
            try:
                if admin.list_topics(timeout=CLIENT_SECONDS).controller_id >= 0:
                    return admin
            except KafkaException as error:
                if error.args[0].name() != "_PARTIAL":
                    raise
            assert clock.monotonic_ns() < end_ns, f"no controller; {self.remarks()[-3:]}"
            clock.sleep_ms(50)

    def _client(self) -> dict[str, str | int | float | bool]:
        return {"bootstrap.servers": self.address, "log_level": SYSLOG_ERROR}


def _send(producer: Producer, topic: str, records: Iterable[Record]) -> None:
    for record in records:
        producer.produce(
            topic,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
            partition=0,
            timestamp=record.timestamp_ms,
            on_delivery=_check_delivered,
        )


def _check_delivered(error: KafkaError | None, _message: Message) -> None:
    if error is not None:
        raise KafkaException(error)  # out of flush()


def _to_record(message: Message) -> Record:
    offset, partition = message.offset(), message.partition()
    assert offset is not None
    assert partition is not None
    kind, timestamp_ms = message.timestamp()
    stamp = {1: TimestampType.CREATE_TIME, 2: TimestampType.LOG_APPEND_TIME}.get(kind, TimestampType.NONE)
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    return Record(
        offset=offset,
        timestamp_ms=-1 if stamp is TimestampType.NONE else timestamp_ms,
        timestamp_type=stamp,
        key=_bytes(message.key()),
        value=_bytes(message.value()),
        headers=tuple((name, _bytes(value)) for name, value in pairs),
        partition=partition,
    )


def _bytes(value: object) -> bytes | None:
    assert value is None or isinstance(value, bytes)
    return value
