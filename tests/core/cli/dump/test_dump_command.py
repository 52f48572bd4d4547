"""``stratalog dump`` of logs: batches, records, control records, and damage."""

from __future__ import annotations

import io
import sys
import tracemalloc
import uuid
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from crc32c import crc32c

from command_runs import RunCommand, run_command
from stratalog import Record, open_engine
from stratalog.cli.app import run
from stratalog.cli.dump import sheet
from stratalog.model.messages.control import (
    ControlRecord,
    ControlType,
    EndMarker,
    Endpoint,
    KraftVersion,
    KraftVoter,
    KraftVoters,
    LeaderChange,
    QuorumVoter,
    SnapshotFooter,
    SnapshotHeader,
    control_key,
)
from stratalog.segment.components import Components
from stratalog.segment.control_batches import control_batch
from stratalog.spi.formats import BatchHeader

Item = dict[str, Any]
STAMP = 1_700_000_000_000
LOG = "00000000000000000000.log"
INDEX = "00000000000000000000.index"


@pytest.fixture
def dump(capsys: pytest.CaptureFixture[str]) -> RunCommand:
    return partial(run_command, capsys, "dump")


def records(count: int, first: int = 0) -> list[Record]:
    return [
        Record(timestamp_ms=STAMP + number, key=b"k%d" % number, value=b"v%d" % number)
        for number in range(first, first + count)
    ]


def encoded(components: Components, magic: int, batch_records: list[Record], base: int = 0, codec: str = "") -> bytes:
    form = components.formats.of(magic, "", 0)
    named_codec = components.codecs.by_name(codec) if codec else None
    return bytes(form.encode(batch_records, BatchHeader(base_offset=base), named_codec, None))


def written(tmp_path: Path, *batches: bytes, name: str = LOG) -> Path:
    path = tmp_path / name
    path.write_bytes(b"".join(batches))
    return path


# --- batches and records -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["", "gzip", "zstd"])
def test_a_batch_and_its_records(dump: RunCommand, tmp_path: Path, components: Components, codec: str) -> None:
    data = encoded(components, 2, records(3), base=7, codec=codec)
    (batch,) = dump(written(tmp_path, data, name="00000000000000000005.log"), "--json", "--values").items
    assert batch["kind"] == "batch"
    assert (batch["base_offset"], batch["last_offset"], batch["count"]) == (7, 9, 3)
    assert (batch["position"], batch["size_bytes"], batch["magic"], batch["valid"]) == (0, len(data), 2, True)
    assert batch["codec"] == (codec or "none")
    assert batch["timestamp_type"] == "CreateTime"
    assert batch["crc"] == int.from_bytes(data[17:21], "big")
    uncompressed = encoded(components, 2, records(3), base=7)
    assert batch.get("uncompressed_bytes") == (len(uncompressed) - 61 if codec else None)
    assert [
        (record["offset"], record["timestamp_ms"], record["key"], record["value"], record["headers"])
        for record in batch["records"]
    ] == [(7 + number, STAMP + number, f"k{number}", f"v{number}", []) for number in range(3)]


def test_a_count_ends_each_log_and_each_index(dump: RunCommand, tmp_path: Path, components: Components) -> None:
    batches = [encoded(components, 2, records(2), base=2 * number) for number in range(3)]
    written(tmp_path, *batches, bytes(99))  # zeros at the end, which are damage
    written(tmp_path, (5).to_bytes(4, "big"), bytes(4), (9).to_bytes(4, "big"), (80).to_bytes(4, "big"), name=INDEX)
    dumped = dump(tmp_path / LOG, tmp_path / INDEX, "--json", "--deep", "-c", "1")
    assert dumped.code == 0
    assert [(item["kind"], item.get("count"), item.get("position")) for item in dumped.items] == [
        ("batch", 2, 0),
        ("offset_entry", None, 0),
    ]
    assert dump(tmp_path / LOG, "--json", "--count", "4").code == 1


