"""A real broker and stratalog carry out the same steps on copies of one directory: responses and files are equal.

Each round begins with copies of one directory. The directory that one of them left, stopped or crashed, is the start of
the next round. ``ORACLE_SEED`` chooses other steps; a failure names its seed.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

import corpus
import stratalog
from append_script import Append, Cut, ScriptWriter, Step
from kafka_broker import KafkaBroker
from kafka_tools import KafkaTools
from kafka_wire import Answer, KafkaWire
from stratalog import Engine, Record
from stratalog.errors import StorageError
from stratalog.model.names import CLEAN_SHUTDOWN_FILE
from stratalog.producers.snapshot import decode_snapshot
from stratalog.segment.components import Components
from stratalog.segment.framing import scan

SEED: Final = int(os.environ.get("ORACLE_SEED", "4242"))
# Records are ahead of the clock and of all markers, so that both sides roll at the same records.
AHEAD_MS: Final = 600_000
SETTINGS: Final = {
    "transaction.partition.verification.enable": "false",  # these transactions have no coordinator
    "broker.session.timeout.ms": "3000",  # time until the controller considers a broker dead
    "broker.heartbeat.interval.ms": "500",
}
TOPICS: Final[dict[str, dict[str, object]]] = {
    "plain": {},
    "rolling": {"segment.ms": 60_000},
    "indexed": {"index.interval.bytes": 300},
    "zipped": {"compression.type": "lz4"},
}
LEVELS: Final = ("read_uncommitted", "read_committed")
Read = dict[tuple[str, str], list[Record]]
"""Records by topic and isolation."""


@dataclass(frozen=True)
class SideResult:
    """Results of one side after a round.

    Attributes:
        answers: responses to the steps.
        records: records read at the end, by topic and isolation.
        folder: the files at the end.
        clean: True if the side stopped cleanly, False if it crashed.
    """

    answers: list[Answer]
    records: Read
    folder: Path
    clean: bool


@dataclass(frozen=True)
class Round:
    """Results of the same steps on both sides; ``remarks`` are the broker's warnings."""

    steps: list[Step]
    broker: SideResult
    ours: SideResult
    remarks: list[str]


