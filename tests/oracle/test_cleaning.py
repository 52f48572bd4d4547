"""Kafka's cleaner and stratalog clean copies of the same logs at the same clock time: the results are equal."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import cleaning_logs
from cleaning_logs import Script
from kafka_cleaner import KafkaCleaner
from kafka_tools import KafkaTools
from log_bed import LogBed
from stratalog.cleaning.compact.compaction_round import CleanerLimits
from stratalog.config.topic import TopicConfig
from stratalog.registry.registry import Registry

_PROGRAM = Path(__file__).with_name("java") / "KafkaCleaner.java"
SEGMENT_FILES = {".log", ".index", ".timeindex", ".txnindex"}


@pytest.fixture(scope="module")
def kafka_cleaner(kafka_tools: KafkaTools) -> Iterator[KafkaCleaner]:
    with KafkaCleaner(kafka_tools.command(str(_PROGRAM))) as cleaner:
        yield cleaner


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.load()


class Pair:
    """Two copies of one log: ``ours`` is cleaned by stratalog, and ``theirs`` by Kafka."""

    def __init__(self, folder: Path, registry: Registry, kafka: KafkaCleaner, config: TopicConfig) -> None:
        self.kafka, self.config = kafka, config
        self.ours = LogBed(folder / "ours", registry, cleaning_logs.uncompacted(config))
        self.theirs = LogBed(folder / "theirs", registry, config)
        self.dirty_start = 0
        self.limits = cleaning_logs.LIMITS

    def copy(self) -> None:
        """Replace ``theirs`` by a copy of ``ours``."""
        self.ours.close()
        shutil.rmtree(self.theirs.folder, ignore_errors=True)
        shutil.copytree(self.ours.folder, self.theirs.folder)

    def clean_both(self) -> None:
        """Clean both copies at the same clock time, each by its own cleaner, and compare them."""
        now_ms = self.ours.clock.now_ms()
        self.copy()
        assert_end, *_ = self.kafka.clean(
            self.theirs.folder, now_ms, self.dirty_start, self.limits.memory_bytes, self.config
        )
        self.ours.topic = self.config
        log = self.ours.open()
        log.maintenance.resume_cleaning(self.dirty_start)
        result = cleaning_logs.clean(self.ours, log, self.limits)
        if result is not None:
            assert result.error is None, result.error
            assert result.end == assert_end
        self.dirty_start = assert_end
        self.ours.close()
        self.compare()

    def compare(self) -> None:
        """Check that both have the same files, with the same batches, records and indexes.

        Indexes are compared only for equal ``.log`` files. Logs of magic 0 and 1 are compared by their records.
        """
        our_files, kafka_files = (
            {path.name: path for path in sorted(bed.folder.iterdir()) if path.suffix in SEGMENT_FILES}
            for bed in (self.ours, self.theirs)
        )
        assert our_files.keys() == kafka_files.keys()
        for name, path in our_files.items():
            if path.suffix == ".log":
                our_data, kafka_data = path.read_bytes(), kafka_files[name].read_bytes()
                if self.config.record_version in {0, 1}:
                    assert cleaning_logs.contents(self.ours, our_data) == cleaning_logs.contents(
                        self.ours, kafka_data
                    ), name
                    continue
                assert cleaning_logs.described(self.ours, our_data) == cleaning_logs.described(self.ours, kafka_data), (
                    name
                )
                if our_data == kafka_data:  # equal files, which are uncompressed, must have equal indexes
                    for suffix in SEGMENT_FILES - {".log"}:
                        pair = [path.with_suffix(suffix), kafka_files[name].with_suffix(suffix)]
                        indexes = [file.read_bytes() if file.exists() else None for file in pair]
                        assert indexes[0] == indexes[1], (name, suffix)


def run(
    pair: Pair,
    seed: int,
    *,
    rounds: int = 3,
    magic: int = 2,
    codecs: tuple[str | None, ...] = (None,),
    transactions: bool = False,
) -> None:
    """Append and clean several times. Every other time, stratalog continues with the log that Kafka cleaned."""
    chance = random.Random(seed)  # noqa: S311 - the same in every run
    state: dict[str, object] = {}
    for number in range(rounds):
        pair.ours.topic = cleaning_logs.uncompacted(pair.config)
        log = pair.ours.open()
        script = Script(log, pair.ours, chance, magic=magic, codecs=codecs, transactions=transactions)
        if number:
            script.sequences, script.open = state["sequences"], state["open"]  # type: ignore[assignment]  # of the last script
        script.append(60)
        if number == rounds - 1:
            script.end_all()
        log.roll()
        state = {"sequences": script.sequences, "open": script.open}
        pair.clean_both()
        pair.ours.clock.advance_ms(chance.choice([0, 6_000, 20_000]))
        if number % 2:  # stratalog continues with the log that Kafka cleaned
            shutil.rmtree(pair.ours.folder)
            shutil.copytree(pair.theirs.folder, pair.ours.folder)


@pytest.mark.parametrize("seed", range(6))
def test_plain_records(tmp_path: Path, registry: Registry, kafka_cleaner: KafkaCleaner, seed: int) -> None:
    run(Pair(tmp_path, registry, kafka_cleaner, cleaning_logs.topic()), seed, rounds=4)


@pytest.mark.parametrize("seed", range(8))
def test_transactions(tmp_path: Path, registry: Registry, kafka_cleaner: KafkaCleaner, seed: int) -> None:
    run(Pair(tmp_path, registry, kafka_cleaner, cleaning_logs.topic()), seed, rounds=5, transactions=True)


@pytest.mark.parametrize("seed", range(3))
def test_codecs(tmp_path: Path, registry: Registry, kafka_cleaner: KafkaCleaner, seed: int) -> None:
    codecs = (None, "gzip", "snappy", "lz4", "zstd")
    run(Pair(tmp_path, registry, kafka_cleaner, cleaning_logs.topic()), seed, codecs=codecs, transactions=True)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codecs", [(None,), (None, "gzip", "snappy", "lz4")])
def test_older_formats(
    tmp_path: Path, registry: Registry, kafka_cleaner: KafkaCleaner, magic: int, codecs: tuple[str | None, ...]
) -> None:
    """Only records are compared: Kafka 4 rewrites these messages as batches of magic 2.

    stratalog keeps their format, like releases of Kafka before 4.
    """
    config = cleaning_logs.topic(record_version=magic, delete_retention_ms=cleaning_logs.DAY_MS)
    run(Pair(tmp_path, registry, kafka_cleaner, config), magic, magic=magic, codecs=codecs)


@pytest.mark.parametrize("seed", range(3))
def test_a_map_that_is_full_ends_the_round_at_the_same_offset(
    tmp_path: Path, registry: Registry, kafka_cleaner: KafkaCleaner, seed: int
) -> None:
    pair = Pair(tmp_path, registry, kafka_cleaner, cleaning_logs.topic())
    pair.limits = CleanerLimits(memory_bytes=24 * 14, load_factor=0.9, read_bytes=1 << 18)
    run(pair, seed, rounds=6, transactions=bool(seed % 2))