@pytest.mark.parametrize("magic", [0, 1])
def test_a_wrapper_shows_the_messages_in_it(
    dump: RunCommand, tmp_path: Path, components: Components, magic: int
) -> None:
    messages = [encoded(components, magic, [record], base=0) for record in records(3)]
    wrapper = encoded(components, magic, records(3), base=4, codec="gzip")
    ended = dump(written(tmp_path, wrapper), "--json", "--deep")
    (batch,) = ended.items
    assert (batch["base_offset"], batch["last_offset"], batch["count"]) == (None, 6, None)
    assert batch["uncompressed_bytes"] == sum(map(len, messages))
    assert [record["offset"] for record in batch["records"]] == [4, 5, 6]
    assert [record["inner_size_bytes"] for record in batch["records"]] == [len(message) for message in messages]
    assert [record["inner_position"] for record in batch["records"]] == [0, len(messages[0]), 2 * len(messages[0])]
    assert [record["crc"] for record in batch["records"]] == [int.from_bytes(m[12:16], "big") for m in messages]
    assert all(record["valid"] and record["inner_magic"] == magic for record in batch["records"])
    people = dump(tmp_path / LOG, "--deep").lines
    assert [line.split()[:2] for line in people if line.startswith("|")] == [["|", "4"], ["|", "5"], ["|", "6"]]


def test_a_message_with_a_bad_crc_inside_a_wrapper_is_reported(
    dump: RunCommand, tmp_path: Path, components: Components
) -> None:
    """The wrapper's CRC covers the compressed bytes and is correct.

    Like Kafka's tool, stratalog also checks the CRC of each message inside.
    """
    messages = bytearray(encoded(components, 1, records(3)))
    size = len(messages) // 3
    for number in range(3):
        messages[number * size : number * size + 8] = number.to_bytes(8, "big")
    messages[2 * size - 1] ^= 1  # in the value of the second message
    codec = components.codecs.by_name("gzip")
    outer_record = Record(timestamp_ms=STAMP, value=codec.compress(messages, level=None, magic=1))
    wrapper = bytearray(encoded(components, 1, [outer_record], base=2))
    wrapper[17] |= codec.id
    wrapper[12:16] = crc32(wrapper[16:]).to_bytes(4, "big")
    ended = dump(written(tmp_path, bytes(wrapper)), "--json", "--deep")
    assert ended.code == 1
    batch, corrupt = ended.items
    assert batch["valid"]
    assert [record["valid"] for record in batch["records"]] == [True, False, True]
    assert "offset 1 inside the wrapper has a bad CRC" in corrupt["corrupt"]
    assert "BAD CRC" in dump(tmp_path / LOG, "--deep").out


def test_formats_may_be_mixed(dump: RunCommand, tmp_path: Path, components: Components) -> None:
    log = written(
        tmp_path,
        encoded(components, 0, records(1)),
        encoded(components, 1, records(1), 1),
        encoded(components, 2, records(1), 2),
    )
    assert [item["magic"] for item in dump(log, "--json").items] == [0, 1, 2]
    assert [line.split()[2:4] for line in dump(log).lines[2:]] == [["0", "0"], ["1", "1"], ["2", "2"]]


