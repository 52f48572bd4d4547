"""Kafka Streams counts words exactly once over the gateway, although its process is killed."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("kio", reason="the extra gateway is not installed")

from gateway_bed import Served, served
from kafka_tools import KafkaTools, OracleMissingError
from requirement import Requirement, missing
from stratalog import Record

LINES, PARTITIONS = 400, 2
WORDS = ("apple", "bread", "cheese", "dill", "egg")
PATIENCE_POLLS = 600


@pytest.fixture(scope="module")
def streams_tools() -> KafkaTools:
    try:
        return KafkaTools.find(Path(__file__).with_name("pom-streams.xml"))
    except OracleMissingError as error:
        missing(Requirement.KAFKA, f"Kafka Streams cannot run here: {error}")


@contextmanager
def running(tools: KafkaTools, gateway: Served, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the application in a separate process, and stop it cleanly."""
    source = Path(__file__).with_name("java") / "WordCount.java"
    command = tools.command(str(source), gateway.bootstrap, str(folder / "state"), "lines", "counts")
    with (
        (folder / "application.txt").open("ab") as output_file,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output_file, stderr=output_file) as process,  # noqa: S603 - Java with arguments of this test
    ):
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()


def counts(gateway: Served) -> dict[bytes | None, list[int]]:
    """Return the counts that read_committed shows for each word, in the order of their offsets."""
    counts_by_word: dict[bytes | None, list[int]] = {}
    for partition in range(PARTITIONS):
        for record in gateway.engine.log("counts", partition).records(isolation="read_committed"):
            counts_by_word.setdefault(record.key, []).append(int(record.value or b""))
    return counts_by_word


def until(gateway: Served, condition: Callable[[], bool]) -> None:
    """Wait for appends to the counts until a condition holds."""
    with gateway.engine.consumer(topics=["counts"]) as consumer:
        for _ in range(PATIENCE_POLLS):
            if condition():
                return
            consumer.poll(timeout_ms=200)
    raise AssertionError(f"the counts are {counts(gateway)}")


def is_writing(gateway: Served) -> bool:
    """True if the application has appended records that are not committed yet."""
    return any(gateway.engine.log("counts", number).open_transactions() for number in range(PARTITIONS))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_each_word_is_counted_once(streams_tools: KafkaTools, tmp_path: Path) -> None:
    chance, expected = Random(1), Counter[str]()  # noqa: S311 - the same lines in each run

    def append_lines() -> None:
        for number in range(LINES):
            words = chance.choices(WORDS, k=3)
            expected.update(words)
            gateway.engine.log("lines", number % PARTITIONS).append([Record(value=" ".join(words).encode())])

    with served(tmp_path / "logs") as gateway:
        gateway.engine.start()  # starts the background duty that aborts the open transaction of the killed process
        for topic in ("lines", "counts"):
            gateway.engine.create_topic(topic, partitions=PARTITIONS)
        append_lines()
        with running(streams_tools, gateway, tmp_path) as first:
            until(gateway, lambda: bool(counts(gateway)))
            append_lines()
            until(gateway, lambda: is_writing(gateway))
            first.kill()
        assert sum(map(len, counts(gateway).values())) < expected.total()
        with running(streams_tools, gateway, tmp_path):
            until(gateway, lambda: sum(map(len, counts(gateway).values())) >= expected.total())
        assert counts(gateway) == {word.encode(): list(range(1, count + 1)) for word, count in expected.items()}
