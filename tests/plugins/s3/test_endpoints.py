"""A server on another machine, by its name, over plain HTTP: the usual first setup of MinIO, Ceph and versitygw."""

from __future__ import annotations

import logging
import socket
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from stratalog import Record, open_engine, open_reader
from stratalog.cli.app import run
from stratalog.errors import ConfigError
from versitygw import Gateway, resolved

RunCli = Callable[..., str]


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, server: Gateway, tmp_path: Path) -> None:
    """Resolve the name of another machine to the server, and put the credentials where AWS's tools read them."""
    monkeypatch.setattr(socket, "getaddrinfo", resolved(socket.getaddrinfo))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", str(server.options["key"]))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", str(server.options["secret"]))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)


@pytest.fixture
def uri(server: Gateway) -> str:
    return server.uri(f"test-{uuid.uuid4().hex}")


@pytest.fixture
def place(server: Gateway, uri: str, tmp_path: Path) -> str:
    """Return a directory with a topic, whose segments are also in the tier."""
    options = {"endpoint_url": server.elsewhere, "region": "us-east-1", "allow_http": True}
    with open_engine(tmp_path / "data", tier=uri, tier_options=options) as engine:
        engine.create_topic("orders")
        for number in range(4):
            engine.log("orders", 0).append([Record(key=b"k", value=b"%d" % number)])
            engine.log("orders", 0).roll()
        engine.offload()
    return str(tmp_path / "data")


@pytest.fixture
def run_cli(capfd: pytest.CaptureFixture[str]) -> RunCli:
    """Return a function that runs a command, checks its exit code, and returns all its output."""

    def run_command(code: int, *arguments: str) -> str:
        exit_code = run(list(arguments))
        printed = "".join(capfd.readouterr())
        assert exit_code == code, printed
        return printed

    return run_command


def test_plain_http_is_refused_and_the_error_names_the_option(server: Gateway, uri: str) -> None:
    with pytest.raises(ConfigError, match=r"is not encrypted.*allow_http=true"):
        open_reader(uri, tier_options={"endpoint_url": server.elsewhere})