@pytest.mark.parametrize(
    ("value", "style", "said", "shown"),
    [
        (None, (), {"value": None}, "null"),
        (b"", (), {"value": ""}, '""'),
        (b"null", (), {"value": "null"}, '"null"'),
        ("é\n\t".encode(), (), {"value": "é\n\t"}, r'"é\n\t"'),
        (b"\0\1", (), {"value_base64": "AAE="}, "0x0001"),
        (b"\xff", (), {"value_base64": "/w=="}, "0xff"),
        (b"\0\1", ("--decoder", "text"), {"value": "\0\1"}, r'"\u0000\u0001"'),
        (b"\xff", ("--decoder", "text"), {"value_base64": "/w=="}, "0xff"),
        (b"ab", ("--decoder", "hex"), {"value_hex": "6162"}, "0x6162"),
        (b"a" * 5000, (), {"value": "a" * 5000}, f'"{"a" * 5000}"'),
        (b"\xff" * 5000, ("--decoder", "hex"), {"value_hex": "ff" * 5000}, f"0x{'ff' * 5000}"),
    ],
)
def test_values_of_different_types_stay_distinct(
    dump: RunCommand,
    tmp_path: Path,
    components: Components,
    value: bytes | None,
    style: tuple[str, ...],
    said: Item,
    shown: str,
) -> None:
    record = Record(timestamp_ms=STAMP, key=None, value=value, headers=(("h", value), ("h", None)))
    log = written(tmp_path, encoded(components, 2, [record]))
    dumped_record = dump(log, "--json", *(style or ("--values",))).items[0]["records"][0]
    assert {
        name: dumped_record[name] for name in dumped_record if name.startswith("value") and name != "value_size"
    } == said
    assert dumped_record["headers"] == [{"key": "h", **said}, {"key": "h", "value": None}]
    assert dumped_record["header_keys"] == ["h", "h"]
    people = dump(log, *(style or ("--values",))).lines
    assert people[-1] == f"| 0  2023-11-14T22:13:20.000Z  null = {shown}  h: {shown}  h: null"


def test_sizes_alone_are_shown_without_values(dump: RunCommand, tmp_path: Path, components: Components) -> None:
    record = Record(timestamp_ms=-1, key=b"key", value=None, headers=(("a", b"1"), ("b", None)))
    log = written(tmp_path, encoded(components, 2, [record]))
    dumped_record = dump(log, "--json", "--deep").items[0]["records"][0]
    assert (dumped_record["key_size"], dumped_record["value_size"], dumped_record["header_keys"]) == (3, -1, ["a", "b"])
    assert "key" not in dumped_record
    assert dump(log, "--deep").lines[-1] == "| 0  -  key 3 B  value null  headers a, b"


CONTROLS: list[tuple[ControlRecord, Item]] = [
    (EndMarker(ControlType.COMMIT, 5), {"type": "COMMIT", "coordinator_epoch": 5}),
    (EndMarker(ControlType.ABORT, 6), {"type": "ABORT", "coordinator_epoch": 6}),
    (
        LeaderChange(
            leader_id=1,
            voters=(QuorumVoter(voter_id=1), QuorumVoter(voter_id=2)),
            granting_voters=(QuorumVoter(voter_id=2),),
        ),
        {
            "type": "LEADER_CHANGE",
            "leader_id": 1,
            "version": 0,
            "voters": [{"voter_id": 1, "directory_id": None}, {"voter_id": 2, "directory_id": None}],
            "granting_voters": [{"voter_id": 2, "directory_id": None}],
        },
    ),
    (
        SnapshotHeader(last_contained_log_timestamp_ms=STAMP),
        {"type": "SNAPSHOT_HEADER", "last_contained_log_timestamp_ms": STAMP},
    ),
    (SnapshotFooter(), {"type": "SNAPSHOT_FOOTER"}),
    (KraftVersion(kraft_version=1), {"type": "KRAFT_VERSION", "kraft_version": 1}),
    (
        KraftVoters(
            voters=(
                KraftVoter(
                    voter_id=3,
                    directory_id=uuid.UUID(int=1),
                    endpoints=(Endpoint(name="c", host="h", port=9093),),
                    min_version=0,
                    max_version=1,
                ),
            )
        ),
        {
            "type": "KRAFT_VOTERS",
            "voters": [
                {
                    "voter_id": 3,
                    "directory_id": "AAAAAAAAAAAAAAAAAAAAAQ",
                    "endpoints": [{"name": "c", "host": "h", "port": 9093}],
                    "min_version": 0,
                    "max_version": 1,
                }
            ],
        },
    ),
]


