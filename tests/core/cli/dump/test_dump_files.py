"""``stratalog dump`` of files other than logs: indexes, snapshots, small files, objects of a tier."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dump_runs import DumpRunner, rows, written
from stratalog import Record, open_engine
from stratalog.producers.snapshot import ProducerEntry, encode_snapshot
from stratalog.segment.extra_index_file import pack_extras
from stratalog.segment.section_file import Identity

STAMP = 1_700_000_000_000
TOPIC_ID = "ycPimMYYSL631dT2bPZDbA"


# --- indexes -----------------------------------------------------------------------------------------------------

OFFSETS = bytes.fromhex("00000005 00000000 00000013 00001068 00000032 000020d0")
TIMES = bytes.fromhex("0000018bcfe56800 00000005 0000018bcfe569f4 00000032")


def test_an_offset_index(dump_runner: DumpRunner, tmp_path: Path) -> None:
    code, items, people = dump_runner(written(tmp_path, "00000000000000000100.index", OFFSETS))
    assert code == 0
    assert {item["kind"] for item in items} == {"offset_entry"}
    assert rows(items, "offset", "position") == [(105, 0), (119, 4200), (150, 8400)]
    assert "119      4200" in people


def test_a_time_index(dump_runner: DumpRunner, tmp_path: Path) -> None:
    code, items, people = dump_runner(written(tmp_path, "00000000000000000100.timeindex.deleted", TIMES))
    assert code == 0
    assert {item["kind"] for item in items} == {"time_entry"}
    assert rows(items, "timestamp_ms", "offset") == [(STAMP, 105), (STAMP + 500, 150)]
    assert "2023-11-14T22:13:20.500Z     150" in people


def test_a_transaction_index(dump_runner: DumpRunner, tmp_path: Path) -> None:
    data = b"".join(
        (0).to_bytes(2, "big") + b"".join(number.to_bytes(8, "big") for number in entry)
        for entry in ((4000, 101, 121, 110), (5, 102, 130, 131))
    )
    code, items, _ = dump_runner(written(tmp_path, "00000000000000000100.txnindex", data))
    assert code == 0
    names = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
    assert rows(items, *names) == [(4000, 101, 121, 110), (5, 102, 130, 131)]


@pytest.mark.parametrize("name", ["00000000000000000100.index", "00000000000000000100.timeindex"])
def test_space_that_is_preallocated_is_no_damage(dump_runner: DumpRunner, tmp_path: Path, name: str) -> None:
    """The index of an active segment has the size ``segment.index.bytes``, also after a crash."""
    data, size = (OFFSETS, 8) if name.endswith(".index") else (TIMES, 12)
    code, items, people = dump_runner(written(tmp_path, name, data + bytes(size * 300_000)))
    assert code == 0
    assert [item["kind"] for item in items[-2:]] == [items[0]["kind"], "preallocated"]
    assert (items[-1]["position"], items[-1]["size_bytes"]) == (len(data), size * 300_000)
    assert f"{size * 300_000} bytes from position {len(data)} on are preallocated" in people
    code, items, _ = dump_runner(written(tmp_path, name, bytes(size * 10)))
    assert (code, [item["kind"] for item in items]) == (0, ["preallocated"])


@pytest.mark.parametrize(
    ("data", "good", "position", "said"),
    [
        (OFFSETS + OFFSETS[:8] + OFFSETS[16:], 3, 24, "offset 105 is out of order"),
        (OFFSETS + b"\0\1\1", 3, 24, "ends inside an entry"),
        (OFFSETS[8:] + OFFSETS[:8], 2, 16, "out of order"),
    ],
)
def test_entries_before_a_bad_one_are_shown(
    dump_runner: DumpRunner, tmp_path: Path, data: bytes, good: int, position: int, said: str
) -> None:
    code, items, people = dump_runner(written(tmp_path, "00000000000000000100.index", data))
    assert code == 1
    assert [item["kind"] for item in items] == ["offset_entry"] * good + ["corrupt"]
    assert items[-1]["position"] == position
    assert said in people


@pytest.mark.long
def test_a_large_index_is_read_in_pieces_and_compared_across_them(dump_runner: DumpRunner, tmp_path: Path) -> None:
    count = (1 << 20) // 8 + 5
    entries = [(number, number * 10) for number in range(1, count + 1)]
    data = b"".join(a.to_bytes(4, "big") + b.to_bytes(4, "big") for a, b in entries)
    path = written(tmp_path, "00000000000000000000.index", data)
    assert rows(dump_runner(path)[1], "offset", "position") == entries
    unsorted_path = written(tmp_path, "00000000000000000000.index", data[: 1 << 20] + data[(1 << 20) - 8 :])
    code, items, _ = dump_runner(unsorted_path)
    assert (code, len(items), items[-1]["position"]) == (1, (1 << 17) + 1, 1 << 20)


# --- small files -------------------------------------------------------------------------------------------------


def test_a_snapshot(dump_runner: DumpRunner, tmp_path: Path) -> None:
    entries = [ProducerEntry(4000, 3, 18, 120, 1, STAMP, 7, 95), ProducerEntry(1)]
    path = written(tmp_path, "00000000000000000121.snapshot", encode_snapshot(entries))
    code, items, people = dump_runner(path)
    assert code == 0
    assert rows(items, *ProducerEntry._fields) == [tuple(entry) for entry in entries]
    assert "2023-11-14T22:13:20.000Z" in people
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    code, items, people = dump_runner(written(tmp_path, path.name, bytes(data)))
    assert (code, [item["kind"] for item in items]) == (1, ["corrupt"])
    assert "CRC" in people


@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "log-start-offset-checkpoint",
        "cleaner-offset-checkpoint",
    ],
)
def test_offset_checkpoints(dump_runner: DumpRunner, tmp_path: Path, name: str) -> None:
    code, items, _ = dump_runner(written(tmp_path, name, b"0\n2\nb 0 7\na 12 9223372036854775807\n"))
    assert code == 0
    assert rows(items, "topic", "partition", "offset") == [("b", 0, 7), ("a", 12, (1 << 63) - 1)]
    assert dump_runner(written(tmp_path, name, b""))[:2] == (0, [])


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "stratalog-next-epoch"])
def test_leader_epochs(dump_runner: DumpRunner, tmp_path: Path, name: str) -> None:
    code, items, _ = dump_runner(written(tmp_path, name, b"0\n2\n0 0\n4 18\n"))
    assert (code, rows(items, "epoch", "start_offset")) == (0, [(0, 0), (4, 18)])


@pytest.mark.parametrize(
    ("data", "good", "position"),
    [
        (b"0\n3\nt 0 7\nt 1 x\nt 2 9\n", 1, 10),
        (b"0\n3\nt 0 7\nt 1 8\n", 2, 2),
        (b"0\n2\nt 0 7\nt 1\n", 1, 10),
        (b"1\n1\nt 0 7\n", 1, 0),
    ],
)
def test_lines_of_a_damaged_checkpoint(
    dump_runner: DumpRunner, tmp_path: Path, data: bytes, good: int, position: int
) -> None:
    code, items, _ = dump_runner(written(tmp_path, "replication-offset-checkpoint", data))
    assert code == 1
    assert [item["kind"] for item in items] == ["log_offset"] * good + ["corrupt"]
    assert items[-1]["position"] == position


def test_partition_metadata(dump_runner: DumpRunner, tmp_path: Path) -> None:
    content = f"version: 0\ntopic_id: {TOPIC_ID}".encode()
    code, items, _ = dump_runner(written(tmp_path, "partition.metadata", content))
    assert (code, rows(items, "key", "value")) == (0, [("version", "0"), ("topic_id", TOPIC_ID)])
    code, items, _ = dump_runner(written(tmp_path, "partition.metadata", content[:-3]))
    assert (code, items[-1]["kind"], items[-1]["position"]) == (1, "corrupt", 11)
    assert dump_runner(written(tmp_path, "partition.metadata", b""))[0] == 1


def test_meta_properties(dump_runner: DumpRunner, tmp_path: Path) -> None:
    text = b"#\n#Fri Nov 21 03:52:04 UTC 2026\nnode.id=1\nversion=1\ncluster.id=a\\:b\\u0041\nspace = x y\n"
    code, items, _ = dump_runner(written(tmp_path, "meta.properties", text))
    properties = [("node.id", "1"), ("version", "1"), ("cluster.id", "a:bA"), ("space", "x y")]
    assert (code, rows(items, "key", "value")) == (0, properties)
    code, items, people = dump_runner(written(tmp_path, "meta.properties", b"version=7\n"))
    assert (code, [item["kind"] for item in items]) == (1, ["property", "corrupt"])
    assert "version '7'" in people
    code, items, _ = dump_runner(written(tmp_path, "meta.properties", b"version=1\nnonsense\n"))
    assert (code, items[-1]["position"]) == (1, 10)


@pytest.mark.parametrize(
    ("data", "epoch"),
    [(b"", None), (b'{"version":0,"brokerEpoch":57}', 57), (b"nonsense", None), (b"[]", None)],
)
def test_a_clean_shutdown(dump_runner: DumpRunner, tmp_path: Path, data: bytes, epoch: int | None) -> None:
    """Only the existence of the clean shutdown file matters. Like Kafka, stratalog accepts any content."""
    code, items, _ = dump_runner(written(tmp_path, ".kafka_cleanshutdown", data))
    assert (code, rows(items, "broker_epoch")) == (0, [(epoch,)])


def test_the_topics_of_an_engine(dump_runner: DumpRunner, tmp_path: Path) -> None:
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("t", config={"segment.ms": 1000})
    path = tmp_path / "data" / "stratalog-topics.json"
    code, items, people = dump_runner(path)
    assert (code, rows(items, "topic", "config")) == (0, [("t", {"segment.ms": 1000})])
    assert items[0]["topic_id"] in people
    code, items, _ = dump_runner(written(tmp_path, path.name, path.read_bytes()[:-9]))
    assert (code, items[-1]["kind"]) == (1, "corrupt")


# --- tiers -------------------------------------------------------------------------------------------------------


@pytest.fixture
def bucket(tmp_path: Path, bucket: Path) -> Path:
    """Return a bucket with a tier of three segments."""
    config = {"segment.bytes": 1000, "index.interval.bytes": 100}
    with open_engine(tmp_path / "data", tier=bucket.as_uri()) as engine:
        engine.create_topic("t", config=config)
        log = engine.log("t", 0)
        for number in range(30):
            log.append([Record(timestamp_ms=STAMP + number, key=b"k%d" % number, value=b"v" * 20)])
        engine.offload()
    return bucket


def objects(bucket: Path, folder: str) -> list[Path]:
    return sorted(path for path in bucket.glob(f"*/0/{folder}/*") if path.is_file())


def test_a_segment_object(dump_runner: DumpRunner, bucket: Path) -> None:
    first, second, *_ = objects(bucket, "segments")
    code, items, people = dump_runner(first)
    assert code == 0
    head, *slices = items
    assert (head["kind"], head["topic"], head["base_offset"]) == ("tier_object", "t", 0)
    assert head["layout"] == "single@1"
    assert first.as_posix().endswith(head["key"])
    assert {item["kind"] for item in slices} == {"slice"}
    assert [item["slice"] for item in slices] == ["log", "index", "timeindex", "snapshot", "leader-epochs"]
    assert all(item["valid"] for item in slices)
    end = slices[-1]["position"] + slices[-1]["size_bytes"]
    assert sum(item["size_bytes"] for item in slices) == end < first.stat().st_size
    assert head["sha256"] in people
    assert dump_runner(second)[1][0]["base_offset"] == head["end_offset"]


def test_all_that_is_in_a_segment_object(dump_runner: DumpRunner, bucket: Path, tmp_path: Path) -> None:
    path = objects(bucket, "segments")[1]
    code, items, people = dump_runner(path, "--values")
    assert code == 0
    head = items[0]
    batches = [item for item in items if item["kind"] == "batch"]
    assert [batch["base_offset"] for batch in batches] == list(range(head["base_offset"], head["end_offset"]))
    assert [batch["records"][0]["key"] for batch in batches] == [f"k{batch['base_offset']}" for batch in batches]
    assert {item["file"] for item in batches} == {f"{path}#log"}
    local = tmp_path / "data" / "t-0" / f"{head['base_offset']:020}"
    for suffix, kind in ((".index", "offset_entry"), (".timeindex", "time_entry")):
        alone = dump_runner(local.with_name(local.name + suffix))[1]
        assert alone
        entries = [item for item in items if item["kind"] == kind]
        assert [{**item, "file": ""} for item in entries] == [{**item, "file": ""} for item in alone]
    assert rows([item for item in items if item["kind"] == "leader_epoch"], "epoch") == [(0,)]
    assert f"k{head['base_offset']}" in people


def test_an_object_that_was_taken_out_of_its_tier(dump_runner: DumpRunner, bucket: Path, tmp_path: Path) -> None:
    path = objects(bucket, "segments")[0]
    tier_items = dump_runner(path)[1]
    copy = tmp_path / path.name
    shutil.copy(path, copy)
    code, copy_items, _ = dump_runner(copy)
    assert code == 0
    assert [{**item, "file": ""} for item in copy_items] == [{**item, "file": ""} for item in tier_items]
    shutil.move(path, tmp_path / "renamed")
    assert dump_runner(tmp_path / "renamed", "--kind", "tier-object")[0] == 0
    second_object = objects(bucket, "segments")[0]
    shutil.copy(second_object, second_object.with_name(path.name))
    code, items, _ = dump_runner(second_object.with_name(path.name))
    assert (code, items[-1]["kind"]) == (1, "corrupt"), "an object that lies under another's key"


@pytest.mark.parametrize("part", ["log", "index", "leader-epochs"])
def test_a_slice_that_is_damaged(dump_runner: DumpRunner, bucket: Path, part: str) -> None:
    path = objects(bucket, "segments")[1]
    slices = [item for item in dump_runner(path)[1] if item["kind"] == "slice"]
    data = bytearray(path.read_bytes())
    place = next(item for item in slices if item["slice"] == part)
    data[place["position"] + place["size_bytes"] - 1] ^= 1
    path.write_bytes(data)
    code, items, people = dump_runner(path)
    assert code == 1
    assert [item["slice"] for item in items if item["kind"] == "slice" and not item["valid"]] == [part]
    assert "hash" in people
    code, deep, _ = dump_runner(path, "--deep")
    assert code == 1
    count = sum(item["kind"] == "batch" for item in deep)
    assert count == deep[0]["end_offset"] - deep[0]["base_offset"] - (part == "log"), "all good batches are shown"


def test_an_object_without_a_sound_footer(dump_runner: DumpRunner, bucket: Path) -> None:
    first, second, *_ = objects(bucket, "segments")
    first.write_bytes(first.read_bytes()[:-1])
    code, items, people = dump_runner(first)
    assert (code, [item["kind"] for item in items]) == (1, ["corrupt"])
    assert "no footer" in people
    data = bytearray(second.read_bytes())
    data[-30] ^= 1
    second.write_bytes(data)
    assert dump_runner(second)[0] == 1


def test_a_manifest_root(dump_runner: DumpRunner, bucket: Path, tmp_path: Path) -> None:
    path = objects(bucket, "manifest")[-1]
    code, items, people = dump_runner(path)
    assert code == 0
    head, *segments = items
    assert (head["kind"], head["version"], head["change"]) == ("manifest", int(path.name), "offload")
    assert head["entries"] == len(segments) == len(objects(bucket, "segments"))
    assert rows(segments, "base_offset") == [(segment["base_offset"],) for segment in segments]
    assert [segment["key"].rpartition("/")[2] for segment in segments] == [
        object_path.name for object_path in objects(bucket, "segments")
    ]
    assert head["commit_id"] in people
    shutil.copy(path, tmp_path / "root")
    code, copy_items, _ = dump_runner(tmp_path / "root", "--kind", "manifest")
    assert (code, copy_items[0]["sha256"]) == (0, head["sha256"])


@pytest.mark.parametrize("how", ["cut", "version", "topic", "list"])
def test_a_manifest_root_that_is_damaged(dump_runner: DumpRunner, bucket: Path, how: str) -> None:
    path = objects(bucket, "manifest")[-1]
    data = path.read_bytes()
    changed = {
        "cut": data[:-1],
        "version": data.replace(b'"version":', b'"version":1'),
        "topic": data.replace(b'"topic":"t"', b'"topic":"u"'),
        "list": b"[]",
    }[how]
    assert changed != data
    path.write_bytes(changed)
    code, items, _ = dump_runner(path)
    assert (code, [item["kind"] for item in items]) == (1, ["corrupt"])


# --- extra indexes -----------------------------------------------------------------------------------------------


def extra_file(tmp_path: Path, *, damaged: bool = False) -> Path:
    parts = pack_extras(Identity(0, 50, 4000, STAMP, 7), {"bloom@1": b"filter", "range@2": b"least"})
    data = bytearray(b"".join(parts))
    data[0] ^= damaged
    return written(tmp_path, "00000000000000000000.extra", bytes(data))


def test_extra_indexes(dump_runner: DumpRunner, tmp_path: Path) -> None:
    code, items, people = dump_runner(extra_file(tmp_path))
    assert code == 0
    assert {item["kind"] for item in items} == {"extra_index"}
    assert rows(items, "index", "position", "size_bytes", "valid") == [("bloom@1", 0, 6, True), ("range@2", 6, 5, True)]
    assert "extra indexes of the segment [0, 50), 4000 bytes" in people


def test_damaged_extra_indexes(dump_runner: DumpRunner, tmp_path: Path) -> None:
    code, items, people = dump_runner(extra_file(tmp_path, damaged=True))
    assert code == 1
    assert rows(items[:2], "index", "valid") == [("bloom@1", False), ("range@2", True)]
    assert "the CRC of bloom@1 is wrong" in people
    code, _, people = dump_runner(written(tmp_path, "00000000000000000100.extra", b"something else"))
    assert (code, "this is not a file of extra indexes" in people) == (1, True)