@pytest.fixture(scope="module")
def rounds(kafka_tools: KafkaTools, components: Components, tmp_path_factory: pytest.TempPathFactory) -> list[Round]:
    folder = tmp_path_factory.mktemp("owners")
    script = ScriptWriter(SEED, list(TOPICS), components, time.time_ns() // 1_000_000 + AHEAD_MS)
    plans = [(is_ours, clean) for is_ours in (True, False) for clean in (True, False)]
    script.chance.shuffle(plans)
    rounds = []
    with KafkaBroker(kafka_tools, folder, SETTINGS) as broker:
        broker.create_topics(dict.fromkeys(TOPICS, 1), TOPICS)
        broker.stop()
        with stratalog.open_engine(broker.log_dir) as engine:
            for topic, config in TOPICS.items():
                engine.alter_topic(topic, config)
        for number, (goes_on_with_ours, clean) in enumerate([*plans, (True, True)]):
            copy = shutil.copytree(broker.log_dir, folder / f"ours-{number}")
            remark_count = len(broker.remarks())
            steps = script.steps(2)
            by_broker = _under_broker(broker, steps, folder / f"broker-{number}", clean=clean)
            by_us = _under_us(copy, steps, folder / f"crashed-{number}", clean=clean)
            rounds.append(Round(steps, by_broker, by_us, broker.remarks()[remark_count:]))
            shutil.rmtree(broker.log_dir)
            shutil.copytree((by_us if goes_on_with_ours else by_broker).folder, broker.log_dir)
            script.forget()
    return rounds


def _under_broker(broker: KafkaBroker, steps: Sequence[Step], target: Path, *, clean: bool) -> SideResult:
    broker.start()
    with KafkaWire(broker.address) as wire:
        answers = [_ask(broker, wire, step) for step in steps]
    read = {
        (topic, level): records for level in LEVELS for topic, records in broker.read(TOPICS, isolation=level).items()
    }
    (broker.stop if clean else broker.kill)()
    return SideResult(answers, read, shutil.copytree(broker.log_dir, target), clean)


def _ask(broker: KafkaBroker, wire: KafkaWire, step: Step) -> Answer:
    if isinstance(step, Cut):
        return Answer(0, broker.delete_records(step.topic, step.share))
    if isinstance(step, Append):
        return wire.produce(step.topic, step.data)
    return wire.end_transaction(
        step.topic,
        step.producer_id,
        step.producer_epoch,
        commit=step.commit,
        coordinator_epoch=step.coordinator_epoch,
    )


def _under_us(folder: Path, steps: Sequence[Step], target: Path, *, clean: bool) -> SideResult:
    with stratalog.open_engine(folder) as engine:
        answers = [_do(engine, step) for step in steps]
        read = {
            (topic, level): corpus.without_epochs(engine.log(topic, 0).records(isolation=level))
            for level in LEVELS
            for topic in TOPICS
        }
        if not clean:
            shutil.copytree(folder, target)
    return SideResult(answers, read, folder if clean else target, clean)


def _do(engine: Engine, step: Step) -> Answer:
    log = engine.log(step.topic, 0)
    try:
        if isinstance(step, Append):
            return Answer(0, log.append_as_leader(step.data).base_offset)
        if isinstance(step, Cut):
            offsets = log.offsets()
            before = offsets.log_start + int((offsets.high_watermark - offsets.log_start) * step.share)
            return Answer(0, log.delete_records(before))
        log.end_transaction(
            step.producer_id, step.producer_epoch, commit=step.commit, coordinator_epoch=step.coordinator_epoch
        )
    except StorageError as error:
        return Answer(error.kafka_code)
    return Answer(0)


def test_both_give_the_same_answers(rounds: list[Round]) -> None:
    for number, played in enumerate(rounds):
        pairs = zip(played.steps, played.broker.answers, played.ours.answers, strict=True)
        differing = [
            (step.what, step.topic, broker_answer, our_answer)
            for step, broker_answer, our_answer in pairs
            if broker_answer != our_answer
        ]
        assert not differing, f"seed={SEED} round={number}"


def test_kafka_and_stratalog_refuse_the_same_appends(rounds: list[Round]) -> None:
    for number, played in enumerate(rounds):
        pairs = zip(played.steps, played.broker.answers, strict=True)
        unexpected_answers = [
            (step.what, step.topic, answer) for step, answer in pairs if step.accepted != (answer.code == 0)
        ]
        assert not unexpected_answers, f"seed={SEED} round={number}"


def test_both_show_the_same_records(rounds: list[Round]) -> None:
    for number, played in enumerate(rounds):
        for key, broker_records in played.broker.records.items():
            assert broker_records == played.ours.records[key], f"seed={SEED} round={number} {key}"
        assert any(played.broker.records.values()), f"seed={SEED} round={number}"  # one topic may be empty


def test_the_broker_logs_no_warning_about_the_directory(rounds: list[Round]) -> None:
    assert [played.remarks for played in rounds] == [[]] * len(rounds), f"seed={SEED}"


def test_the_dump_tool_reports_no_error(rounds: list[Round], kafka_tools: KafkaTools, tmp_path: Path) -> None:
    for number, played in enumerate(rounds):
        if played.ours.clean:  # after a crash, indexes have reserved space, in Kafka and in stratalog
            for topic in TOPICS:
                shutil.copytree(played.ours.folder / f"{topic}-0", tmp_path / f"{topic}-{number}")
    assert kafka_tools.complaints(tmp_path) == [], f"seed={SEED}"


def test_both_leave_the_same_segments(rounds: list[Round], components: Components) -> None:
    for number, played in enumerate(rounds):
        for topic in TOPICS:
            broker_segments, our_segments = (
                _segments(side.folder / f"{topic}-0", components) for side in (played.broker, played.ours)
            )
            assert broker_segments == our_segments, f"seed={SEED} round={number} {topic}"
    assert any(len(_segments(played.ours.folder / "rolling-0", components)) > 2 for played in rounds)


def _segments(folder: Path, components: Components) -> dict[str, list[tuple[object, ...]]]:
    """Return the batches of each segment without the fields that depend on the owner or the clock."""
    segments: dict[str, list[tuple[object, ...]]] = {}
    for path in sorted(folder.glob("*.log")):
        data = path.read_bytes()
        tables = scan(components.formats, data, 0, len(data), check_crc=True).tables
        segments[path.name] = [
            (
                batch.base_offset,
                batch.last_offset,
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.is_transactional,
                batch.is_control,
                None if batch.is_control else batch.max_timestamp_ms,
                None if _is_compressed_again(folder) else batch.size_bytes,
            )
            for table in tables
            for batch in table
        ]
    return segments


def _is_compressed_again(folder: Path) -> bool:
    return "compression.type" in TOPICS[folder.name.rpartition("-")[0]]


def test_both_leave_the_same_indexes_where_no_marker_brings_the_clock_in(rounds: list[Round]) -> None:
    for played in rounds:
        if played.broker.clean:
            broker_indexes, our_indexes = (
                sorted((side.folder / "indexed-0").glob("*.index")) for side in (played.broker, played.ours)
            )
            assert [(path.name, path.read_bytes()) for path in broker_indexes] == [
                (path.name, path.read_bytes()) for path in our_indexes
            ], f"seed={SEED}"
            assert any(path.stat().st_size for path in our_indexes)


def test_both_remember_the_same_producers(rounds: list[Round]) -> None:
    for number, played in enumerate(rounds):
        if played.broker.clean:
            for topic in TOPICS:
                broker_producers, our_producers = (
                    _producers(side.folder / f"{topic}-0") for side in (played.broker, played.ours)
                )
                assert broker_producers == our_producers, f"seed={SEED} round={number} {topic}"


def _producers(folder: Path) -> list[object]:
    """Return the name and the entries of the newest snapshot, without timestamps.

    The timestamps of markers depend on the clock.
    """
    newest = max(folder.glob("*.snapshot"))
    entries = decode_snapshot(newest.read_bytes(), newest.name)
    return [newest.name, *sorted(entry._replace(last_timestamp_ms=0) for entry in entries)]


def test_stops_and_crashes_were_among_the_rounds(rounds: list[Round]) -> None:
    for played in rounds:
        for side in (played.broker, played.ours):
            assert (side.folder / CLEAN_SHUTDOWN_FILE).exists() is side.clean
