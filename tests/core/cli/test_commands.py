"""The command line: its output as text and as JSON, and its exit codes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from command_runs import RunCommand
from own_command import running_command
from stratalog import Record, open_engine, open_reader
from stratalog.cli.app import run
from stratalog.client.partitioner import partition_of_key
from stratalog.errors import LogDirOfflineError, PluginImportError
from stratalog.model.offsets import Durability, Isolation
from stratalog.registry.resolve import Offer, OfferTable
from stratalog.spi import Command

SMALL = {"segment.bytes": 1500, "index.interval.bytes": 100, "file.delete.delay.ms": 0}


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    with open_engine(folder) as engine:
        engine.create_topic("orders", partitions=2, config=SMALL)
        for partition in range(2):
            for number in range(60):
                stamp = 1_700_000_000_000 + number
                engine.log("orders", partition).append(
                    [Record(timestamp_ms=stamp, key=b"k%d" % number, value=b"x" * 40, headers=(("h", b"\xff"),))]
                )
    return folder


def test_topics_are_created_listed_and_described(stratalog: RunCommand, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    created = stratalog(
        "topics", "create", "orders", "--partitions", 3, "--set", "segment.ms=1000", "--dir", folder, "--json"
    )
    assert created.code == 0
    assert created.items[0]["topic"] == "orders"
    listing = stratalog("topics", "list", "--dir", folder, "--json")
    assert [(item["topic"], item["partitions"], item["offsets"]) for item in listing.items] == [("orders", 3, 0)]
    assert listing.items[0]["topic_id"] == created.items[0]["topic_id"]
    described = stratalog("topics", "describe", "orders", "--dir", folder)
    assert described.code == 0
    assert "segment.ms" in described.out


def test_produced_lines_are_consumed(stratalog: RunCommand, tmp_path: Path) -> None:
    folder, lines = tmp_path / "data", tmp_path / "lines"
    lines.write_bytes(b"a:1\nb:2\nplain\n")
    stratalog("topics", "create", "orders", "--dir", folder)
    sent = stratalog("produce", "orders", lines, "--key-separator", ":", "--dir", folder, "--json")
    assert (sent.items[0]["records"], sent.items[0]["first_offset"], sent.items[0]["last_offset"]) == (3, 0, 2)
    consumed = stratalog("consume", "orders", "--dir", folder, "--json")
    assert [(item["offset"], item["key"], item["value"]) for item in consumed.items] == [
        (0, "a", "1"),
        (1, "b", "2"),
        (2, None, "plain"),
    ]


def test_consume_begins_and_ends_at_the_given_positions(stratalog: RunCommand, filled: Path) -> None:
    consumed = stratalog("consume", "orders", "-p", 1, "--from", 10, "--count", 3, "--dir", filled, "--json")
    assert [(item["partition"], item["offset"]) for item in consumed.items] == [(1, 10), (1, 11), (1, 12)]
    assert consumed.items[0]["headers"] == [{"key": "h", "value_base64": "/w=="}]
    late = stratalog("consume", "orders", "-p", 0, "--from-time", 1_700_000_000_055, "--dir", filled, "--json")
    assert [item["offset"] for item in late.items] == list(range(55, 60))
    people = stratalog("consume", "orders", "-p", 0, "--count", 1, "--dir", filled)
    assert people.out == f'0:0  2023-11-14T22:13:20.000Z  "k0" = "{"x" * 40}"  h: 0xff\n'


def test_consume_shows_the_records_of_one_key(stratalog: RunCommand, filled: Path) -> None:
    consumed = stratalog("consume", "orders", "--key", "k7", "--dir", filled, "--json")
    assert [(item["partition"], item["offset"], item["key"]) for item in consumed.items] == [(0, 7, "k7"), (1, 7, "k7")]
    assert stratalog("consume", "orders", "--key", "k7", "--from", 8, "--dir", filled, "--json").items == []
    conflict = stratalog("consume", "orders", "--key", "k7", "--group", "g", "--dir", filled)
    assert conflict.code == 2


def test_keys_choose_the_partition_as_with_kafkas_producer(stratalog: RunCommand, tmp_path: Path) -> None:
    folder, lines = tmp_path / "data", tmp_path / "lines"
    lines.write_bytes(b"".join(b"k%d:%d\n" % (number, number) for number in range(20)) + b"plain\n")
    stratalog("topics", "create", "orders", "--partitions", 3, "--dir", folder)
    sent = stratalog("produce", "orders", lines, "--key-separator", ":", "--dir", folder, "--json")
    assert [item["partition"] for item in sent.items] == [0, 1, 2]
    with open_reader(folder) as reader:
        for item in sent.items:
            records = list(reader.log("orders", int(str(item["partition"]))).records())
            assert (item["records"], item["first_offset"], item["last_offset"]) == (len(records), 0, len(records) - 1)
            for record in records:
                assert partition_of_key(record.key, 3) == item["partition"] if record.key else record.value == b"plain"
    assert sum(int(str(item["records"])) for item in sent.items) == 21


def test_a_group_sees_each_record_once(stratalog: RunCommand, filled: Path) -> None:
    def consumed(*options: object) -> list[tuple[object, object]]:
        result = stratalog("consume", "orders", "--group", "g", *options, "--dir", filled, "--json")
        assert result.code == 0
        return [(item["partition"], item["offset"]) for item in result.items]

    assert consumed("--count", 62) == [(0, offset) for offset in range(60)] + [(1, 0), (1, 1)]
    assert consumed() == [(1, offset) for offset in range(2, 60)]
    assert consumed() == []
    other_group = stratalog("consume", "orders", "--group", "other", "--count", 1, "--dir", filled, "--json")
    assert [item["offset"] for item in other_group.items] == [0]


def test_a_group_has_not_seen_what_could_not_be_printed(
    stratalog: RunCommand, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(topic: str, record: Record) -> dict[str, object]:
        if record.offset == 5:
            raise OSError("the pipe is gone")
        return {"topic": topic}

    with monkeypatch.context() as patch:
        patch.setattr("stratalog.cli.contents.printer._head", failing)
        assert stratalog("consume", "orders", "--group", "g", "--dir", filled, "--json").code == 2
    second_run = stratalog("consume", "orders", "--group", "g", "--count", 1, "--dir", filled, "--json")
    assert [item["offset"] for item in second_run.items] == [5]


@pytest.mark.parametrize("isolation", list(Isolation))
def test_isolation_is_given_as_the_library_takes_it(stratalog: RunCommand, filled: Path, isolation: Isolation) -> None:
    consumed = stratalog("consume", "orders", "-p", 0, "--isolation", isolation.value, "--dir", filled, "--json")
    assert len(consumed.items) == 60


@pytest.mark.parametrize("durability", list(Durability))
def test_durability_is_given_as_the_library_takes_it(
    stratalog: RunCommand, filled: Path, tmp_path: Path, durability: Durability
) -> None:
    (tmp_path / "lines").write_bytes(b"one\n")
    sent = stratalog(
        "produce", "orders", tmp_path / "lines", "--durability", durability.value, "--dir", filled, "--json"
    )
    assert sent.items[0]["last_offset"] == 60


def test_offload_and_retention_report_their_work(
    stratalog: RunCommand, filled: Path, tmp_path: Path, bucket: Path
) -> None:
    tier = bucket.as_uri()
    sent = stratalog("offload", "--roll", "--dir", filled, "--tier", tier, "--json")
    assert [(item["topic"], item["partition"], item["tier_end_offset"]) for item in sent.items] == [
        ("orders", 0, 60),
        ("orders", 1, 60),
    ]
    settings = tmp_path / "stratalog.toml"
    settings.write_text('[topic_defaults]\n"retention.ms" = -1\n"local.retention.bytes" = 0\n')
    place = ("--dir", filled, "--tier", tier, "--config", settings)
    dry = stratalog("retention", "--dry-run", *place, "--json")
    assert len(list(filled.glob("orders-0/*.log"))) > 1
    retention = stratalog("retention", *place, "--json")
    assert retention.items == dry.items
    assert [item["evicted_segments"] for item in retention.items] == [item["segments"] for item in sent.items]
    assert len(list(filled.glob("orders-0/*.log"))) == 1
    alone = stratalog("consume", "orders", "-p", 0, "--tier", tier, "--json")
    combined = stratalog("consume", "orders", "-p", 0, *place, "--json")
    assert [item["offset"] for item in alone.items] == list(range(60))
    assert alone.out == combined.out
    table = stratalog("topics", "describe", "orders", *place)
    assert "remote" in table.out


@pytest.mark.long
def test_dump_shows_every_kind_of_file(stratalog: RunCommand, filled: Path) -> None:
    files = sorted(path for path in filled.rglob("*") if path.suffix in {".log", ".index", ".timeindex", ".snapshot"})
    files += [filled / "orders-0" / name for name in ("leader-epoch-checkpoint", "partition.metadata")]
    files += [filled / "recovery-point-offset-checkpoint"]
    for file in files:
        for form in ((), ("--json",), ("--json", "--values")):
            dumped = stratalog("dump", file, *form)
            assert dumped.code == 0, (file, dumped.err)
    first = next(file for file in files if file.suffix == ".log")
    batches = stratalog("dump", first, "--json", "--values").items
    assert [batch["base_offset"] for batch in batches] == list(range(len(batches)))
    position = 0
    for batch in batches:
        assert batch["position"] == position
        assert isinstance(batch["size_bytes"], int)
        position += batch["size_bytes"]
        assert isinstance(batch["records"], list)
        assert batch["records"][0]["key"] == f"k{batch['base_offset']}"
    assert position == first.stat().st_size


def test_dump_of_a_damaged_log_shows_what_is_good_and_ends_with_1(stratalog: RunCommand, filled: Path) -> None:
    log = min(filled.glob("orders-0/*.log"))
    data = bytearray(log.read_bytes())
    batches = stratalog("dump", log, "--json").items
    third = batches[2]["position"]
    assert isinstance(third, int)
    data[third + 70] ^= 1
    log.write_bytes(data)
    dumped = stratalog("dump", log, "--json")
    assert dumped.code == 1
    assert dumped.items[:-1] == batches[:2]
    assert dumped.items[-1]["position"] == third
    people = stratalog("dump", log)
    assert people.code == 1
    assert f"position={third}" in people.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("topics", "list"), "--dir"),
        (("topics", "list", "--dir", "/nonexistent/place"), "/nonexistent/place"),
        (("topics", "list", "--tier", "nosuch://bucket"), "nosuch"),
        (("topics", "list", "--tier", "/just/a/path"), "is not a URI"),
        (("topics", "describe", "nosuch", "--dir", "DATA"), "nosuch"),
        (("consume", "nosuch", "--dir", "DATA"), "nosuch"),
        (("consume", "orders", "--group", "g", "-p", "0", "--dir", "DATA"), "--group"),
        (("consume", "orders", "-p", "9", "--dir", "DATA"), "orders-9"),
        (
            ("consume", "orders", "--from", "1000", "--dir", "DATA"),
            "log_end=60: use an offset from log_start to log_end",
        ),
        (("produce", "orders", "--dir", "/nonexistent/place"), "/nonexistent/place"),
        (("produce", "orders", "--key-separator", "", "--dir", "DATA"), "separator"),
        (("demo", "--tier", "/just/a/path"), "is not a URI"),
        (("demo", "--tier", "file:///nonexistent/place"), "key=/nonexistent/place: create the bucket or folder"),
        (("topics", "create", "a/b", "--dir", "DATA"), "a/b"),
        (("topics", "create", "orders", "--dir", "DATA"), "exists"),
        (("topics", "create", "t", "--set", "segment.byte=1", "--dir", "DATA"), "segment.bytes"),
        (("topics", "create", "t", "--set", "nonsense", "--dir", "DATA"), "KEY=VALUE"),
        (("offload", "--dir", "DATA"), "tier"),
        (("dump", "/nonexistent/file.log"), "/nonexistent/file.log"),
        (("dump", "DATA/.lock"), "--kind"),
        (("nosuch",), "nosuch"),
        (("topic", "list"), "Did you mean 'topics'?"),
        (("dump",), "FILES"),
    ],
)
@pytest.mark.long
def test_an_impossible_request_is_explained_and_exits_with_2(
    stratalog: RunCommand, filled: Path, arguments: tuple[str, ...], said: str
) -> None:
    ended = stratalog(*[argument.replace("DATA", str(filled)) for argument in arguments])
    assert ended.code == 2
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_errors_are_json_when_asked(stratalog: RunCommand) -> None:
    ended = stratalog("topics", "list", "--dir", "/nonexistent/place", "--json")
    assert ended.code == 2
    assert json.loads(ended.err)["error"] == "LogDirNotFoundError"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["topics", "alter", "t", "--dir", "d"], "nothing to change"),
        (["topics", "create", "t", "--dir", "d", "--set", "segment.bytes"], "KEY=VALUE"),
        (["explain", "t", "x", "5", "--dir", "d"], "PARTITION"),
        (["no-such-command"], "no-such-command"),
    ],
)
def test_wrong_arguments_are_json_when_asked(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run([*arguments, "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in json.loads(captured.err)["message"]


def test_plugins_lists_the_built_in_ones_with_kinds_and_versions(stratalog: RunCommand) -> None:
    ended = stratalog("plugins", "--json")
    assert ended.code == 0
    offers = {(item["plugin"], item["kind"], item["name"]) for item in ended.items}
    assert {
        ("local", "segment_stores", "local"),
        ("formats", "codecs", "zstd"),
        ("s3", "object_stores", "s3"),
    } <= offers
    assert {item["distribution"] for item in ended.items if item["plugin"] == "formats"} == {"stratalog"}
    assert stratalog("plugins").code == 0


@pytest.mark.parametrize("name", ["formats", "local", "s3", "compaction"])
def test_check_plugin_reports_nothing_for_the_built_in_plugins(stratalog: RunCommand, name: str) -> None:
    ended = stratalog("check-plugin", name, "--json")
    assert ended.code == 0, ended.out
    assert not [item for item in ended.items if item["severity"] == "error"]


def test_check_plugin_of_an_unknown_name(stratalog: RunCommand) -> None:
    ended = stratalog("check-plugin", "nosuch")
    assert ended.code == 2
    assert "nosuch" in ended.err


def test_help_names_every_command(stratalog: RunCommand) -> None:
    result = stratalog("--help")
    assert result.code == 0
    for command in ("check-plugin", "consume", "demo", "dump", "offload", "plugins", "produce", "retention", "topics"):
        assert command in result.out


@pytest.mark.long
def test_demo_tiers_a_real_directory_and_reads_its_own_records_from_the_bucket(stratalog: RunCommand) -> None:
    ended = stratalog("demo", "--records", 3000, "--json")
    assert ended.code == 0, ended.err
    steps = {str(item["step"]): item for item in ended.items if "step" in item}
    assert steps["read the bucket alone"]["records"] == 3000
    assert steps["read local disk and the bucket as one log"]["records"] == steps["read the Kafka directory"]["records"]
    requests = steps["read local disk and the bucket as one log"]["requests"]
    assert isinstance(requests, dict)
    assert requests["reads"] > 0, "evicted segments come from the bucket"
    partitions = [item for item in ended.items if "partition" in item]
    assert len(partitions) == 11
    assert sum(int(str(item["remote_segments"])) for item in partitions) > 11


@pytest.mark.long
def test_demo_keeps_its_directory_and_prints_its_path(stratalog: RunCommand) -> None:
    ended = stratalog("demo", "--records", 100, "--keep")
    assert ended.code == 0, ended.err
    folder = Path(ended.out.split("kept: ")[1].split()[0])
    assert stratalog("topics", "list", "--dir", folder / "own").code == 0
    shutil.rmtree(folder)
    assert "1,888 records of 9 partitions are the same" in ended.err


def test_demo_with_a_tier_of_its_own_leaves_it_readable(stratalog: RunCommand, bucket: Path) -> None:
    uri = bucket.as_uri()
    assert stratalog("demo", "--records", 100, "--tier", uri).code == 0
    (demo_tier,) = bucket.glob("stratalog-demo-*")
    listing = stratalog("topics", "list", "--tier", f"{uri}/{demo_tier.name}", "--json")
    assert {item["topic"] for item in listing.items} >= {"demo", "txn", "multi"}


def _fails() -> object:
    raise ImportError("acme is not installed")


@pytest.mark.parametrize(
    ("load", "said"), [(_fails, "acme is not installed"), (lambda: 7, "not a click command but 7")]
)
def test_an_object_that_is_no_command_is_reported_and_ends_with_2(
    stratalog: RunCommand, monkeypatch: pytest.MonkeyPatch, load: Callable[[], object], said: str
) -> None:
    commands = OfferTable("command", [Offer(Command("acme", "Does nothing.", load), "acme")])
    monkeypatch.setattr("stratalog.cli.app._plugin_commands", lambda: commands)
    ended = stratalog("acme")
    assert ended.code == 2
    assert said in ended.err


def test_a_command_that_lacks_a_library_names_the_extra(stratalog: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> object:
        raise PluginImportError("kio is not installed", "gateway", "stratalog[gateway]")

    commands = OfferTable("command", [Offer(Command("acme", "Does nothing.", load), "acme")])
    monkeypatch.setattr("stratalog.cli.app._plugin_commands", lambda: commands)
    ended = stratalog("acme")
    expected = "error: kio is not installed plugin=gateway: install it with: pip install 'stratalog[gateway]'\n"
    assert (ended.code, ended.err) == (2, expected)


def test_plugins_block_is_obeyed(stratalog: RunCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATALOG_PLUGINS_BLOCK", "s3")
    statuses = {item["plugin"]: item["status"] for item in stratalog("plugins", "--json").items}
    assert (statuses["s3"], statuses["formats"]) == ("blocked", "ok")
    result = stratalog("topics", "list", "--tier", "s3://bucket/prefix")
    assert result.code == 2
    assert "blocked" in result.err


# --- interrupted commands, and partial failures -------------------------------------------------------------------


def damage(folder: Path, partition: int) -> None:
    (folder / f"orders-{partition}" / "partition.metadata").write_text("nonsense")


def test_lines_that_were_appended_before_an_error_are_counted(
    stratalog: RunCommand, filled: Path, tmp_path: Path
) -> None:
    """The error contains the number of appended lines and the number of the line that is too large."""
    (tmp_path / "lines").write_bytes(b"x\n" * 20_005 + b"y" * 3_000_000 + b"\n" + b"z\n")
    ended = stratalog("produce", "orders", tmp_path / "lines", "--dir", filled, "--json")
    assert ended.code == 2
    assert "max.message.bytes" in ended.err
    with open_reader(filled) as reader:
        log = reader.log("orders", 0)
        end = log.offsets().log_end
        assert {record.value for record in log.records(60)} == {b"x"}
    assert end > 60
    assert [(item["records"], item["first_offset"], item["last_offset"]) for item in ended.items] == [
        (end - 60, 60, end - 1)
    ]


def test_lines_that_do_not_fit_one_segment_together_are_appended_in_pieces(
    stratalog: RunCommand, filled: Path, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_bytes(b"".join(b"%d\n" % number for number in range(3000)))
    with open_reader(filled) as reader:
        before = len(list(reader.log("orders", 0).records()))
    (report,) = stratalog("produce", "orders", tmp_path / "lines", "--dir", filled, "--partition", "0", "--json").items
    assert report["records"] == 3000
    with open_reader(filled) as reader:
        values = [record.value for record in reader.log("orders", 0).records()]
    assert values[before:] == [b"%d" % number for number in range(3000)]


def test_a_command_that_appended_nothing_reports_only_the_reason(
    stratalog: RunCommand, filled: Path, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_bytes(b"y" * 3_000_000)
    ended = stratalog("produce", "orders", tmp_path / "lines", "--dir", filled, "--json")
    assert (ended.code, ended.out) == (2, "")


@pytest.mark.parametrize("read_bytes", [1, 2, 7, 1 << 20])
def test_lines_are_the_same_however_they_are_read(
    stratalog: RunCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    monkeypatch.setattr("stratalog.cli.data.produce_command.READ_BYTES", read_bytes)
    monkeypatch.setattr("stratalog.cli.data.produce_command.LINES_AT_ONCE", 3)
    lines = [b"", b"one", b"two words", b"", b"", b"a\rb", b"long" * 20, b"end"]
    for text in (b"\n".join(lines), b"\r\n".join(lines), b"\n".join(lines) + b"\n"):
        folder, file = tmp_path / str(len(list(tmp_path.iterdir()))), tmp_path / "lines"
        file.write_bytes(text)
        stratalog("topics", "create", "orders", "--dir", folder)
        assert stratalog("produce", "orders", file, "--dir", folder).code == 0
        with open_reader(folder) as reader:
            assert [record.value for record in reader.log("orders", 0).records()] == lines


@pytest.mark.parametrize("interrupt", [False, True])
@pytest.mark.long
def test_lines_from_a_pipe_are_appended_as_they_come(filled: Path, *, interrupt: bool) -> None:
    """An earlier version collected ten thousand lines before it appended them. An interrupt lost these lines."""
    arguments = ["produce", "orders", "--json", "--dir", os.fspath(filled)]

    def size_bytes() -> int:
        return sum(file.stat().st_size for file in (filled / "orders-0").glob("*.log"))

    with running_command(*arguments, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdin is not None
        for text in (b"first\nsec", b"ond\nlast"):
            size = size_bytes()
            running.stdin.write(text)
            running.stdin.flush()
            while running.poll() is None and size_bytes() == size:
                os.sched_yield()
        if interrupt:
            running.send_signal(signal.SIGINT)
        output, errors = running.communicate()
    with open_reader(filled) as reader:
        values = [record.value for record in reader.log("orders", 0).records(60)]
    if interrupt:  # possibly before the second append was acknowledged
        assert (running.returncode, values) == (130, [b"first", b"second"]), errors
        assert json.loads(output)["records"] in {1, 2}
    else:
        assert (running.returncode, values) == (0, [b"first", b"second", b"last"]), errors
        assert json.loads(output)["records"] == 3


def test_a_separator_may_be_any_bytes(stratalog: RunCommand, filled: Path, tmp_path: Path) -> None:
    """A separator that is not UTF-8 once caused a traceback."""
    (tmp_path / "lines").write_bytes(b"key\xffvalue\n")
    ended = stratalog("produce", "orders", tmp_path / "lines", "-p", 0, "--key-separator", "\udcff", "--dir", filled)
    assert ended.code == 0
    with open_reader(filled) as reader:
        (record,) = reader.log("orders", 0).records(60)
    assert (record.key, record.value) == (b"key", b"value")


def test_partitions_that_end_before_an_offset_are_no_error_while_one_has_it(
    stratalog: RunCommand, filled: Path, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_bytes(b"more\n")
    stratalog("produce", "orders", tmp_path / "lines", "-p", 1, "--dir", filled)
    consumed = stratalog("consume", "orders", "--from", 60, "--dir", filled, "--json")
    assert (consumed.code, [item["partition"] for item in consumed.items]) == (0, [1])
    stratalog("produce", "orders", tmp_path / "lines", "-p", 1, "--dir", filled)
    consumed = stratalog("consume", "orders", "--from", 61, "--dir", filled, "--json")
    assert (consumed.code, [item["partition"] for item in consumed.items]) == (0, [1])
    assert stratalog("consume", "orders", "-p", 0, "--from", 61, "--dir", filled).code == 2


def test_each_command_finds_the_log_directories_in_the_settings(
    stratalog: RunCommand, filled: Path, tmp_path: Path, bucket: Path
) -> None:
    """Commands that only read once ignored the directories of a settings file."""
    tier = bucket.as_uri()
    settings = tmp_path / "stratalog.toml"
    settings.write_text(
        f'"log.dirs" = ["{filled}"]\ntier = "{tier}"\n[topic_defaults]\n"retention.ms" = -1\n"local.retention.bytes" = 0\n'
    )
    assert stratalog("offload", "--roll", "--config", settings).code == 0
    assert stratalog("retention", "--config", settings).code == 0
    for place in (("--config", settings), ("--config", settings, "--dir", filled), ("--tier", tier)):
        assert len(stratalog("consume", "orders", *place, "--json").items) == 120
        assert stratalog("topics", "list", *place, "--json").items[0]["topic"] == "orders"
    shutil.rmtree(filled)
    assert f"no such directory path={filled}" in stratalog("offload", "--config", settings).err
    assert not filled.exists()


def test_a_damaged_partition_does_not_hide_others(stratalog: RunCommand, filled: Path) -> None:
    """A damaged file in one partition once made every topic of the directory unreadable."""
    damage(filled, 0)
    listing = stratalog("topics", "list", "--dir", filled, "--json")
    assert listing.code == 1
    assert "partition.metadata" in str(listing.items[0]["error"])
    assert listing.items[0]["topic_id"]
    assert len(stratalog("consume", "orders", "-p", 1, "--dir", filled, "--json").items) == 60


def test_offload_and_retention_name_what_failed_and_do_the_rest(
    stratalog: RunCommand, filled: Path, bucket: Path
) -> None:
    damage(filled, 0)
    place = ("--dir", filled, "--tier", bucket.as_uri(), "--json")
    for command in (("offload", "--roll"), ("retention",)):
        ended = stratalog(*command, *place)
        assert ended.code == 1
        errors = {item["partition"]: item["error"] for item in ended.items}
        assert "partition.metadata" in str(errors[0])
        assert errors[1] == ""
    with open_reader(bucket.as_uri()) as reader:
        assert reader.log("orders", 1).offsets().log_end == 60


def test_notes_of_an_error_are_printed(stratalog: RunCommand, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = LogDirOfflineError("no", "place")

    def refused(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("stratalog.engine.duties.duties.apply_retention", refused)
    people, machines = stratalog("retention", "--dir", filled), stratalog("retention", "--dir", filled, "--json")
    assert (people.code, machines.code) == (2, 2)
    notes = [f"orders-0: {error}", f"orders-1: {error}", "0 of 2 logs are done, 2 failed"]
    assert people.err.splitlines() == [f"error: {error}", *(f"  {note}" for note in notes)]
    assert json.loads(machines.err)["notes"] == notes


def test_the_cleaner_reports_its_plan_and_carries_it_out(stratalog: RunCommand, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with open_engine(folder) as engine:
        engine.create_topic("t", config={"cleanup.policy": "compact"})
        log = engine.log("t", 0)
        log.append([Record(key=b"k", value=b"%d" % number) for number in range(10)])
        log.roll()
    dry = stratalog("cleaner", "--dry-run", "--dir", folder, "--json")
    assert (dry.code, dry.items[0]["dirty_start"], dry.items[0]["end"]) == (0, 0, 10)
    cleaned = stratalog("cleaner", "--dir", folder, "--json")
    assert (cleaned.code, cleaned.items[0]["records_read"], cleaned.items[0]["records_kept"]) == (0, 10, 1)
    assert stratalog("cleaner", "--dir", folder, "--json").items == []
    table = stratalog("cleaner", "--dry-run", "--dir", folder)
    assert "compacted; nothing after it can be compacted yet" in " ".join(table.out.split())
