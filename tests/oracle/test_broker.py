"""A real broker opens a directory that stratalog wrote, and stratalog opens the directory of a broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import corpus
import stratalog
from kafka_broker import KafkaBroker
from kafka_tools import KafkaTools
from stratalog import Record
from stratalog.errors import LogDirLockedError

TOPICS = corpus.topics()
NAMES = [topic.name for topic in TOPICS]
TRANSACTIONAL = "transactional"
BY_THE_BROKER = [record._replace(key=b"by kafka") for record in corpus.some_records("by kafka", 20)]


@dataclass(frozen=True)
class Results:
    """Records of one directory, which stratalog and a broker open in turns, by topic.

    Attributes:
        written: what stratalog wrote first.
        taken_over: what librdkafka read from the broker that started on stratalog's directory.
        after_broker: what stratalog read after the broker had appended and stopped.
        appended: what stratalog appended after that.
        given_back: what librdkafka read from the broker at the end.
        committed: what read_committed shows of the transactional topic to stratalog, and to librdkafka.
        complaints: what Kafka's dump tool reported about stratalog's files.
    """

    written: dict[str, list[Record]]
    taken_over: dict[str, list[Record]]
    after_broker: dict[str, list[Record]]
    appended: dict[str, list[Record]]
    given_back: dict[str, list[Record]]
    committed: tuple[list[Record], list[Record]]
    complaints: list[str]


@pytest.fixture(scope="module")
def broker(kafka_tools: KafkaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(kafka_tools, tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module")
def results(broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Results:
    directory = tmp_path_factory.mktemp("written")
    written_records = corpus.write(directory, [*TOPICS, corpus.Topic(TRANSACTIONAL, {}, [BY_THE_BROKER])])
    every = list(written_records)
    broker.create_topics(dict.fromkeys(every, 1))
    broker.stop()
    for name in every:
        broker.take_over(directory / f"{name}-0")
    broker.start()
    taken_over = broker.read(every)
    broker.produce(NAMES, BY_THE_BROKER)
    broker.produce_transactions(TRANSACTIONAL, [(BY_THE_BROKER[:number], bool(number % 3)) for number in range(1, 9)])
    broker.stop()
    with stratalog.open_engine(broker.log_dir) as engine:
        after_broker = {name: corpus.without_epochs(engine.log(name, 0).records()) for name in every}
        appended = {}
        for name in every:
            records = list(corpus.some_records("given back", 30))
            result = engine.log(name, 0).append(records)
            appended[name] = list(corpus.as_read(corpus.Topic(name), records, result))
        committed = corpus.without_epochs(engine.log(TRANSACTIONAL, 0).records(isolation="read_committed"))
    complaints = broker.tools.complaints(broker.log_dir)
    broker.start()
    given_back = broker.read(every)
    judged = broker.read([TRANSACTIONAL], isolation="read_committed")[TRANSACTIONAL]
    return Results(written_records, taken_over, after_broker, appended, given_back, (committed, judged), complaints)


@pytest.mark.parametrize("name", NAMES)
def test_librdkafka_reads_what_was_appended(results: Results, name: str) -> None:
    assert results.taken_over[name] == results.written[name]


@pytest.mark.parametrize("name", NAMES)
def test_stratalog_opens_what_the_broker_left(results: Results, name: str) -> None:
    read = results.after_broker[name]
    assert read[: -len(BY_THE_BROKER)] == results.written[name]
    assert [contents(record) for record in read[-len(BY_THE_BROKER) :]] == [contents(r) for r in BY_THE_BROKER]


@pytest.mark.parametrize("name", [*NAMES, TRANSACTIONAL])
def test_the_broker_reads_what_stratalog_appended_to_its_log(results: Results, name: str) -> None:
    assert results.given_back[name] == results.after_broker[name] + results.appended[name]


def test_both_show_the_same_committed_records(results: Results) -> None:
    engine_records, broker_records = results.committed
    assert engine_records == broker_records
    assert 0 < len(engine_records) < len(results.given_back[TRANSACTIONAL])


def test_the_dump_tool_reports_no_error_in_a_log_of_the_broker_and_stratalog(results: Results) -> None:
    assert results.complaints == []


def test_neither_opens_what_the_other_has_open(results: Results, broker: KafkaBroker) -> None:
    assert results.given_back
    with pytest.raises(LogDirLockedError):
        stratalog.open_engine(broker.log_dir)
    broker.stop()
    with (
        stratalog.open_engine(broker.log_dir),
        pytest.raises(AssertionError, match=r"(?s)did not start.*Failed to acquire lock"),
    ):
        broker.start()
    broker.start()


@pytest.mark.parametrize("name", [*NAMES, TRANSACTIONAL])
def test_a_running_brokers_directory_can_be_read(results: Results, broker: KafkaBroker, name: str) -> None:
    with stratalog.open_reader(broker.log_dir) as reader:
        assert corpus.without_epochs(reader.log(name, 0).records()) == results.given_back[name]


def contents(record: Record) -> tuple[object, ...]:
    return record.timestamp_ms, record.key, record.value, record.headers
