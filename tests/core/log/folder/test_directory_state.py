from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from log_bed import LogBed
from stratalog.errors import CorruptCheckpointError, LogDirNotFoundError
from stratalog.log.folder.directory_state import (
    check_log_directory,
    check_may_become_log_directory,
    format_topic_id,
    is_log_directory,
    partition_folders,
    read_directory,
    read_topic_id,
)
from stratalog.model.names import TopicId, TopicPartition
from stratalog.spi.segment_store import SegmentStore
from vectors import VECTORS

METADATA = [case for case in VECTORS["text_files"] if case["file"] == "partition.metadata"]
CLEAN = [case for case in VECTORS["text_files"] if case["file"] == ".kafka_cleanshutdown"]


@pytest.fixture
def store(bed: LogBed) -> Iterator[SegmentStore]:
    bed.folder.mkdir(parents=True)
    with bed.host.segment_store(str(bed.directory), read_only=True) as segment_store:
        yield segment_store


# --- topic ids ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", METADATA, ids=lambda case: repr(case["text"]))
def test_topic_ids_are_read_as_kafka_reads_them(bed: LogBed, case: dict[str, Any]) -> None:
    bed.write({"partition.metadata": case["text"].encode()})
    files = bed.files(read_only=True)
    if case["expect"] == "accept":
        assert read_topic_id(files) == TopicId(case["topic_id"])
        return
    with pytest.raises(CorruptCheckpointError) as caught:
        read_topic_id(files)
    assert caught.value.file == str(bed.folder / "partition.metadata")


def test_directories_older_than_topic_ids_have_none(bed: LogBed) -> None:
    bed.write({})
    assert read_topic_id(bed.files(read_only=True)) is None


def test_a_topic_id_is_written_as_kafka_writes_it(bed: LogBed) -> None:
    topic_id = TopicId("ABEiM0RVZneImaq7zN3u_w")
    assert format_topic_id(topic_id) == b"version: 0\ntopic_id: ABEiM0RVZneImaq7zN3u_w"
    bed.write({"partition.metadata": format_topic_id(topic_id)})
    assert read_topic_id(bed.files(read_only=True)) == topic_id


@pytest.mark.parametrize("data", [b"\xff\xfe", b"version: 0\ntopic_id: \xff", b"version: 1e3\ntopic_id: x", b"\n\n"])
def test_foreign_bytes_are_refused(bed: LogBed, data: bytes) -> None:
    bed.write({"partition.metadata": data})
    with pytest.raises(CorruptCheckpointError):
        read_topic_id(bed.files(read_only=True))


# --- checkpoints -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CLEAN, ids=lambda case: repr(case["text"]))
def test_the_marker_counts_whatever_it_holds(bed: LogBed, store: SegmentStore, case: dict[str, Any]) -> None:
    assert not read_directory(store, live=False).clean
    (bed.directory / ".kafka_cleanshutdown").write_text(case["text"], encoding="utf-8")
    assert read_directory(store, live=False).clean is case["clean"]
    assert not read_directory(store, live=True).clean


def test_all_checkpoints_are_read(bed: LogBed, store: SegmentStore) -> None:
    for number, name in enumerate(
        ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint")
    ):
        (bed.directory / name).write_text(f"0\n1\nt 0 {number}\n", encoding="utf-8")
    state = read_directory(store, live=False)
    log = TopicPartition("t", 0)
    assert (state.recovery_points[log], state.log_starts[log], state.high_watermarks[log]) == (0, 1, 2)


def test_damaged_or_missing_checkpoints_count_as_empty(bed: LogBed, store: SegmentStore) -> None:
    (bed.directory / "recovery-point-offset-checkpoint").write_bytes(b"0\n9\nt 0 1\n")
    (bed.directory / "log-start-offset-checkpoint").write_bytes(b"\xff")
    state = read_directory(store, live=False)
    assert (state.recovery_points, state.log_starts, state.high_watermarks) == ({}, {}, {})


# --- folders -----------------------------------------------------------------------------------------------------


def test_only_folders_of_logs_count(bed: LogBed, store: SegmentStore) -> None:
    unique = "0123456789abcdef0123456789abcdef"
    for name in (
        "orders-10",
        "orders-2",
        "a-b-0",
        "remote-log-index-cache",
        "lost+found",
        "no-number",
        f"gone-0.{unique}-delete",
        f"moving-0.{unique}-future",
        f"stray-0.{unique}-stray",
    ):
        (bed.directory / name).mkdir()
    (bed.directory / "file-0").write_bytes(b"")
    folders = partition_folders(store)
    assert list(folders) == [TopicPartition(*name) for name in (("a-b", 0), ("orders", 2), ("orders", 10), ("t", 0))]
    assert folders[TopicPartition("orders", 10)] == "orders-10"


# --- which directories hold logs ---------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(bed: LogBed) -> Iterator[SegmentStore]:
    """Yield a store on a directory like ``/etc``: its folders are named like logs, but hold other files."""
    (bed.directory / "dbus-1").mkdir(parents=True)
    (bed.directory / "dbus-1" / "system.conf").write_text("", encoding="utf-8")
    (bed.directory / "polkit-1").mkdir()
    with bed.host.segment_store(str(bed.directory), read_only=True) as segment_store:
        yield segment_store


def test_folders_that_are_only_named_like_logs_are_none(elsewhere: SegmentStore) -> None:
    assert not is_log_directory(elsewhere)
    with pytest.raises(LogDirNotFoundError, match="the directory contains no logs"):
        check_log_directory(elsewhere)
    with pytest.raises(LogDirNotFoundError, match="dbus-1 is named like a log but contains none"):
        check_may_become_log_directory(elsewhere)


@pytest.mark.parametrize(
    "name",
    [
        "meta.properties", "recovery-point-offset-checkpoint", "replication-offset-checkpoint", ".lock",
        "log-start-offset-checkpoint", "cleaner-offset-checkpoint", ".kafka_cleanshutdown", "stratalog-topics.json",
    ],
)  # fmt: skip
def test_one_file_of_a_broker_or_an_engine_makes_a_log_directory(
    elsewhere: SegmentStore, bed: LogBed, name: str
) -> None:
    (bed.directory / name).write_bytes(b"")
    check_log_directory(elsewhere)
    check_may_become_log_directory(elsewhere)


@pytest.mark.parametrize("name", ["00000000000000000000.log", "partition.metadata", "leader-epoch-checkpoint"])
def test_one_file_of_a_log_makes_a_log_directory(elsewhere: SegmentStore, bed: LogBed, name: str) -> None:
    (bed.directory / "orders-0").mkdir()
    (bed.directory / "orders-0" / name).write_bytes(b"")
    check_log_directory(elsewhere)
    check_may_become_log_directory(elsewhere)


@pytest.mark.parametrize("name", ["partition.metadata", "leader-epoch-checkpoint"])
def test_the_folder_of_a_log_names_the_directory_to_use(bed: LogBed, name: str) -> None:
    folder = bed.directory / "orders-0"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(b"")
    with bed.host.segment_store(str(folder), read_only=True) as store:
        for check in (check_log_directory, check_may_become_log_directory):
            with pytest.raises(LogDirNotFoundError, match=f"use its log directory, {bed.directory}"):
                check(store)


def test_a_directory_that_is_missing_or_empty_may_become_a_log_directory(bed: LogBed, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("missing", "empty"):
        with bed.host.segment_store(str(tmp_path / name), read_only=True) as store:
            check_may_become_log_directory(store)
