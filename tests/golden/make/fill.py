"""Fill a running Kafka broker with topics in its storage formats, and store the records that a client reads back.

    python fill.py ADDRESS SEED COMMAND

``run.sh`` and ``tiered.sh`` define the order of commands. The seed determines the records, but not how the client
puts them into batches, so the files differ in every run.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

START_MS: Final = 1_700_000_000_000
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
WORDS: Final = (b"alpha", b"beta", b"gamma", b"delta", b"order", b"click", b"page", b"view")
WAIT_SECONDS: Final = 30
SETTLE_SECONDS: Final = 0.5  # time until a changed setting is effective in every partition
TIERED: Final = {"remote.storage.enable": "true", "local.retention.bytes": 1, "index.interval.bytes": 300}


@dataclass(frozen=True)
class Shape:
    """The form of the records.

    Attributes:
        start_ms: timestamp of the first record.
        step_ms: difference of the timestamps of two records.
        keys: number of different keys, chosen at random; with 0, each record has its own key or none.
        jitter_ms: largest random deviation of a timestamp.
        headers: True if half of the records may have headers.
    """

    start_ms: int = START_MS
    step_ms: int = 1000
    keys: int = 0
    jitter_ms: int = 0
    headers: bool = True


class Filler:
    """Fills one broker with random records; the seed determines their content."""

    def __init__(self, address: str, seed: int) -> None:
        self.address = address
        self.chance = random.Random(seed)  # noqa: S311 - the same seed shall make the same records

    @cached_property
    def admin(self) -> AdminClient:
        """The admin client. It is kept, because its futures end with it."""
        return AdminClient({"bootstrap.servers": self.address})

    def create(self, topic: str, config: Mapping[str, object] | None = None, *, partitions: int = 1) -> None:
        """Create a topic."""
        settings = {name: str(value) for name, value in (config or {}).items()}
        for future in self.admin.create_topics([NewTopic(topic, partitions, 1, config=settings)]).values():
            future.result()
        pause(SETTLE_SECONDS)

    def alter(self, topic: str, config: Mapping[str, object]) -> None:
        """Change settings of a topic; its other settings stay."""
        entries = [
            ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET) for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        for future in self.admin.incremental_alter_configs([resource]).values():
            future.result()
        pause(SETTLE_SECONDS)

    def producer(self, **settings: str | float | bool) -> Producer:
        """Return a producer whose batches have at most 50 records, unless the settings override this."""
        client_settings = {name.replace("_", "."): value for name, value in settings.items()}
        return Producer(
            {"bootstrap.servers": self.address, "linger.ms": 5, "batch.num.messages": 50, **client_settings}
        )

    def small(self, **settings: str | float | bool) -> Producer:
        """Return a producer of small batches of at most 6 records, so that sparse indexes have entries."""
        return self.producer(batch_num_messages=6, **settings)

    def send(
        self, producer: Producer, topic: str, count: int, shape: Shape | None = None, *, partition: int = 0
    ) -> None:
        """Send ``count`` records, with a flush after every 37 records, so that there are many batches."""
        shape, chance = shape or Shape(), self.chance
        for number in range(count):
            jitter = chance.randrange(-shape.jitter_ms, shape.jitter_ms + 1) if shape.jitter_ms else 0
            producer.produce(
                topic,
                key=self._key(number, shape),
                value=None if chance.random() < 0.1 else self.words(chance.randrange(40)) + chance.randbytes(9),
                headers=self._headers() if shape.headers and chance.random() < 0.5 else [],
                partition=partition,
                timestamp=shape.start_ms + number * shape.step_ms + jitter,
            )
            if number % 37 == 36:
                producer.flush(WAIT_SECONDS)
        producer.flush(WAIT_SECONDS)

    def _key(self, number: int, shape: Shape) -> bytes | None:
        if shape.keys:
            return b"k%d" % self.chance.randrange(shape.keys)
        return None if self.chance.random() < 0.2 else b"key-%d" % number

    def _headers(self) -> list[tuple[str, str | bytes | None]]:
        chance = self.chance
        return [
            (f"h{number}", None if chance.random() < 0.3 else chance.randbytes(chance.randrange(12)))
            for number in range(chance.randrange(4))
        ]

    def words(self, count: int) -> bytes:
        """Return bytes that can be compressed."""
        return b" ".join(self.chance.choices(WORDS, k=count))

    def transactions(self, topic: str, count: int, name: str) -> None:
        """Write ``count`` pairs of interleaved transactions of two producers; some are aborted."""
        first = self.producer(transactional_id=f"{name}-a", compression_type="zstd")
        second = self.producer(transactional_id=f"{name}-b", compression_type="none")
        for producer in (first, second):
            producer.init_transactions()
        for number in range(count):
            first.begin_transaction()
            second.begin_transaction()
            for part in range(self.chance.randrange(1, 12)):
                stamp = START_MS + number * 1000 + part
                for producer, key, every in ((first, b"a", 3), (second, b"b", 4)):
                    value = b"tx-%s-%d-%d" % (key, number, part)
                    producer.produce(topic, key=key + b"%d" % number, value=value, partition=0, timestamp=stamp)
                    if part % every == 0:
                        producer.flush(WAIT_SECONDS)
            for producer in self.chance.sample((first, second), 2):
                if self.chance.random() < 0.4:
                    producer.abort_transaction(WAIT_SECONDS)
                else:
                    producer.commit_transaction(WAIT_SECONDS)

    def open_transaction(self, topic: str, name: str, count: int, start_ms: int) -> None:
        """Begin a transaction that stays open: the process must end without closing its producer."""
        producer = self.producer(transactional_id=name, transaction_timeout_ms=900_000)
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(count):
            value = b"pending-%d" % number
            producer.produce(topic, key=b"open", value=value, partition=0, timestamp=start_ms + number)
        producer.flush(WAIT_SECONDS)

    def commit_offsets(self, topic: str, group: str, count: int) -> None:
        """Read ``count`` records as a member of a group, and commit after every 20 records."""
        settings = {"bootstrap.servers": self.address, "group.id": group, "auto.offset.reset": "earliest"}
        with closing(Consumer({**settings, "enable.auto.commit": False})) as consumer:
            consumer.subscribe([topic])
            for number in range(1, count + 1):
                message = consumer.poll(WAIT_SECONDS)
                if message is None or message.error():
                    raise SystemExit(f"group {group} reads nothing")
                if number % 20 == 0:
                    consumer.commit(message=message, asynchronous=False)


# --- the broker that knows V2 alone ----------------------------------------------------------------------------------


def fill_kraft(filler: Filler) -> None:
    """Create topics with every codec, transactions, compaction, an increased log start, large batches and groups."""
    for codec in CODECS:
        filler.create(f"v2-{codec}", {"segment.ms": 120_000})
        producer = filler.producer(compression_type=codec, enable_idempotence=codec in {"none", "zstd"})
        filler.send(producer, f"v2-{codec}", 400, Shape(jitter_ms=300))
    filler.create("v2-mixed-codecs", {"segment.ms": 200_000})
    for number, codec in enumerate(CODECS):
        shape = Shape(START_MS + number * 90_000)
        filler.send(filler.producer(compression_type=codec), "v2-mixed-codecs", 60, shape)
    filler.create("v2-logappend", {"message.timestamp.type": "LogAppendTime"})
    for codec in ("none", "lz4"):
        filler.send(filler.producer(compression_type=codec), "v2-logappend", 80)
    filler.create("v2-recompressed", {"compression.type": "zstd"})
    filler.send(filler.producer(compression_type="gzip"), "v2-recompressed", 120)
    filler.create("txn", {"segment.ms": 8_000})
    filler.transactions("txn", 30, "t")
    filler.create("txn-open")
    filler.send(filler.producer(), "txn-open", 20)
    _fill_compacted(filler)
    filler.create("multi", {"segment.ms": 60_000}, partitions=4)
    for partition in range(4):
        filler.send(filler.producer(compression_type="snappy"), "multi", 100, partition=partition)
    filler.create("start-offset", {"segment.ms": 30_000})
    filler.send(filler.producer(), "start-offset", 200)
    delete_records(filler, "start-offset", 66)
    filler.create("big-values")
    big = filler.producer(compression_type="zstd")
    for number in range(3):
        value = filler.words(30_000 + number)
        big.produce("big-values", key=b"%d" % number, value=value, timestamp=START_MS + number, partition=0)
    big.flush(WAIT_SECONDS)
    filler.commit_offsets("multi", "group-a", 300)
    filler.commit_offsets("v2-zstd", "group-b", 300)


def _fill_compacted(filler: Filler) -> None:
    late = START_MS + 10_000_000
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}
    filler.create("compacted", {"segment.ms": 20_000, "delete.retention.ms": 86_400_000, **config})
    shape = Shape(step_ms=500, keys=40, headers=False)
    filler.send(filler.producer(compression_type="lz4"), "compacted", 600, shape)
    filler.send(filler.producer(), "compacted", 40, Shape(late, step_ms=500, keys=40))
    filler.create("compacted-txn", {"segment.ms": 8_000, **config})
    filler.transactions("compacted-txn", 20, "ct")
    filler.send(filler.producer(), "compacted-txn", 10, Shape(late, keys=5))


def delete_records(filler: Filler, topic: str, before: int) -> None:
    """Raise the log start offset to ``before``."""
    for future in filler.admin.delete_records([TopicPartition(topic, 0, before)]).values():
        future.result()


def after_restart(filler: Filler) -> None:
    """Write more batches, with a new leader epoch."""
    for topic in ("v2-none", "v2-zstd", "multi", "start-offset", "txn-open"):
        filler.send(filler.producer(compression_type="lz4"), topic, 15, Shape(START_MS + 1_000_000))


def leave_open(filler: Filler) -> None:
    """Leave a transaction open, with records of another producer after it, and exit."""
    filler.open_transaction("txn-open", "left-open", 5, START_MS + 2_000_000)
    filler.send(filler.producer(), "txn-open", 6, Shape(START_MS + 2_100_000))
    os._exit(0)


def crash(filler: Filler, broker: int) -> None:
    """Write, leave a transaction open, and kill the broker."""
    filler.create("crash", {"segment.ms": 60_000})
    filler.send(filler.producer(compression_type="lz4", enable_idempotence=True), "crash", 300)
    filler.open_transaction("crash", "crashed", 25, START_MS + 500_000)
    os.kill(broker, signal.SIGKILL)
    os._exit(0)


# --- the broker that still writes V0 and V1 --------------------------------------------------------------------------


def fill_zookeeper(filler: Filler) -> None:
    """Create topics of V0 and V1 with all their codecs, a log with all three versions, compaction and transactions."""
    for name, version in (("v0", "0.9.0"), ("v1", "0.10.2")):
        for codec in CODECS[:4]:
            filler.create(f"{name}-{codec}", {"message.format.version": version, "segment.bytes": 6000})
            shape = Shape(jitter_ms=300, headers=False)
            filler.send(filler.producer(compression_type=codec), f"{name}-{codec}", 150, shape)
    filler.create("v1-logappend", {"message.format.version": "0.10.2", "message.timestamp.type": "LogAppendTime"})
    for codec in ("none", "gzip"):
        filler.send(filler.producer(compression_type=codec), "v1-logappend", 60, Shape(headers=False))
    filler.create("upgraded", {"message.format.version": "0.9.0", "segment.bytes": 5000})
    for version, codec in (("0.9.0", "gzip"), ("0.10.2", "none"), ("0.10.2", "lz4"), ("2.8", "zstd"), ("2.8", "none")):
        filler.alter("upgraded", {"message.format.version": version})
        filler.send(filler.producer(compression_type=codec), "upgraded", 60, Shape(headers=version == "2.8"))
    for name, version in (("v0", "0.9.0"), ("v1", "0.10.2"), ("v2", "2.8")):
        config = {"message.format.version": version, "segment.bytes": 4000, "min.cleanable.dirty.ratio": 0.01}
        filler.create(f"{name}-compacted", {"cleanup.policy": "compact", **config})
        for codec in ("none", "snappy"):
            shape = Shape(keys=30, headers=False)
            filler.send(filler.producer(compression_type=codec), f"{name}-compacted", 300, shape)
    filler.create("txn", {"segment.bytes": 3000})
    filler.transactions("txn", 20, "t")
    filler.commit_offsets("v1-none", "group-old", 100)


# --- the broker with a tier ------------------------------------------------------------------------------------------


def fill_tiered(filler: Filler) -> None:
    """Create and fill topics whose closed segments move to the tier. Then most of them are deleted locally."""
    filler.create("tiered", {"segment.ms": 25_000, **TIERED}, partitions=2)
    for number, codec in enumerate(CODECS[:3]):
        for partition in (0, 1):
            shape = Shape(START_MS + number * 60_000, jitter_ms=300)
            filler.send(filler.small(compression_type=codec), "tiered", 60, shape, partition=partition)
    shape_without_headers = Shape(headers=False)
    filler.create("tiered-small", {"internal.segment.bytes": 2048, **TIERED})
    filler.send(filler.small(), "tiered-small", 60, shape_without_headers)
    filler.create("tiered-txn", {"internal.segment.bytes": 4096, **TIERED})
    filler.transactions("tiered-txn", 24, "tt")
    filler.create("tiered-txn-open", {"segment.ms": 5_000, **TIERED})
    filler.send(filler.small(), "tiered-txn-open", 30, shape_without_headers)
    for topic, count in (("start-offset", 150), ("retention", 150), ("deleted", 60), ("paused", 80)):
        filler.create(f"tiered-{topic}", {"segment.ms": 20_000, **TIERED})
        filler.send(filler.small(), f"tiered-{topic}", count, shape_without_headers)
    filler.create("tiered-kept", {"segment.ms": 20_000, **TIERED, "local.retention.bytes": -2})
    filler.send(filler.small(), "tiered-kept", 80, shape_without_headers)


def after_tiered_restart(filler: Filler) -> None:
    """Write more batches, with a new leader epoch."""
    late = START_MS + filler.chance.randrange(200_000, 400_000)
    for partition in (0, 1):
        filler.send(filler.small(compression_type="zstd"), "tiered", 60, Shape(late), partition=partition)
    filler.send(filler.small(), "tiered-small", 20, Shape(late, headers=False))


def leave_open_tiered(filler: Filler) -> None:
    """Leave a transaction open, write records after it, and exit.

    Kafka uploads no segment with records after the start of the transaction.
    """
    filler.open_transaction("tiered-txn-open", "left-open", 4, START_MS + 40_000)
    filler.send(filler.small(), "tiered-txn-open", 30, Shape(START_MS + 50_000, headers=False))
    os._exit(0)


def settle_tiered(filler: Filler) -> None:
    """Raise a log start offset, shorten a retention, stop copying of a topic, and delete a topic."""
    delete_records(filler, "tiered-start-offset", 70)
    filler.alter("tiered-retention", {"retention.bytes": 6000})
    # if copying is disabled, Kafka requires local limits that equal the total limits (-2)
    local = {"local.retention.bytes": -2, "local.retention.ms": -2}
    filler.alter("tiered-paused", {"remote.log.copy.disable": "true", **local})
    filler.send(filler.small(), "tiered-paused", 80, Shape(START_MS + 300_000, headers=False))
    for future in filler.admin.delete_topics(["tiered-deleted"]).values():
        future.result()


# --- what a client reads ---------------------------------------------------------------------------------------------


def read_back(filler: Filler, folder: Path, only: Sequence[str]) -> None:
    """Write files with the records of every log, one for each isolation level."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, topic in sorted(filler.admin.list_topics(timeout=WAIT_SECONDS).topics.items()):
        if name.startswith("__") or (only and name not in only):
            continue
        for partition in topic.partitions:
            for isolation in ("uncommitted", "committed"):
                rows = list(_rows(filler.address, name, partition, isolation))
                file = folder / f"{name}-{partition}.{isolation}.jsonl.gz"
                file.write_bytes(gzip.compress("".join(f"{json.dumps(row)}\n" for row in rows).encode(), mtime=0))