@pytest.mark.parametrize(("control", "said"), CONTROLS, ids=[said["type"] for _, said in CONTROLS])
def test_control_records(
    dump: RunCommand, tmp_path: Path, components: Components, control: ControlRecord, said: Item
) -> None:
    data = control_batch(components.formats.of(2, "", 0), control, timestamp_ms=STAMP, leader_epoch=3)
    log = written(tmp_path, bytes(data))
    (shallow,) = dump(log, "--json").items
    assert (shallow["control"], shallow["control_record"]) == (True, said)
    (deep,) = dump(log, "--json", "--values").items
    assert [record["control_record"] for record in deep["records"]] == [said]
    assert dump(log).lines[-1].count(said["type"]) == 1
    assert dump(log, "--deep").lines[-1].startswith(f"| 0  2023-11-14T22:13:20.000Z  {said['type']}")


def test_unknown_and_malformed_control_records_are_shown_or_corrupt(
    dump: RunCommand, tmp_path: Path, components: Components
) -> None:
    form = components.formats.of(2, "", 0)
    control_records = [
        Record(timestamp_ms=STAMP, key=b"\0\0\0\x63", value=b""),
        Record(timestamp_ms=STAMP, key=control_key(ControlType.COMMIT), value=b"\0"),
        Record(timestamp_ms=STAMP, key=b"\0", value=b"\0"),
    ]
    log = written(tmp_path, bytes(form.encode(control_records, BatchHeader(control=True), None, None)))
    ended = dump(log, "--json", "--deep")
    assert ended.code == 1
    batch, corrupt = ended.items
    assert [record["control_record"]["type"] for record in batch["records"]] == [99, None, None]
    assert "offset 1 cannot be read" in corrupt["corrupt"]
    assert "and 1 more" in corrupt["corrupt"]
    assert "control type 99" in dump(log, "--deep").out


def test_special_properties_of_a_batch_are_shown(dump: RunCommand, tmp_path: Path, components: Components) -> None:
    form = components.formats.of(2, "", 0)
    header = BatchHeader(producer_id=9, producer_epoch=2, base_sequence=(1 << 31) - 1, transactional=True)
    log = written(tmp_path, bytes(form.encode(records(2), header, None, None)))
    batch_line = dump(log).lines[-1]
    assert "producer 9/2, sequence 2147483647..0, transactional" in batch_line
    item = dump(log, "--json", "--deep").items[0]
    assert (item["base_sequence"], item["last_sequence"], item["transactional"]) == (2147483647, 0, True)
    assert [record["sequence"] for record in item["records"]] == [2147483647, 0]


# --- damage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [(), ("--deep",), ("--values",)])
def test_everything_before_the_damage_is_shown(
    dump: RunCommand, tmp_path: Path, components: Components, form: tuple[str, ...]
) -> None:
    batches = [encoded(components, 2, records(2), base=2 * number) for number in range(4)]
    sound_items = dump(written(tmp_path, *batches), "--json", *form).items
    position = len(batches[0]) + len(batches[1])
    damaged = bytearray(b"".join(batches))
    damaged[position + 65] ^= 1
    log = written(tmp_path, bytes(damaged))
    ended = dump(log, "--json", *form)
    assert ended.code == 1
    *readable_items, corrupt = ended.items
    assert readable_items == sound_items[:2]
    assert (corrupt["kind"], corrupt["position"]) == ("corrupt", position)
    assert corrupt["bytes_not_shown"] == len(damaged) - position
    assert corrupt["batch"] == {
        name: False if name == "valid" else value
        for name, value in sound_items[2].items()
        if name not in {"file", "kind", "records"}
    }
    people = dump(log, *form)
    assert people.code == 1
    assert "DAMAGED" in people.out
    assert f"file={log} position={position}" in people.err


def test_a_cut_and_a_tail_of_zeros(dump: RunCommand, tmp_path: Path, components: Components) -> None:
    batch = encoded(components, 2, records(1))
    items = dump(written(tmp_path, batch, batch[:30], name="00000000000000000000.log"), "--json").items
    assert [item["kind"] for item in items] == ["batch", "corrupt"]
    assert items[1]["bytes_not_shown"] == 30
    zeros = dump(written(tmp_path, batch, bytes(3 << 20)), "--json")
    assert (zeros.code, [item["kind"] for item in zeros.items]) == (1, ["batch", "corrupt"])
    assert zeros.items[1]["only_zeros"] is True
    assert zeros.items[1]["position"] == len(batch)


