"""``stratalog dump`` of the small files that only stratalog writes: notes, write marks, digests, and the tier cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dump_runs import DumpRunner, rows, written
from stratalog import Record, RecordColumns, TopicPartition, open_engine
from stratalog.cli.dump.kinds import identify, sort_files
from stratalog.model.names import (
    ATTACH_NOTE_FILE,
    MARKS_FILE,
    MOVED_FILE,
    RESTORE_NOTE_FILE,
    RESTORING_FILE,
    STAGED_PREFIX,
    TIER_NOTE_FILE,
)
from stratalog.tier.store.object_keys import quarantine_key, quarantined_key
from stratalog.writing import WriteMark, WriteTarget

LOG = TopicPartition("t", 0)
TOPIC = {
    "cleanup.policy": "compact",
    "segment.bytes": 2000,
    "min.cleanable.dirty.ratio": 0,
    "min.compaction.lag.ms": 0,
    "remote.storage.enable": False,
}
TIERED = {"segment.bytes": 1000, "local.retention.bytes": 1, "retention.ms": -1, "file.delete.delay.ms": 0}


@pytest.fixture
def place(tmp_path: Path, bucket: Path) -> Path:
    """Return a folder with files of all kinds that stratalog writes.

    It has a log that was compacted and bulk-written, a log in a tier, and a cache with parts of the tier.
    """
    config = {"tier.cache.dir": str(tmp_path / "cache"), "limits.chunk.cache.bytes": 0}
    with open_engine(tmp_path / "data", tier=bucket.as_uri(), config=config) as engine:
        engine.create_topic("t", config=TOPIC)
        engine.create_topic("tiered", config=TIERED)
        for topic in ("t", "tiered"):
            log = engine.log(topic, 0)
            for number in range(12):
                log.append([Record(timestamp_ms=number, key=b"k%d" % (number % 8), value=b"v" * 800)])
        engine.run_cleaner([LOG])
        engine.offload()
        engine.apply_retention()
        assert len(list(engine.log("tiered", 0).records())) == 12
    target = WriteTarget(str(tmp_path / "data"))
    with target.open() as writer:
        for number in range(2):
            with writer.stage(LOG) as stage:
                stage.add(RecordColumns.from_records([Record(timestamp_ms=1, key=b"b%d" % number, value=b"v")]))
                staged = stage.finish()
            if not number:
                writer.append(LOG, staged, WriteMark("nightly", 7))
    return tmp_path


def test_each_file_that_an_engine_writes_is_recognized(dump_runner: DumpRunner, place: Path) -> None:
    """In the directory, the cache and the tier, every file name is known, and no file is reported as damaged."""
    folders = sorted({path.parent for path in place.rglob("*") if path.is_file()})
    kinds = {file_kind.kind for path in place.rglob("*") if (file_kind := identify(path.name)) is not None}
    assert {"log", "digest", "marks", "tier-note", "cached", "tier-object", "manifest"} <= kinds
    for folder in folders:
        assert sort_files(path.name for path in folder.iterdir() if path.is_file())[1] == []
        code, items, people = dump_runner(folder)
        assert (code, "left out, because" in people) == (0, False), people
        assert items or all(path.stat().st_size == 0 for path in folder.iterdir() if path.is_file())


# --- notes about a tier ----------------------------------------------------------------------------------------------


def test_the_note_about_a_tier_beside_a_log(dump_runner: DumpRunner, place: Path) -> None:
    path = place / "data" / "tiered-0" / TIER_NOTE_FILE
    code, items, people = dump_runner(path)
    assert (code, [item["kind"] for item in items]) == (0, ["tier_note"])
    note = items[0]
    root = dump_runner(max(place.glob("bucket/tiered-*/0/manifest/*")))[1][0]
    for name in ("log_start", "end_offset", "segments", "high_watermark", "leader_epochs"):
        assert note[name] == root[name], name
    assert note["manifest_version"] == root["version"] > 0
    assert note["segments"] > 1
    assert f"manifest_version    {root['version']}" in people


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"segments": 77}, "has a wrong checksum"),
        ({"version": 2}, "version 2 is not supported"),
        ({"crc32": None}, "has a wrong checksum"),
    ],
)
def test_a_damaged_note_about_a_tier(
    dump_runner: DumpRunner, place: Path, changed: dict[str, object], said: str
) -> None:
    path = place / "data" / "tiered-0" / TIER_NOTE_FILE
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changed}))
    code, items, people = dump_runner(path)
    assert (code, [item["kind"] for item in items]) == (1, ["corrupt"])
    assert said in people


def test_the_note_of_the_first_directory_names_the_tier(dump_runner: DumpRunner, place: Path) -> None:
    code, items, people = dump_runner(place / "data" / TIER_NOTE_FILE)
    uri = (place / "bucket").as_uri()
    assert (code, rows(items, "kind", "version", "tier")) == (0, [("tier_note", 1, uri)])
    assert uri in people


# --- marks -----------------------------------------------------------------------------------------------------------


def test_marks_of_writers(dump_runner: DumpRunner, place: Path) -> None:
    path = place / "data" / "t-0" / MARKS_FILE
    code, items, _ = dump_runner(path)
    assert (code, rows(items, "kind", "writer", "number", "pending")) == (0, [("mark", "nightly", 7, False)])
    body = {**json.loads(path.read_bytes()), "pending": ["hourly", 3, 12, 15]}
    code, items, people = dump_runner(written(place, MARKS_FILE, json.dumps(body).encode()))
    assert code == 0
    names = ("writer", "number", "pending", "base_offset", "end_offset")
    assert rows(items, *names) == [("nightly", 7, False, None, None), ("hourly", 3, True, 12, 15)]
    assert "hourly" in people


@pytest.mark.parametrize("data", [b"{}", b"[]", b'{"version": 2}', b'{"version": 1, "marks": [["w", -1]]}', b"\0"])
def test_damaged_marks(dump_runner: DumpRunner, tmp_path: Path, data: bytes) -> None:
    code, items, _ = dump_runner(written(tmp_path, MARKS_FILE, data))
    assert (code, [item["kind"] for item in items]) == (1, ["corrupt"])


# --- notes of incomplete work ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [ATTACH_NOTE_FILE, RESTORE_NOTE_FILE])
def test_notes_of_an_attach_and_a_restore(dump_runner: DumpRunner, tmp_path: Path, name: str) -> None:
    body = {"version": 1, "tier": "s3://bucket", "logs": {"t-0": ["id", 3, "t-0", 20]}}
    code, items, people = dump_runner(written(tmp_path, name, json.dumps(body).encode()))
    assert (code, rows(items, "kind", "content")) == (0, [("note", body)])
    assert "s3://bucket" in people


@pytest.mark.parametrize("name", [RESTORING_FILE, MOVED_FILE])
def test_notes_without_content_count_by_their_existence(dump_runner: DumpRunner, tmp_path: Path, name: str) -> None:
    code, items, people = dump_runner(written(tmp_path, name, b""))
    assert (code, rows(items, "kind", "content")) == (0, [("note", {})])
    assert "(empty)" in people


@pytest.mark.parametrize(("data", "position"), [(b'{"a": 1 2}', 8), (b"[1]", 0), (b'{"a"', 4)])
def test_a_note_that_is_no_object(dump_runner: DumpRunner, tmp_path: Path, data: bytes, position: int) -> None:
    code, items, _ = dump_runner(written(tmp_path, ATTACH_NOTE_FILE, data))
    assert (code, items[-1]["kind"], items[-1]["position"]) == (1, "corrupt", position)


def test_a_repair_sets_files_aside_unchanged(place: Path) -> None:
    paths = list(place.glob("bucket/tiered-*/0/*/*"))
    assert paths
    for path in paths:
        kind = identify(path.name)
        assert kind is not None
        assert identify(quarantined_key("", path.name).rpartition("/")[2]) == kind
        note = identify(quarantine_key("", path.name).rpartition("/")[2])
        assert note is not None
        assert note.kind == "note"


# --- digests, staged records, the cache ------------------------------------------------------------------------------


def test_a_digest(dump_runner: DumpRunner, place: Path) -> None:
    path = min(place.glob("data/t-0/*.digest"))
    size_bytes = path.with_suffix(".log").stat().st_size
    code, items, people = dump_runner(path)
    assert (code, {item["kind"] for item in items}) == (0, {"digest_section"})
    assert all(item["valid"] for item in items)
    assert any(item["section"].startswith("keys@1") for item in items)
    assert f"{size_bytes} bytes" in people


def test_a_damaged_digest(dump_runner: DumpRunner, place: Path) -> None:
    path = min(place.glob("data/t-0/*.digest"))
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    code, items, _ = dump_runner(path)
    assert (code, items[0]["valid"], items[-1]["position"]) == (1, False, items[0]["position"])
    for size_bytes in (0, 79, len(data) - 1):
        path.write_bytes(data[:size_bytes])
        code, items, people = dump_runner(path)
        assert (code, len(items), "this is not a digest file" in people) == (1, 1, True)


def test_records_that_are_not_published_yet(dump_runner: DumpRunner, place: Path) -> None:
    (path,) = place.glob(f"data/t-0/{STAGED_PREFIX}*")
    code, items, _ = dump_runner(path, "--values")
    assert (code, [record["key"] for item in items for record in item["records"]]) == (0, ["b1"])


def test_a_file_of_the_cache(dump_runner: DumpRunner, place: Path) -> None:
    objects = {
        path.relative_to(place / "bucket").as_posix(): path for path in place.glob("bucket/tiered-*/0/segments/*")
    }
    paths = [path for path in place.glob("cache/*/*") if path.parent.name == "chunks"]
    assert paths
    for path in paths:
        code, items, _ = dump_runner(path)
        assert (code, len(items)) == (0, 1)
        chunk = items[0]
        start, end = map(int, chunk["item"].split("-"))
        assert chunk["tier"] == (place / "bucket").as_uri()
        copy = path.read_bytes()[chunk["position"] :]
        assert copy == objects[chunk["key"]].read_bytes()[start:end]
        assert len(copy) == chunk["size_bytes"]


@pytest.mark.parametrize("position", [0, 9, 13, 40, -1])
@pytest.mark.long
def test_a_damaged_file_of_the_cache(dump_runner: DumpRunner, place: Path, position: int) -> None:
    path = min(place.glob("cache/chunks/*"))
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    for changed in (data, data[:position], b""):
        path.write_bytes(changed)
        code, items, _ = dump_runner(path)
        assert (code, [item["kind"] for item in items]) == (1, ["corrupt"])