@pytest.mark.parametrize("way", ["option", "setting", "variable"])
@pytest.mark.long
def test_consent_is_an_option_a_setting_or_a_variable(
    server: Gateway, place: str, uri: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    del place
    options: dict[str, object] = {"endpoint_url": server.elsewhere, "region": "us-east-1"}
    section: dict[str, object] = {}
    if way == "option":
        options["allow_http"] = True
    elif way == "setting":
        section["allow_http"] = True
    else:
        monkeypatch.setenv("STRATALOG_PLUGINS_S3_ALLOW_HTTP", "true")
    with open_reader(uri, tier_options=options, config={"plugins": {"s3": section}}) as reader:
        assert [record.value for record in reader.log("orders", 0).records()] == [b"0", b"1", b"2", b"3"]


def test_an_option_takes_consent_back(server: Gateway, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATALOG_PLUGINS_S3_ALLOW_HTTP", "true")
    with pytest.raises(ConfigError, match="allow_http"):
        open_reader(uri, tier_options={"endpoint_url": server.elsewhere, "allow_http": "false"})


@pytest.mark.parametrize("addressing", ["auto", "path", "virtual"])
@pytest.mark.long
def test_settings_alone_are_enough_to_find_the_tier(server: Gateway, place: str, uri: str, addressing: str) -> None:
    del place
    section = {
        "endpoint_url": server.elsewhere,
        "region": "us-east-1",
        "addressing": addressing,
        "allow_http": True,
    }
    with open_reader(uri, config={"plugins": {"s3": section}}) as reader:
        assert [record.value for record in reader.log("orders", 0).records()] == [b"0", b"1", b"2", b"3"]


def test_plain_http_is_logged_once(server: Gateway, place: str, uri: str, caplog: pytest.LogCaptureFixture) -> None:
    del place
    options = {"endpoint_url": server.elsewhere, "region": "us-east-1", "allow_http": True}
    with caplog.at_level(logging.WARNING, "stratalog.s3"):
        caplog.clear()
        with open_reader(uri, tier_options=options) as reader:
            for _ in range(3):
                list(reader.log("orders", 0).records())
    (warning,) = [entry for entry in caplog.records if "not encrypted" in entry.getMessage()]
    assert "store.stratalog.example" in warning.getMessage()
    assert str(server.options["secret"]) not in caplog.text


@pytest.mark.long
def test_this_machine_needs_no_consent_and_no_warning(
    server: Gateway, place: str, uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    del place
    caplog.clear()
    with open_reader(uri, tier_options=server.options) as reader:
        assert len(list(reader.log("orders", 0).records())) == 4
    assert "not encrypted" not in caplog.text


def commands(uri: str, data: str, folder: Path) -> Sequence[Sequence[str]]:
    """Return every command that accepts a tier. Commands that need data follow those that write it."""
    log = ["-d", data, "--tier", uri]
    return [
        ["tier", "ls", uri],
        ["tier", "log", uri, "orders", "0"],
        ["tier", "diff", uri, "orders", "0", "--from", "4"],
        ["tier", "cost", uri],
        ["tier", "gc", uri],
        ["tier", "rewrap", uri],
        ["tier", "collect", *log],
        ["rebuild", uri, "--dry-run"],
        ["verify", uri, "--deep"],
        ["topics", "list", *log],
        ["topics", "list", "--tier", uri],
        ["topics", "describe", "orders", *log],
        ["topics", "create", "more", *log],
        ["topics", "alter", "more", "--set", "retention.ms=1000", *log],
        ["topics", "delete", "more", "--yes", *log],
        ["produce", "orders", str(folder / "lines"), *log],
        ["consume", "orders", *log],
        ["explain", "orders", "0", "0", *log],
        ["why-kept", "orders", "0", "--key", "k", *log],
        ["offload", *log],
        ["retention", *log],
        ["cleaner", *log],
        ["erase", "orders", "--key", "none", *log],
        ["archive", data, f"{uri}-archive"],
        ["restore", uri, str(folder / "restored")],
        ["bench", "--size", "1", "--threads", "1", "--tier", uri],
        ["demo", "--records", "1000", "--tier", uri],
        ["attach", uri, "-d", str(folder / "attached")],
    ]


@pytest.mark.long
def test_every_command_reaches_the_server_with_options_only(
    server: Gateway, place: str, uri: str, tmp_path: Path, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stratalog.cli.bench_command._ENOUGH_NS", 1)
    (tmp_path / "lines").write_text("five\n", encoding="utf-8")
    options = [f"endpoint_url={server.elsewhere}", "region=us-east-1", "addressing=path", "allow_http=true"]
    option_arguments = [word for option in options for word in ("--tier-option", option)]
    failed_codes = {}
    for command in commands(uri, place, tmp_path):
        with_json = [*command, *option_arguments, "--json"]
        code = run(with_json)
        if code not in {0, 1}:
            failed_codes[" ".join(command[:2])] = code
    assert not failed_codes, run_cli(0, "tier", "ls", uri, *option_arguments)
    assert '"value": "five"' in run_cli(
        0, "consume", "orders", "--dir", place, "--tier", uri, *option_arguments, "--json"
    )


@pytest.mark.long
def test_a_configuration_file_is_enough_for_a_command(
    server: Gateway, place: str, uri: str, tmp_path: Path, run_cli: RunCli
) -> None:
    del place
    file = tmp_path / "stratalog.toml"
    file.write_text(
        f'[plugins.s3]\nendpoint_url = "{server.elsewhere}"\nregion = "us-east-1"\nallow_http = true\n',
        encoding="utf-8",
    )
    assert "orders" in run_cli(0, "tier", "ls", uri, "--config", str(file))


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("allow_http=perhaps", "allow_http='perhaps' is not of type bool"),
        ("adressing", "NAME=VALUE"),
        ("=x", "NAME=VALUE"),
    ],
)
def test_a_wrong_option_is_an_error_that_names_it(uri: str, run_cli: RunCli, option: str, wrong: str) -> None:
    assert wrong in run_cli(2, "tier", "ls", uri, "--tier-option", option)
