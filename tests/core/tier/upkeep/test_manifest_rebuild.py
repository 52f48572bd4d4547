"""Manifests that are rebuilt from the footers of objects: the chosen objects, the report, and refusals."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest

from command_runs import printed_items
from stratalog import Engine, Record, RecordColumns, TopicPartition, open_engine, open_reader
from stratalog.cli.app import run
from stratalog.engine.restore.restore import restore
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import (
    AttachError,
    ConfigError,
    CorruptManifestError,
    EngineAheadError,
    FencedEpochError,
    StorageError,
)
from stratalog.tier.manifest.head import WARM_HEAD_MS
from stratalog.tier.tier import Tier
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.manifest_rebuild import RebuildReport
from stratalog.writing import WriteTarget


def fill(engine: Engine, values: int, **options: bytes) -> None:
    log = engine.log("t", 0)
    for number in range(values):
        log.append([Record(key=b"k", value=options.get("value", b"%d" % number))])
        log.roll()
    engine.offload()


@pytest.fixture(params=["single", "plain", "chunked"])
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bucket(tmp_path: Path, layout: str) -> Path:
    """Return a bucket with topic ``t``: three segments of epoch 0 and two of epoch 1."""
    (tmp_path / "bucket").mkdir()
    uri = (tmp_path / "bucket").as_uri()
    with open_engine(tmp_path / "a", tier=uri, topic_defaults={"tier.layout": layout}) as engine:
        engine.create_topic("t")
        fill(engine, 3)
    with open_engine(tmp_path / "b", tier=uri, attach=True, topic_defaults={"tier.layout": layout}) as engine:
        fill(engine, 2)
    return tmp_path / "bucket"


def lose_manifests(bucket: Path) -> None:
    for folder in [*bucket.glob("*/*/manifest"), *bucket.glob("*/*/pages")]:
        shutil.rmtree(folder)


def rebuilt(bucket: Path, tmp_path: Path, *, dry_run: bool = False) -> RebuildReport:
    with open_engine(tmp_path / "x", tier=bucket.as_uri()) as engine:
        assert isinstance(engine.tier, Tier)
        (name,) = engine.tier.lost()
        return engine.tier.rebuild(name, dry_run=dry_run)


def records(bucket: Path) -> list[tuple[int, bytes | None, int]]:
    with open_reader(bucket.as_uri()) as reader:
        return [(record.offset, record.value, record.leader_epoch) for record in reader.log("t", 0).records()]


def test_a_rebuilt_manifest_names_the_same_segments(bucket: Path, tmp_path: Path) -> None:
    before = records(bucket)
    objects = sorted(path for path in bucket.rglob("segments/*"))
    lose_manifests(bucket)
    planned_report = rebuilt(bucket, tmp_path, dry_run=True)
    assert not list(bucket.glob("*/*/manifest"))
    report = rebuilt(bucket, tmp_path)
    assert report == planned_report
    assert (report.start_offset, report.end_offset, report.segments, report.leader_epoch) == (0, 5, 5, 2)
    assert report.ignored == ()
    assert records(bucket) == before
    assert sorted(path for path in bucket.rglob("segments/*")) == objects
    with open_engine(tmp_path / "c", tier=bucket.as_uri(), attach=True) as engine:
        assert engine.log("t", 0).append([Record(value=b"on")]).base_offset == 5
        assert engine.log("t", 0).leader_epoch == 3


def test_an_upload_of_a_fenced_writer_is_reported_and_left_out(bucket: Path, tmp_path: Path) -> None:
    """If two objects cover the same range, the lineage of leader epochs decides."""
    records_before = records(bucket)
    other_bucket = tmp_path / "other"
    other_bucket.mkdir()
    # a segment of the old writer that was never committed here
    with open_engine(tmp_path / "a", tier=other_bucket.as_uri()) as engine:
        engine.log("t", 0).append([Record(value=b"never committed")])
        engine.log("t", 0).roll()
        engine.offload()
    for path in (other_bucket).rglob("segments/00000000000000000003-0-*"):
        shutil.copy(path, next(bucket.glob("*/0/segments")) / path.name)
    lose_manifests(bucket)
    report = rebuilt(bucket, tmp_path)
    assert records(bucket) == records_before
    assert report.segments == 5
    assert report.ignored
    assert all("00000000000000000003-0-" in key for key, _ in report.ignored)
    assert "never committed" in report.ignored[0][1]


def test_damaged_and_foreign_objects_are_reported(bucket: Path, tmp_path: Path) -> None:
    folder = next(bucket.glob("*/0/segments"))
    (folder / f"{0:020}-0-{'a' * 32}.seg").write_bytes(os.urandom(100))
    ends = sorted(folder.glob("00000000000000000000-0-*"))
    first = next(path for path in ends if path.read_bytes().endswith(b"STLGSEG1"))
    data = bytearray(first.read_bytes())
    data[-30] ^= 1  # this byte is in the footer
    first.write_bytes(data)
    lose_manifests(bucket)
    report = rebuilt(bucket, tmp_path)
    assert (report.start_offset, report.segments) == (1, 4)
    reasons = dict(report.ignored)
    assert any("damaged" in why for why in reasons.values())
    assert any("no readable segment" in why for why in reasons.values())
    assert [offset for offset, _, _ in records(bucket)] == [1, 2, 3, 4]


@pytest.mark.parametrize("told", ["whole seconds", "a copy's", "backwards"])
@pytest.mark.long
def test_segments_that_compaction_replaced_do_not_come_back(tmp_path: Path, layout: str, told: str) -> None:
    """The creation times of the objects do not matter: S3 has whole seconds, and a copied bucket has new times."""
    (tmp_path / "bucket").mkdir()
    uri = (tmp_path / "bucket").as_uri()
    clock = ManualClock()
    with open_engine(tmp_path / "a", tier=uri, env=Env(clock=clock), topic_defaults={"tier.layout": layout}) as engine:
        engine.create_topic(
            "t", config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "delete.retention.ms": 0}
        )
        log = engine.log("t", 0)
        for number in range(12):
            log.append([Record(key=b"%d" % (number % 3), value=None if number % 5 == 4 else b"%d" % number)])
            log.roll()
            clock.advance_ms(10)
            if number % 2:
                engine.offload()
            if number % 4 == 3:
                engine.run_cleaner()
    before = records(tmp_path / "bucket")
    objects = sorted((tmp_path / "bucket").rglob("segments/*"), key=lambda path: path.stat().st_mtime_ns)
    for number, path in enumerate(objects):
        at_s = {"whole seconds": 1, "a copy's": zlib.crc32(path.name.encode()), "backwards": 1000 - number}[told]
        os.utime(path, (at_s, at_s))
    lose_manifests(tmp_path / "bucket")
    report = rebuilt(tmp_path / "bucket", tmp_path)
    assert report.ignored
    assert records(tmp_path / "bucket") == before


def test_a_segment_of_which_the_end_is_missing_is_left_out(bucket: Path, tmp_path: Path) -> None:
    """In a layout of several objects, the footer may be complete while another object is not."""
    lose_manifests(bucket)
    base = max(path.name.split("-")[0] for path in bucket.rglob("segments/*"))
    log = next(path for path in bucket.rglob(f"segments/{base}-*") if path.suffix in {".seg", ".log"})
    log.write_bytes(log.read_bytes()[:-1])
    report = rebuilt(bucket, tmp_path)
    assert (report.start_offset, report.end_offset, report.segments) == (0, 4, 4)
    assert report.ignored
    assert len(records(bucket)) == 4


def test_a_rebuild_of_an_incomplete_copy_of_a_bucket_continues_when_the_copy_is_complete(
    bucket: Path, tmp_path: Path
) -> None:
    """The first rebuild is complete: its root has the end offset as high watermark."""
    before = records(bucket)
    lose_manifests(bucket)
    folder, late = next(bucket.glob("*/*/segments")), tmp_path / "late"
    late.mkdir()
    last = max(path.name.split("-")[0] for path in folder.iterdir())
    for path in folder.glob(f"{last}-*"):
        path.rename(late / path.name)
    assert rebuilt(bucket, tmp_path).end_offset == 4
    for path in late.iterdir():
        path.rename(folder / path.name)
    with pytest.raises(AttachError, match="is incomplete: run `stratalog rebuild"):
        open_engine(tmp_path / "c", tier=bucket.as_uri(), attach=True)
    assert rebuilt(bucket, tmp_path).end_offset == 5
    assert records(bucket) == before


def test_a_log_with_a_manifest_is_not_rebuilt(bucket: Path, tmp_path: Path) -> None:
    with open_engine(tmp_path / "x", tier=bucket.as_uri()) as engine:
        assert isinstance(engine.tier, Tier)
        assert engine.tier.lost() == ()
        (name,) = engine.tier.logs()
        with pytest.raises(ConfigError, match="has a manifest"):
            engine.tier.rebuild(name)


def test_the_previous_writer_is_stopped(bucket: Path, tmp_path: Path) -> None:
    clock = ManualClock()
    with open_engine(tmp_path / "b", tier=bucket.as_uri(), env=Env(clock=clock)) as engine:
        fill(engine, 1)
        lose_manifests(bucket)
        rebuilt(bucket, tmp_path)
        clock.advance_ms(2 * WARM_HEAD_MS)
        with pytest.raises((FencedEpochError, CorruptManifestError)):
            fill(engine, 1)


def test_a_log_without_footers_is_reported(bucket: Path, tmp_path: Path) -> None:
    lose_manifests(bucket)
    for path in bucket.rglob("segments/*"):
        path.write_bytes(b"")
    with pytest.raises(StorageError, match="nothing can be rebuilt"):
        rebuilt(bucket, tmp_path)


def test_the_command_reports_and_rebuilds(bucket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lose_manifests(bucket)
    for arguments in (["--dry-run"], []):
        assert run(["rebuild", bucket.as_uri(), *arguments, "--json"]) == 0
        (row,) = printed_items(capsys)
        assert (row["topic"], row["end_offset"], row["segments"]) == ("t", 5, 5)
    assert run(["rebuild", bucket.as_uri(), "--json"]) == 0
    assert capsys.readouterr().out == ""
    assert run(["rebuild", bucket.as_uri(), "--topic", "t"]) == 0
    assert run(["rebuild", bucket.as_uri(), "--topic", "u"]) == 2
    assert "there is no topic u" in capsys.readouterr().err


def interrupt_rebuild(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose the manifests, and interrupt a rebuild after its first commit, of two segments."""
    lose_manifests(bucket)
    monkeypatch.setattr("stratalog.tier.upkeep.manifest_rebuild.PAGE_ITEMS", 2)
    add, calls = TierLog.add_rebuilt, [0]

    def interrupted(self: TierLog, *arguments: Any, **keywords: Any) -> None:
        calls[0] += 1
        if calls[0] == 2:
            raise KeyboardInterrupt
        add(self, *arguments, **keywords)

    monkeypatch.setattr(TierLog, "add_rebuilt", interrupted)
    assert run(["rebuild", bucket.as_uri()]) == 130