def test_records_that_do_not_fit_their_batch_leave_the_next_batch_readable(
    dump: RunCommand, tmp_path: Path, components: Components
) -> None:
    batch = bytearray(encoded(components, 2, records(3)))
    batch[57:61] = (4).to_bytes(4, "big")  # one more than the number of records
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    log = written(tmp_path, bytes(batch), encoded(components, 2, records(1), base=9))
    ended = dump(log, "--json", "--deep")
    assert ended.code == 1
    assert [item["kind"] for item in ended.items] == ["batch", "corrupt", "batch"]
    assert ended.items[1]["position"] == 0
    assert ended.items[2]["base_offset"] == 9
    assert dump(log, "--json").code == 0, "headers are sound"


@pytest.mark.long
def test_a_batch_that_cannot_be_unpacked_leaves_the_next_one_readable(
    dump: RunCommand, tmp_path: Path, components: Components
) -> None:
    """The batches have a codec that does not exist, and records that are larger than the limit after decompression."""
    strange = bytearray(encoded(components, 2, records(1)))
    strange[22] |= 7
    strange[17:21] = crc32c(bytes(strange[21:])).to_bytes(4, "big")
    bomb = encoded(components, 2, [Record(timestamp_ms=STAMP, value=bytes(1 << 20))] * 300, base=1, codec="zstd")
    log = written(tmp_path, bytes(strange), bomb, encoded(components, 2, records(1), base=400))
    ended = dump(log, "--json", "--deep")
    assert ended.code == 1
    corrupt_items = [item for item in ended.items if item["kind"] == "corrupt"]
    assert [item["position"] for item in corrupt_items] == [0, len(strange)]
    assert all(str(log) in item["corrupt"] for item in corrupt_items)
    assert [item["last_offset"] for item in ended.items if item["kind"] == "batch"] == [0, 300, 400]
    assert ended.items[0]["codec"] == "unknown (7)"


# --- files -------------------------------------------------------------------------------------------------------


def test_the_next_file_follows_whatever_is_wrong_with_one(
    dump: RunCommand, tmp_path: Path, components: Components
) -> None:
    sound_log = written(tmp_path, encoded(components, 2, records(1)))
    damaged_log = written(tmp_path, b"x" * 40, name="00000000000000000001.log")
    ended = dump(damaged_log, sound_log, "--json")
    assert ended.code == 1
    assert [Path(item["file"]) for item in ended.items] == [damaged_log, sound_log]
    missing = dump(tmp_path / "nothing.log", sound_log, tmp_path / "what", "--json")
    assert missing.code == 2
    assert [Path(item["file"]) for item in missing.items] == [sound_log]
    assert "there is no file" in missing.err
    assert "nothing.log" in missing.err
    assert str(tmp_path / "what") in missing.err


@pytest.mark.parametrize("suffix", [".deleted", ".cleaned", ".swap"])
def test_files_that_are_set_aside(dump: RunCommand, tmp_path: Path, components: Components, suffix: str) -> None:
    log = written(tmp_path, encoded(components, 2, records(1), base=12), name=f"00000000000000000010.log{suffix}")
    assert dump(log, "--json").items[0]["base_offset"] == 12


def test_names_without_a_kind_are_refused(dump: RunCommand, tmp_path: Path, components: Components) -> None:
    log = written(tmp_path, encoded(components, 2, records(1), base=1 << 40), name="copy of something")
    without_kind = dump(log)
    assert without_kind.code == 2
    assert "--kind" in without_kind.err
    assert dump(log, "--kind", "log", "--json").items[0]["base_offset"] == 1 << 40
    below_base = dump(log, "--kind", "log", "--base-offset", (1 << 40) + 1)
    assert below_base.code == 1, "a segment has no offset below its base"
    index = tmp_path / "an index"
    index.write_bytes(bytes.fromhex("0000000500001068"))
    entries = dump(index, "--kind", "index", "--base-offset", 100, "--json").items
    assert [(item["offset"], item["position"]) for item in entries] == [(105, 4200)]