def _rows(address: str, topic: str, partition: int, isolation: str) -> Iterator[dict[str, object]]:
    settings: dict[str, str | int | float | bool | None] = {
        "bootstrap.servers": address,
        "group.id": "golden",
        "enable.auto.commit": False,
        "isolation.level": f"read_{isolation}",
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "check.crcs": True,
    }
    with closing(Consumer(settings)) as consumer:
        bounds = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=WAIT_SECONDS)
        assert bounds is not None
        yield {"log_start": bounds[0], "high_watermark": bounds[1]}
        consumer.assign([TopicPartition(topic, partition, bounds[0])])
        while (message := consumer.poll(WAIT_SECONDS)) is not None:
            error = message.error()
            if error is None:
                yield _row(message)
            elif error.name() == "_PARTITION_EOF":
                return
            else:
                raise KafkaException(error)
    raise SystemExit(f"no more records and no end of {topic}-{partition}")


def _row(message: Message) -> dict[str, object]:
    kind, stamp = message.timestamp()
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    return {
        "offset": message.offset(),
        "timestamp": stamp,
        "timestamp_type": {1: "CreateTime", 2: "LogAppendTime"}.get(kind),
        "key": _text(message.key()),
        "value": _text(message.value()),
        "headers": [[name, _text(value)] for name, value in pairs],
        "leader_epoch": message.leader_epoch(),
    }


