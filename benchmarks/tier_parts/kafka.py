"""A tier compared with Kafka's LocalTieredStorage: a real broker with the same segments.

LocalTieredStorage is Kafka's remote storage for tests. It copies files to a folder and does not sync them. The time of
an offload is measured from outside: from the change of the topic's settings until all segments are in the folder. A
Java consumer measures reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness import (
    GATEWAY,
    KAFKA,
    Bound,
    Case,
    CpuBound,
    JavaMissingError,
    LocalSide,
    Options,
    Plan,
    PreparedSide,
    Sample,
    Side,
    WrongOutcomeError,
    find_support,
    java_worker,
    process_cpu_s,
)
from stratalog import open_reader
from stratalog.env import Env
from tier_parts.consumer import ConsumerSide, serving
from tier_parts.logs import REMOTE, LocalLog, Store, engine_on, make_log, offload
from tier_parts.server import loopback_s3

if TYPE_CHECKING:
    from kafka_broker import KafkaBroker

OFFLOAD: Final = "tier/kafka/offload"
SMALL: Final = "tier/kafka/small"
READ: Final = "tier/kafka/read"
CONSUME: Final = "tier/kafka/consume"
ON_S3: Final = f"{GATEWAY}, tier on S3"
IN_A_FOLDER: Final = f"{GATEWAY}, tier in a folder"
_OURS: Final = "stratalog"
_POM: Final = Path(__file__).resolve().parent.parent / "java" / "tiered.xml"
_TITLES: Final = {
    OFFLOAD: "offload to a folder",
    SMALL: "offload of segments of 1 MB to a folder",
    READ: "records read from a tier in a folder",
    CONSUME: "records that a Java consumer gets from a tier, through the gateway",
}
_AT_LEAST: Final = {OFFLOAD: 2.0, SMALL: 3.0, READ: 2.0}
# share of the broker's processor time; not of wall time, which is mostly that of the consumer
_CONSUME_SHARE: Final = 1 / 3
_MIB: Final = 1 << 20
_MOST_ROUNDS: Final = 5
_MOST_S: Final = 120.0
_LOOK_MS: Final = 5
_ERRORS: Final = 3  # syslog level of errors
_COPIED: Final = {"remote.storage.enable": "true"}
_EVICTED: Final = {"local.retention.ms": "1"}
_SETTINGS: Final = {
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "100",
    "log.segment.delete.delay.ms": "100",
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
    "remote.log.storage.manager.impl.prefix": "rsm.config.",
    "rsm.config.delete.on.close": "false",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
    "remote.log.manager.task.interval.ms": "10",
}


KAFKA_CASES: Final = tuple(_TITLES)


def kafka_bounds() -> list[Bound | CpuBound]:
    """Return the bounds: the required speed and processor time of stratalog, relative to Kafka."""
    wall_bounds = [Bound(_TITLES[case], case, _OURS, KAFKA, at_least) for case, at_least in _AT_LEAST.items()]
    consume_bounds = [CpuBound(_TITLES[CONSUME], CONSUME, side, KAFKA, _CONSUME_SHARE) for side in (ON_S3, IN_A_FOLDER)]
    return [*wall_bounds, *consume_bounds]


def kafka_plan(case: str, plan: Plan) -> Plan:
    """Return the plan of a case.

    A broker copies each topic only once, so a sample of an offload is one call, and there are few samples.
    """
    rounds = min(_MOST_ROUNDS, plan.rounds)
    return Plan(rounds, 0, 0) if case in {OFFLOAD, SMALL} else Plan(rounds, plan.sample_s, plan.warm_up_s)


def kafka_cases(scratch: Path, options: Options, stack: ExitStack) -> Iterator[Case]:
    """Yield the selected cases.

    Raises:
        JavaMissingError: Kafka is missing here.
    """
    scratch.mkdir()
    names, quick = [name for name in _TITLES if options.wants(name)], options.quick
    size_bytes = 4 * _MIB if quick else 128 * _MIB
    (scratch / "bucket").mkdir()
    store = Store((scratch / "bucket").as_uri(), {})
    logs = {
        name: make_log(
            scratch / name.rpartition("/")[2], store, size_bytes, _MIB if name == SMALL or quick else 32 * _MIB
        )
        for name in names
    }
    broker = stack.enter_context(_tiered_broker(scratch, logs, min(_MOST_ROUNDS, options.plan.rounds) + 2))
    for name in names:
        if name in {OFFLOAD, SMALL}:
            sides = _offloading(broker, name, logs[name], scratch)
        else:
            sides = (_reading if name == READ else _consuming)(broker, logs[name], scratch, stack)
        yield Case(
            name,
            f"{_TITLES[name]}; {logs[name].size_bytes >> 20} MiB",
            sides,
            logs[name].records,
            logs[name].size_bytes,
        )


@dataclass(frozen=True, slots=True)
class _Tiered:
    """A broker whose topics have logs written by stratalog, which it has not copied to its remote storage yet.

    Attributes:
        broker: the running broker.
        remote: the folder of its remote storage.
        topics: the unused topics of each case; each topic serves one measurement.
    """

    broker: KafkaBroker
    remote: Path
    topics: Mapping[str, Iterator[str]]

    def copy(self, topic: str, local_log: LocalLog) -> Sample:
        """Make the broker copy a topic, wait until all its segments are in the remote storage, and return the time."""
        expected_segments = sum(1 for file in local_log.files if file.suffix == ".log")
        cpu_s, wall_s = self.cpu_s(), time.perf_counter()
        self.alter(topic, _COPIED)
        deadline = time.perf_counter() + _MOST_S
        while (arrived := self._remote_sizes(topic)) != (expected_segments, local_log.size_bytes):
            if time.perf_counter() > deadline:
                raise WrongOutcomeError(
                    f"{KAFKA}: {arrived} of {expected_segments} segments of {topic} are in its remote storage"
                )
            Env().clock.sleep_ms(_LOOK_MS)
        return Sample(time.perf_counter() - wall_s, self.cpu_s() - cpu_s)

    def evict(self, topic: str) -> None:
        """Make the broker delete the copied segments of a topic from its local disk, and wait for the deletion."""
        self.alter(topic, _EVICTED)
        deadline = time.perf_counter() + _MOST_S
        while len(list((self.broker.log_dir / f"{topic}-0").glob("*.log"))) > 1:
            if time.perf_counter() > deadline:
                raise WrongOutcomeError(f"{KAFKA}: {topic} stays on local disk")
            Env().clock.sleep_ms(_LOOK_MS)

    def alter(self, topic: str, config: Mapping[str, str]) -> None:
        """Change settings of a topic."""
        from confluent_kafka import admin  # noqa: PLC0415 - not everybody has it

        untyped_admin: Any = admin  # Any, because the type stubs of the package are incomplete
        entries = [
            untyped_admin.ConfigEntry(name, value, incremental_operation=untyped_admin.AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = untyped_admin.ConfigResource(
            untyped_admin.ConfigResource.Type.TOPIC, topic, incremental_configs=entries
        )
        client = untyped_admin.AdminClient({"bootstrap.servers": self.broker.address, "log_level": _ERRORS})
        for future in client.incremental_alter_configs([resource]).values():
            future.result()

    def cpu_s(self) -> float:
        """Return the processor seconds of the broker so far."""
        return process_cpu_s(self.broker.pid)

    def _remote_sizes(self, topic: str) -> tuple[int, int]:
        sizes = [file.stat().st_size for file in self.remote.glob(f"{topic}-0-*/*.log")]
        return len(sizes), sum(sizes)


@contextmanager
def _tiered_broker(scratch: Path, logs: Mapping[str, LocalLog], topics: int) -> Iterator[_Tiered]:
    """Yield a broker whose topics have copies of the given logs.

    The broker creates its topics, stops, gets the copies in place of its own logs, and starts again.
    """
    find_support()
    try:
        from kafka_broker import KafkaBroker  # noqa: PLC0415 - found in the checkout alone, and needs a client
        from kafka_tools import KafkaTools, OracleMissingError  # noqa: PLC0415 - the same
    except ImportError as error:
        raise JavaMissingError(f"{KAFKA}: {error}") from error

    class Server(KafkaTools):
        """Starts a broker with all of the JVM's compilers. The broker of the tests starts faster, but runs slower."""

        def command(self, main: str, *arguments: str) -> list[str]:
            slow = {"-XX:TieredStopAtLevel=1", "-Xmx512m", "-XX:+UseSerialGC"}
            return [self.java, "-Xmx1g", *(word for word in super().command(main, *arguments)[1:] if word not in slow)]

    try:
        tools = Server.find(_POM)
    except OracleMissingError as error:
        raise JavaMissingError(f"{KAFKA}: {error}") from error
    folder = scratch / "broker"
    folder.mkdir()
    tiered = {**_SETTINGS, "rsm.config.dir": str(folder / "remote")}
    names = {case: [f"{case.rpartition('/')[2]}{number}" for number in range(topics)] for case in logs}
    all_topics = [topic for case_topics in names.values() for topic in case_topics]
    with KafkaBroker(tools, folder) as broker:
        broker.create_topics(dict.fromkeys(all_topics, 1), {topic: {"segment.bytes": _MIB} for topic in all_topics})
        broker.stop()
        for case, case_topics in names.items():
            for topic in case_topics:
                broker.take_over(logs[case].folder / f"{REMOTE}-0", f"{topic}-0")
        with (folder / "server.properties").open("a", encoding="utf-8") as properties:
            properties.writelines(f"{name}={value}\n" for name, value in tiered.items())
        broker.start()
        try:
            remote = folder / "remote" / "kafka-tiered-storage"
            yield _Tiered(broker, remote, {case: iter(case_topics) for case, case_topics in names.items()})
        finally:
            broker.kill()  # its data is not needed any more, and an orderly stop takes long


