"""Frequent mistakes with each command: exit code 2, the place of the error, and advice. Nothing is written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from stratalog import Record, open_engine
from stratalog.cli.app import _advised, run
from stratalog.testing.s3 import LocalS3

READING = [
    ["consume", "orders", "--dir"],
    ["topics", "list", "--dir"],
    ["topics", "describe", "orders", "--dir"],
    ["explain", "orders", "0", "0", "--dir"],
    ["sql", "select 1"],
    ["groups", "list", "--dir"],
    ["report"],
    ["console", "--listen", "127.0.0.1:0"],
    ["top", "--once"],
]
WRITING = [
    ["produce", "orders", "/dev/null", "--dir"],
    ["groups", "reset", "billing", "orders", "--to", "end", "--dir"],
    ["retention", "--dir"],
    ["cleaner", "--dir"],
    ["erase", "orders", "--key", "k", "--dir"],
    ["why-kept", "orders", "0", "--dir"],
    ["recover"],
]
OF_ENGINES = [
    ["produce", "orders", "/dev/null"],
    ["topics", "create", "orders"],
    ["offload"],
    ["retention"],
    ["run"],
]
OF_TIERS = [
    ["tier", "ls"],
    ["tier", "log", "{}", "orders", "0"],
    ["tier", "gc"],
    ["rebuild"],
    ["verify"],
    ["consume", "orders", "--tier"],
    ["sql", "select 1"],
    ["report"],
    ["console", "--listen", "127.0.0.1:0"],
    ["top", "--once"],
    ["restore", "{}", "restored"],
    ["attach", "{}", "--dir", "attached"],
]
UNKNOWN = [
    ["consume", "order", "--dir"],
    ["produce", "order", "/dev/null", "--dir"],
    ["topics", "describe", "order", "--dir"],
    ["topics", "alter", "order", "--set", "retention.ms=1", "--dir"],
    ["topics", "delete", "order", "--yes", "--dir"],
    ["explain", "order", "0", "0", "--dir"],
    ["erase", "order", "--key", "k", "--dir"],
    ["why-kept", "order", "0", "--dir"],
    ["groups", "reset", "billing", "order", "--to", "beginning", "--dir"],
]


def label(command: list[str]) -> str:
    return "-".join(word for word in command[:2] if word.isalpha())


def complete(command: list[str], place: str) -> list[str]:
    return [word.format(place) for word in command] if "{}" in command else [*command, place]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test in a new working directory, without the credentials of this machine."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def data(tmp_path: Path, bucket: Path) -> Path:
    with open_engine(tmp_path / "data", tier=bucket.as_uri()) as engine:
        engine.create_topic("orders", config={"remote.storage.enable": True})
        engine.log("orders", 0).append([Record(key=b"k", value=b"v")])
    return tmp_path / "data"


def refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must fail, and return its error text."""
    capsys.readouterr()
    assert run(command) == 2
    captured = capsys.readouterr()
    assert not captured.out
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize("command", [*READING, *WRITING], ids=label)
def test_the_folder_of_a_log_is_not_its_directory(
    data: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(complete(command, str(data / "orders-0")), capsys)
    assert f"this is the folder of one log path={data / 'orders-0'}: use its log directory, {data}\n" in message


@pytest.mark.parametrize("command", [*READING, *WRITING], ids=label)
def test_a_folder_of_other_files_is_refused_and_not_written_to(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "letter.txt").write_text("dear reader")
    message = refused(complete(command, str(tmp_path / "documents")), capsys)
    assert "no logs path=" in message
    assert [path.name for path in (tmp_path / "documents").iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("command", [*READING, *WRITING, ["verify"]], ids=label)
def test_a_file_or_a_missing_directory_is_no_log_directory(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file, missing = tmp_path / "records.txt", tmp_path / "missing"
    file.write_text("a record\n")
    assert f"not a directory path={file}: check the path" in refused(complete(command, str(file)), capsys)
    assert file.read_text() == "a record\n"
    message = refused(complete(command, str(missing)), capsys)
    assert "no such " in message
    assert f"path={missing}: " in message
    assert not missing.exists()


def test_an_engine_advises_to_begin_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new logs"
    assert f"mkdir '{path}'" in refused(["retention", "--dir", str(path)], capsys)


@pytest.mark.parametrize(
    "command",
    [["topics", "create", "orders", "--dir"], ["restore", "file:///bucket"], ["attach", "file:///bucket", "--dir"]],
    ids=label,
)
def test_no_log_is_created_among_other_files(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    for directory in (str(tmp_path), tmp_path.as_uri()):
        message = refused([*command, directory], capsys)
        assert "the directory contains other files, and no logs" in message
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize("command", WRITING, ids=label)
def test_a_directory_in_use_is_refused(data: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with open_engine(data):
        message = refused(complete(command, str(data)), capsys)
    assert "another engine or a running broker holds the directory" in message
    assert "stop the engine or broker" in message


@pytest.mark.parametrize("command", UNKNOWN, ids=label)
def test_a_topic_with_a_near_name_is_named(data: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(complete(command, str(data)), capsys)
    assert "did you mean 'orders'?" in message
    assert f" in {data}: " in message


@pytest.mark.parametrize(
    "command", [["restore", "{}", "restored", "--topic", "order"], ["attach", "{}", "--dir", "new", "--topic", "order"]]
)
def test_a_topic_of_a_tier_with_a_near_name_is_named(
    data: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with open_engine(data, tier=data.with_name("bucket").as_uri()) as engine:
        engine.log("orders", 0).roll()
        engine.offload()
    message = refused(complete(command, data.with_name("bucket").as_uri()), capsys)
    assert "there is no topic order in" in message
    assert "did you mean 'orders'?" in message


@pytest.mark.parametrize("command", OF_TIERS, ids=label)
@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("s4://bucket/prefix", "no object store for s4:// is installed"),
        ("s3://", "must name a bucket: s3://bucket/prefix"),
        ("file:///no/such/folder", "the folder of the store is missing"),
    ],
)
def test_a_bad_uri_is_named(command: list[str], uri: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused(complete(command, uri), capsys)


def test_a_tier_that_is_a_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "letter.txt").write_text("dear reader")
    uri = (tmp_path / "letter.txt").as_uri()
    assert f"the store is a file, not a folder key={uri}" in refused(["tier", "ls", uri], capsys)


@pytest.mark.parametrize("command", [["verify"], ["sql", "select 1"], ["doctor"], ["consume", "t", "--dir"]], ids=label)
def test_a_uri_that_lacks_a_slash_is_corrected(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "use s3://bucket/prefix" in refused([*command, "s3:/bucket/prefix"], capsys)


@pytest.mark.parametrize("command", [["tier", "ls"], ["restore", "{}", "restored"]], ids=label)
def test_missing_credentials_are_named(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(complete(command, "s3://bucket/prefix"), capsys)
    assert "no credentials were found" in message
    assert "AWS_ACCESS_KEY_ID" in message


def test_an_unknown_tier_option_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local-secret")
    message = refused(["tier", "ls", "s3://bucket/prefix", "--tier-option", "endpoint=http://127.0.0.1:9"], capsys)
    assert message == "error: unknown setting 'endpoint' source=tier options; did you mean 'endpoint_url'?\n"


@contextlib.contextmanager
def denied(server: LocalS3) -> Iterator[None]:
    for operation in ("ListObjectsV2", "PutObject"):
        server.fail(operation, status=403, code="AccessDenied", times=1000)
    try:
        yield
    finally:
        server.heal()


@pytest.mark.parametrize("command", OF_TIERS, ids=label)
def test_a_wrong_bucket_and_a_missing_right_are_named(
    local_s3: LocalS3, command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local-secret")
    options = ["--tier-option", f"endpoint_url={local_s3.endpoint_url}"]
    message = refused([*complete(command, "s3://nobody/prefix"), *options], capsys)
    assert "NoSuchBucket" in message
    assert "create the bucket" in message
    with denied(local_s3):
        message = refused([*complete(command, local_s3.uri("prefix")), *options], capsys)
    assert "AccessDenied" in message
    assert "grant list, get, put and delete on the prefix" in message


def test_several_directories_are_recovered_together(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second_directory = data.with_name("other")
    second_directory.mkdir()
    with open_engine([data, second_directory]) as engine:
        engine.create_topic("more", partitions=2)
    for folder in (data, second_directory):
        (folder / ".kafka_cleanshutdown").unlink()
    assert run(["recover", str(data), "--dir", str(second_directory), "--dry-run", "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert run(["recover", str(data), str(second_directory)]) == 0
    assert all((folder / ".kafka_cleanshutdown").exists() for folder in (data, second_directory))
    assert "no log directory is named" in refused(["recover"], capsys)


@pytest.mark.parametrize("command", [*OF_ENGINES, ["attach", "file:///bucket"]], ids=label)
def test_a_command_without_a_directory_names_the_option(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "no log directory is named: add --dir DIRECTORY" in refused(command, capsys)


@pytest.mark.parametrize("command", [["offload"], ["tier", "collect"]], ids=label)
def test_a_command_without_a_tier_names_the_option(
    data: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no tier is configured: add --tier URI" in refused([*command, "--dir", str(data)], capsys)


@pytest.mark.parametrize(
    "command", [["report", "DATA", "--output"], ["new-plugin", "codec", "fast", "--into"]], ids=label
)
def test_a_path_that_cannot_be_written_is_named(
    data: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = data / "stratalog-topics.json" / "new"
    message = refused([*(word.replace("DATA", str(data)) for word in command), str(path)], capsys)
    assert message.startswith(f"error: not a directory path={path}")


@pytest.mark.parametrize(
    "command", [["restore", "{}", "new"], ["attach", "{}", "--dir", "new"], ["verify", "{}"]], ids=label
)
def test_a_tier_without_logs_is_an_error_that_leaves_no_directory(
    bucket: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    uri = bucket.as_uri()
    message = refused(complete(command, uri), capsys)
    assert f"there are no logs in {uri}: correct the URI" in message
    assert f"stratalog rebuild {uri}" in message
    assert not Path("new").exists()


def test_a_rebuild_without_objects_is_an_error(bucket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri = bucket.as_uri()
    assert refused(["rebuild", uri], capsys) == f"error: there are no objects of logs in {uri}: correct the URI\n"


def test_a_directory_as_an_argument_too_many_is_advised_to_be_an_option(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Name a log directory by --dir DIRECTORY" in refused(["consume", "orders", str(data)], capsys)
    assert "Name a log directory by --dir DIRECTORY" in refused(["topics", "list", str(data), "--json"], capsys)
    assert "Name a log directory" not in refused(["consume", "orders", "5"], capsys)
    assert "Name a log directory" not in refused(["verify", str(data), str(data)], capsys)
    Path("my data").mkdir()
    assert "Name a log directory by --dir DIRECTORY" in refused(["consume", "orders", "my data"], capsys)


@pytest.mark.parametrize(
    ("command", "argument"),
    [
        (["sql", "select 1", "--dir", "data"], "PATH|URI"),
        (["report", "-d", "data"], "PATH|URI"),
        (["archive", "--dir", "kafka"], "KAFKA_LOG_DIR"),
        (["archive", "kafka", "--tier", "file:///bucket"], "URI"),
        (["dump", "--dir", "data"], "FILES"),
        (["tier", "cost", "--tier", "file:///bucket"], "URI"),
        (["serve", "--dir", "data"], "DIR"),
    ],
    ids=label,
)
def test_the_option_of_another_command_is_advised_to_be_an_argument(
    command: list[str], argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(command, capsys).endswith(f". Use the argument {argument}\n")


def test_the_advice_is_a_sentence_of_its_own_with_each_release_of_click() -> None:
    """The message of click 8.2 has no full stop."""
    context = click.Context(click.Command("ls", params=[click.Argument(["uri"])]))
    error = click.NoSuchOption("--tier", "No such option: --tier", ctx=context)
    assert _advised(error).message == "No such option: --tier. Use the argument URI"


@pytest.mark.parametrize("option", ["--verify", "--hlp", "--nothing-like-it"])
def test_an_option_instead_of_a_command_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{option!r}" in refused(["--", option], capsys)


def test_a_topic_is_suggested_only_if_its_name_is_similar(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'orders'?" in refused(["consume", "ordres", "--dir", str(data)], capsys)
    assert "its topics are orders" in refused(["consume", "folder", "--dir", str(data)], capsys)