def _text(value: object) -> str | None:
    assert value is None or isinstance(value, bytes)
    return None if value is None else base64.b64encode(value).decode()


def pause(seconds: float) -> None:
    """Wait for this time."""
    threading.Event().wait(seconds)


COMMANDS: Final[dict[str, Callable[[Filler], None]]] = {
    "kraft": fill_kraft,
    "zookeeper": fill_zookeeper,
    "after-restart": after_restart,
    "leave-open": leave_open,
    "tiered": fill_tiered,
    "tiered-after-restart": after_tiered_restart,
    "tiered-leave-open": leave_open_tiered,
    "tiered-settle": settle_tiered,
}


def main() -> None:
    """Run the command that the command line selects."""
    parser = argparse.ArgumentParser(description="Fill a Kafka broker, or read from it.")
    parser.add_argument("address")
    parser.add_argument("seed", type=int)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in COMMANDS:
        commands.add_parser(name)
    commands.add_parser("crash").add_argument("broker", type=int, help="its process")
    reading = commands.add_parser("read")
    reading.add_argument("folder", type=Path)
    reading.add_argument("topics", nargs="*", help="only these")
    arguments = parser.parse_args()
    filler = Filler(arguments.address, arguments.seed)
    if arguments.command == "crash":
        crash(filler, arguments.broker)
    elif arguments.command == "read":
        read_back(filler, arguments.folder, arguments.topics)
    else:
        COMMANDS[arguments.command](filler)


if __name__ == "__main__":
    main()