class _KafkaOffload(Side):
    """The side of the broker: it copies one topic in each call."""

    def __init__(self, broker: _Tiered, case: str, local_log: LocalLog) -> None:
        self.name, self._broker, self._case, self._local_log = KAFKA, broker, case, local_log

    def check(self) -> None:
        """Copy one topic; fail if not all segments arrive."""
        self.sample(1)

    def sample(self, calls: int) -> Sample:
        """Copy one topic for each call, and return the wall time and the broker's processor time."""
        samples = [self._broker.copy(next(self._broker.topics[self._case]), self._local_log) for _ in range(calls)]
        return Sample(
            sum(topic_sample.wall_s for topic_sample in samples), sum(topic_sample.cpu_s for topic_sample in samples)
        )


def _offloading(broker: _Tiered, case: str, local_log: LocalLog, scratch: Path) -> list[Side]:
    numbers = count()

    @contextmanager
    def engines(calls: int) -> Iterator[Callable[[], object]]:
        with ExitStack() as stack:
            open_engines = []
            for _ in range(calls):
                bucket = scratch / f"bucket-{local_log.folder.name}-{next(numbers)}"
                bucket.mkdir()
                folder = stack.enter_context(local_log.copy(scratch / f"copy-{bucket.name}"))
                open_engines.append(stack.enter_context(engine_on(folder, Store(bucket.as_uri(), {}))))
            yield lambda: open_engines.pop().offload()

    def check() -> None:
        with engines(1) as call:
            results: Any = call()
        if sum(result.size_bytes for result in results) != local_log.size_bytes:
            raise WrongOutcomeError(f"{_OURS}: {results} of {local_log.size_bytes} bytes")

    return [PreparedSide(_OURS, engines, check), _KafkaOffload(broker, case, local_log)]