def test_a_rebuild_that_was_interrupted_between_two_commits_continues(
    bucket: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = records(bucket)
    interrupt_rebuild(bucket, monkeypatch)
    assert records(bucket) == before[:2]
    capsys.readouterr()
    assert run(["rebuild", bucket.as_uri(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["segments"] == 5
    assert records(bucket) == before
    assert run(["rebuild", bucket.as_uri(), "--json"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("topics", [None, ["t"]])
def test_a_log_is_not_attached_before_its_rebuild_is_complete(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topics: list[str] | None
) -> None:
    interrupt_rebuild(bucket, monkeypatch)
    with pytest.raises(AttachError, match="run `stratalog rebuild "):
        open_engine(tmp_path / "c", tier=bucket.as_uri(), attach=topics or True)
    assert run(["rebuild", bucket.as_uri()]) == 0
    with open_engine(tmp_path / "c", tier=bucket.as_uri(), attach=topics or True) as engine:
        assert engine.log("t", 0).offsets().log_end == 5


def test_a_log_is_not_restored_before_its_rebuild_is_complete(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_rebuild(bucket, monkeypatch)
    for dry_run in (True, False):
        with pytest.raises(AttachError, match="run `stratalog rebuild "):
            restore(bucket.as_uri(), tmp_path / "c", dry_run=dry_run)
    assert run(["rebuild", bucket.as_uri()]) == 0
    (restored_log,) = restore(bucket.as_uri(), tmp_path / "c")
    assert restored_log.log_end == 5


def test_a_bulk_writer_takes_over_no_log_before_its_rebuild_is_complete(
    bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(records(bucket))
    interrupt_rebuild(bucket, monkeypatch)
    with WriteTarget(bucket.as_uri(), take_over=True).open() as writer:
        with pytest.raises(EngineAheadError, match="run `stratalog rebuild`"):
            writer.check("t")
        assert run(["rebuild", bucket.as_uri()]) == 0
        writer.refresh()
        with writer.stage(TopicPartition("t", 0)) as stage:
            stage.add(RecordColumns.from_records([Record(value=b"v")]))
            staged_segments = stage.finish()
        writer.append(TopicPartition("t", 0), staged_segments)
    assert len(records(bucket)) == before + 1


def test_a_bulk_writer_does_not_create_a_topic_again_whose_manifests_are_lost(tmp_path: Path) -> None:
    """The topic would get the id of the lost one, and ``rebuild`` would find a manifest."""
    bucket = tmp_path / "bucket"
    bucket.mkdir()

    def write() -> None:
        with WriteTarget(bucket.as_uri()).open() as writer:
            writer.create_topic("t", 1)
            with writer.stage(TopicPartition("t", 0)) as stage:
                stage.add(RecordColumns.from_records([Record(value=b"v")]))
                staged_segments = stage.finish()
            writer.append(TopicPartition("t", 0), staged_segments)

    write()
    lose_manifests(bucket)
    with pytest.raises(StorageError, match=r"is lost.*run `stratalog rebuild"):
        write()
    assert run(["rebuild", bucket.as_uri()]) == 0
    assert len(records(bucket)) == 1


def test_a_log_is_attached_after_a_rebuild_that_left_out_a_later_object(bucket: Path, tmp_path: Path) -> None:
    """The left-out object begins at the end of the rebuilt log, and looks like a segment that is not committed yet."""
    other_bucket = tmp_path / "other"
    other_bucket.mkdir()
    with open_engine(tmp_path / "a", tier=other_bucket.as_uri()) as engine:  # the fenced writer, whose epoch is lower
        fill(engine, 4)
    for path in other_bucket.rglob("segments/00000000000000000006-0-*"):
        shutil.copy(path, next(bucket.glob("*/0/segments")) / path.name)
    lose_manifests(bucket)
    assert run(["rebuild", bucket.as_uri()]) == 1
    with open_engine(tmp_path / "c", tier=bucket.as_uri(), attach=True) as engine:
        assert engine.log("t", 0).offsets().log_end == 5


def test_a_partition_without_a_manifest_is_not_attached_as_an_empty_log(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with open_engine(tmp_path / "a", tier=bucket.as_uri()) as engine:
        engine.create_topic("t", partitions=2)
        fill(engine, 2)
        engine.log("t", 1).append([Record(value=b"v")])
        engine.log("t", 1).roll()
        engine.offload()
    (folder,) = bucket.glob("*/1/manifest")
    shutil.rmtree(folder)
    with pytest.raises(AttachError, match="t-1"):
        open_engine(tmp_path / "b", tier=bucket.as_uri(), attach=True)
    assert run(["rebuild", bucket.as_uri()]) == 0
    with open_engine(tmp_path / "b", tier=bucket.as_uri(), attach=True) as engine:
        assert [engine.log("t", partition).offsets().log_end for partition in range(2)] == [2, 1]


def test_a_manifest_that_is_damaged_is_no_lost_one(bucket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    max(bucket.glob("*/0/manifest/*")).write_bytes(b"{}")
    assert run(["rebuild", bucket.as_uri(), "--json"]) == 0
    assert capsys.readouterr().out == ""
