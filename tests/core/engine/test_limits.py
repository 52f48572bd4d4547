"""Limits on sizes that files, roots, notes and arguments claim, checked before memory is allocated or a loop begins."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from forged_roots import forge_root, root_paths
from stratalog import Engine, Record, open_engine, open_reader
from stratalog.config.engine_settings import Limits
from stratalog.config.settings_sources import Settings
from stratalog.config.topic import TopicConfig
from stratalog.engine.restore.restore import RestoreRequest, restore
from stratalog.errors import ConfigError, CorruptManifestError, CorruptObjectError, EpochsExhaustedError, StorageError
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import MAX_EPOCH, next_epoch
from stratalog.model.segment_info import FileKind
from stratalog.reading.open_reader import open_host, open_tier
from stratalog.segment.finding import FindingKind
from stratalog.spi.layouts import StoredSegment
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID, made_segment
from stratalog.testing.memory import memory_below
from stratalog.tier.store.object_keys import log_prefix, segments_prefix
from stratalog.tier.tier import Tier
from stratalog.tier.upkeep.tier_check import TierLogCheck
from stratalog.writing.write_target import WriteTarget
from tier_bed import TierBed

MOST_BYTES: Final = 48 << 20
HUGE_BYTES: Final = 3 << 30
BILLION: Final = 1_000_000_000


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """Return a bucket with the topic ``t``: one partition, and two segments in the tier."""
    folder = tmp_path / "bucket"
    folder.mkdir()
    with open_engine(tmp_path / "source", tier=folder.as_uri()) as engine:
        engine.create_topic("t")
        fill(engine, 2)
        engine.offload()
    return folder


def fill(engine: Engine, segments: int) -> None:
    for number in range(segments):
        engine.log("t", 0).append([Record(key=b"k", value=b"%d" % number)])
        engine.log("t", 0).roll()


def values(log: Any) -> list[bytes | None]:
    return [record.value for record in log.records()]


def claim_huge_index(bucket: Path, kind: str = "index") -> None:
    """Change the newest root: it then claims an index of 3 GiB, in a sparse object of this size."""

    def change(root: dict[str, Any]) -> None:
        entry = root["entries"][0]
        number, _, _ = entry["slices"]["log"]
        os.truncate(bucket / f"t-{root['topic_id']}" / "0" / entry["objects"][number], 2 * HUGE_BYTES)
        entry["slices"][kind] = [number, 0, HUGE_BYTES]

    forge_root(root_paths(bucket)[-1], change)


# --- sizes in a root -------------------------------------------------------------------------------------------------


def test_a_restore_of_a_root_that_claims_a_huge_index_takes_little_memory(tmp_path: Path, bucket: Path) -> None:
    claim_huge_index(bucket)
    with memory_below(MOST_BYTES), pytest.raises(CorruptObjectError, match=r"limits\.index\.bytes=134217728"):
        restore(bucket.as_uri(), tmp_path / "new")


def test_a_search_of_a_root_with_a_huge_index_takes_little_memory(bucket: Path) -> None:
    claim_huge_index(bucket, "timeindex")
    with (
        memory_below(MOST_BYTES),
        open_reader(bucket.as_uri()) as reader,
        pytest.raises(CorruptObjectError, match="names a file of"),
    ):
        reader.log("t", 0).offset_for_timestamp(1)


def test_a_check_reports_a_root_with_a_huge_index_and_takes_little_memory(bucket: Path) -> None:
    claim_huge_index(bucket)
    host = open_host(Settings(), (), None)
    try:
        with memory_below(MOST_BYTES), open_tier(host, bucket.as_uri(), None, read_only=True) as tier:
            (name,) = tier.logs()
            check = TierLogCheck(tier.log(*name), host.components(TopicConfig()), contents=True)
            assert list(check.roots()) == []
            first = next(entry for entry in check.segments() if isinstance(entry, StoredSegment))
            texts = [(finding.kind, finding.text) for finding in check.contents(first)]
            assert [kind for kind, _ in texts] == [FindingKind.FILE] * 2, "the copy of the entry differs from it, too"
            assert "limits.index.bytes" in texts[0][1]
    finally:
        host.close()


def test_a_segment_with_a_file_above_the_limit_is_not_uploaded() -> None:
    bed = TierBed(limits=replace(Limits(), index_bytes=1 << 20))
    log = bed.open().log(LOG, TOPIC_ID)
    source = made_segment(0, 10, files={FileKind.SNAPSHOT: bytes((1 << 20) + 1)})
    with pytest.raises(ConfigError, match=r"snapshot file of orders-0 at 0: 1048577 bytes .*limits\.index\.bytes"):
        log.offload([source], layout="pair", leader_epoch=0, log_start=0, high_watermark=10)
    assert bed.bucket.keys(segments_prefix(log_prefix(LOG, TOPIC_ID))) == []


@pytest.mark.parametrize("field", ["high_watermark", "first_dirty_offset", "created_ms", "leader_epoch"])
def test_a_number_that_has_no_place_in_64_bits_is_refused(bucket: Path, field: str) -> None:
    forge_root(root_paths(bucket)[-1], lambda root: root.update({field: 1 << 80}))
    with open_reader(bucket.as_uri()) as reader, pytest.raises(CorruptManifestError):
        reader.log("t", 0)


# --- index files on local disk ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("base_offset", [0, 2])
@pytest.mark.parametrize("suffix", ["index", "timeindex", "txnindex", "snapshot"])
@pytest.mark.long
def test_a_sparse_file_of_a_terabyte_beside_a_log_takes_no_memory(
    tmp_path: Path,
    bucket: Path,
    suffix: str,
    base_offset: int,
    clean: bool,  # noqa: FBT001 - a row
) -> None:
    path = tmp_path / "source" / "t-0" / f"{base_offset:020d}.{suffix}"
    with path.open("ab") as file:
        file.truncate(1 << 40)
    if not clean:
        (tmp_path / "source" / ".kafka_cleanshutdown").unlink()
    with memory_below(MOST_BYTES):
        with open_reader(tmp_path / "source") as reader:
            assert values(reader.log("t", 0)) == [b"0", b"1"]
        with open_engine(tmp_path / "source") as engine:
            assert values(engine.log("t", 0)) == [b"0", b"1"]
            assert engine.log("t", 0).append([Record(value=b"new")]).base_offset == 2
    assert bucket.exists()


# --- partitions ------------------------------------------------------------------------------------------------------


def test_a_topic_of_a_billion_partitions_is_refused_and_the_setting_is_named(tmp_path: Path) -> None:
    with open_engine(tmp_path / "a") as engine:
        with memory_below(MOST_BYTES), pytest.raises(ConfigError, match=r"limits\.topic\.partitions=100000"):
            engine.create_topic("t", partitions=BILLION)
        assert engine.topics() == {}


def test_the_number_of_partitions_is_bounded_by_a_setting(tmp_path: Path) -> None:
    with open_engine(tmp_path / "a", config={"limits": {"topic": {"partitions": 3}}}) as engine:
        with pytest.raises(ConfigError, match=r"4 partitions are above limits\.topic\.partitions=3"):
            engine.create_topic("t", partitions=4)
        assert len(engine.create_topic("t", partitions=3).partitions) == 3


def test_a_tier_refuses_a_new_topic_of_a_billion_partitions(bucket: Path) -> None:
    with (
        WriteTarget(bucket.as_uri()).open() as writer,
        memory_below(MOST_BYTES),
        pytest.raises(ConfigError, match=r"limits\.topic\.partitions"),
    ):
        writer.create_topic("new", BILLION)


def test_a_note_of_a_billion_partitions_is_refused_before_anything_is_claimed(tmp_path: Path, bucket: Path) -> None:
    forge_root(root_paths(bucket)[-1], lambda root: root["topic_note"].update(partitions=BILLION))
    before = root_paths(bucket)
    with memory_below(MOST_BYTES), pytest.raises(ConfigError, match=r"limits\.topic\.partitions"):
        open_engine(tmp_path / "new", tier=bucket.as_uri(), attach=True)
    assert root_paths(bucket) == before


def test_a_note_of_more_partitions_than_kafka_can_number_is_corrupt(bucket: Path) -> None:
    forge_root(root_paths(bucket)[-1], lambda root: root["topic_note"].update(partitions=1 << 31))
    with open_reader(bucket.as_uri()) as reader, pytest.raises(CorruptManifestError, match="2147483648 partitions"):
        reader.log("t", 0)


# --- leader epochs ---------------------------------------------------------------------------------------------------


def use_up_epochs(bucket: Path) -> None:
    forge_root(root_paths(bucket)[-1], lambda root: root.update(leader_epoch=MAX_EPOCH))


def test_the_last_leader_epoch_has_none_after_it() -> None:
    log = TopicPartition("t", 0)
    assert next_epoch(MAX_EPOCH - 1, log) == MAX_EPOCH
    with pytest.raises(EpochsExhaustedError, match="t-0 is in leader epoch 2147483647"):
        next_epoch(MAX_EPOCH, log)


def test_a_log_in_the_last_epoch_is_not_attached_and_its_tier_stays_as_it_is(tmp_path: Path, bucket: Path) -> None:
    use_up_epochs(bucket)
    before = root_paths(bucket)
    with pytest.raises(EpochsExhaustedError, match="--as OLD=NEW"):
        open_engine(tmp_path / "new", tier=bucket.as_uri(), attach=True)
    assert root_paths(bucket) == before


def test_a_log_in_the_last_epoch_is_restored_under_another_name_alone(tmp_path: Path, bucket: Path) -> None:
    use_up_epochs(bucket)
    with pytest.raises(EpochsExhaustedError):
        restore(bucket.as_uri(), tmp_path / "new")
    restore(bucket.as_uri(), tmp_path / "new", RestoreRequest(rename={"t": "u"}))
    with open_engine(tmp_path / "new") as engine:
        assert values(engine.log("u", 0)) == [b"0", b"1"]


def test_a_manifest_whose_objects_are_of_the_last_epoch_is_not_rebuilt(tmp_path: Path, bucket: Path) -> None:
    for path in root_paths(bucket):
        path.unlink()
    for path in bucket.glob("*/*/segments/*"):
        base, _, unique = path.name.split("-")
        path.rename(path.with_name(f"{base}-{MAX_EPOCH}-{unique}"))
    with open_engine(tmp_path / "new", tier=bucket.as_uri()) as engine:
        assert isinstance(engine.tier, Tier)
        (name,) = engine.tier.lost()
        with pytest.raises(StorageError):
            engine.tier.rebuild(name)


def test_a_root_of_an_epoch_above_the_last_one_is_corrupt(bucket: Path) -> None:
    forge_root(root_paths(bucket)[-1], lambda root: root.update(leader_epoch=MAX_EPOCH + 1))
    with open_reader(bucket.as_uri()) as reader, pytest.raises(CorruptManifestError, match="leader epoch 2147483648"):
        reader.log("t", 0)