def _reading(broker: _Tiered, local_log: LocalLog, scratch: Path, stack: ExitStack) -> list[Side]:
    """Return the sides that read a log of which only the active segment is on local disk.

    Each call of stratalog opens a new reader. Kafka's broker runs all the time.
    """
    store = Store((scratch / "bucket").as_uri(), {})
    consumer = _consumer(broker, READ, local_log, scratch, stack)
    offload(local_log, store)

    def read() -> int:
        with open_reader(store.uri) as reader:
            return sum(columns.count for columns in reader.log(REMOTE, 0).columns())

    def check() -> None:
        if (record_count := read()) != local_log.records:
            raise WrongOutcomeError(f"{_OURS}: {record_count} records of {local_log.records}")

    return [LocalSide(_OURS, read, check), consumer]


def _consuming(broker: _Tiered, local_log: LocalLog, scratch: Path, stack: ExitStack) -> list[Side]:
    """Return the sides of three servers, which the same consumer reads from; the servers' processor time counts.

    Kafka's remote storage is in a folder. The gateway's tier is on S3 for one side, and in a folder for another.
    """
    consumer = _consumer(broker, CONSUME, local_log, scratch, stack)
    server = stack.enter_context(loopback_s3())
    (scratch / "consumed").mkdir()
    stores = {
        ON_S3: Store(server.uri("consumed"), server.options),
        IN_A_FOLDER: Store((scratch / "consumed").as_uri(), {}),
    }
    sides: list[Side] = []
    for number, (name, store) in enumerate(stores.items()):
        folder = stack.enter_context(local_log.copy(scratch / f"served-{number}"))
        offload(replace(local_log, folder=folder), store)
        gateway_server = stack.enter_context(serving(folder, store))
        sides.append(consumer.for_server(name, f"127.0.0.1:{gateway_server.port}", REMOTE, gateway_server.cpu_s))
    return [*sides, consumer]


def _consumer(broker: _Tiered, case: str, local_log: LocalLog, scratch: Path, stack: ExitStack) -> ConsumerSide:
    """Return the broker's side for a topic whose closed segments are in the remote storage only."""
    topic = next(broker.topics[case])
    broker.copy(topic, local_log)
    broker.evict(topic)
    worker = stack.enter_context(java_worker("TierConsumer", scratch, heap="1g", pom=_POM))
    address, with_consumer = broker.broker.address, case == READ
    return ConsumerSide(
        KAFKA, address, topic, broker.cpu_s, local_log.records, worker, scratch, with_consumer=with_consumer
    )