def test_a_device_is_not_a_missing_file(dump: RunCommand) -> None:
    ended = dump("/dev/null")
    assert (ended.code, ended.err) == (2, "error: /dev/null is not a regular file\n")


def test_links_are_followed(dump: RunCommand, tmp_path: Path, components: Components) -> None:
    (tmp_path / "elsewhere").mkdir()
    target = written(tmp_path / "elsewhere", encoded(components, 2, records(1)), name="target")
    (tmp_path / LOG).symlink_to(target)
    assert len(dump(tmp_path / LOG, "--json").items) == 1


def test_a_folder_is_shown_in_order(dump: RunCommand, tmp_path: Path) -> None:
    with open_engine(tmp_path / "data") as engine:
        engine.create_topic("t", config={"segment.bytes": 400})
        for number in range(6):
            engine.log("t", 0).append(records(2, number))
    folder = tmp_path / "data" / "t-0"
    (folder / "notes.txt").write_text("mine")
    ended = dump(folder)
    assert ended.code == 0
    titles = [line.split(": ")[0] for line in ended.lines if line.startswith(str(folder))]
    names = [Path(title).name for title in titles]
    assert set(names) == {path.name for path in folder.iterdir()} - {"notes.txt"}
    assert names[:2] == ["partition.metadata", "leader-epoch-checkpoint"]
    bases = [name for name in names if name.endswith(".log")]
    assert len(bases) > 1
    assert bases == sorted(bases)
    assert names.index(bases[1].replace(".log", ".snapshot")) == names.index(bases[1]) - 1
    assert "notes.txt" in ended.err
    parent_dump = dump(tmp_path / "data")
    assert "stratalog-topics.json" in parent_dump.out
    assert "1 folders" in parent_dump.err


# --- text output -------------------------------------------------------------------------------------------------


def test_rows_fit_a_narrow_terminal(
    dump: RunCommand, tmp_path: Path, components: Components, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = components.formats.of(2, "", 0)
    header = BatchHeader(base_offset=1 << 20, producer_id=9, producer_epoch=2, base_sequence=5, transactional=True)
    log = written(tmp_path, bytes(form.encode(records(3), header, None, None)))
    wide = dump(log)
    monkeypatch.setattr(sheet, "width", lambda: 80)
    narrow = dump(log)
    assert all(len(line) <= 80 for line in narrow.lines[1:])
    assert "crc" in wide.out
    assert "crc" not in narrow.out
    for text in ("1048576..1048578", "producer 9/2, sequence 5..7, transactional"):
        assert text in wide.out
        assert text in narrow.out
    monkeypatch.setattr(sheet, "width", lambda: 40)
    pairs = dump(log)
    assert all(len(line) <= 40 for line in pairs.lines[1:])
    assert "offsets=1048576..1048578" in pairs.out


@pytest.mark.parametrize("form", [("--json", "--values"), ("--values",), ()])
@pytest.mark.long
def test_memory_does_not_grow_with_the_file(tmp_path: Path, components: Components, form: tuple[str, ...]) -> None:
    batch = encoded(components, 2, [Record(timestamp_ms=STAMP, value=bytes(2000)) for _ in range(2000)], codec="zstd")
    many = bytearray()
    for number in range(16):
        many += (number * 2000).to_bytes(8, "big") + batch[8:]
    log = written(tmp_path, bytes(many))
    del many
    ended = _peak_of(["dump", str(log), *form])
    assert ended < 24 << 20, "64 MB of records pass"


def _peak_of(arguments: list[str]) -> int:
    """Return the peak memory of a command whose output is discarded, in bytes."""

    class Nowhere(io.TextIOBase):
        def write(self, text: str) -> int:
            return len(text)

    before, sys.stdout = sys.stdout, Nowhere()
    tracemalloc.start()
    try:
        assert run(arguments) == 0
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        sys.stdout = before
