from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway_bed import Wire
from stratalog.cli.app import app
from stratalog.errors import ConfigError, LogDirNotFoundError
from stratalog_gateway.serve_command import serve


def test_it_is_ready_when_it_prints_its_address_and_ctrl_c_ends_it_cleanly(tmp_path: Path) -> None:
    config = tmp_path / "stratalog.toml"
    config.write_text("[plugins.gateway]\n'num.partitions' = 3\n'node.id' = 4\n")
    command = [sys.executable, "-m", "stratalog", "serve", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    command += ["--node-id", "7", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:  # noqa: S603 - Python with arguments of this test
        assert running.stdout is not None
        with Wire(running.stdout.readline().strip()) as wire:
            metadata = wire.ask("Metadata", 1, topics=None)
            assert [broker.node_id for broker in metadata.brokers] == [7]
            running.send_signal(signal.SIGINT)
            assert running.wait(30) == 0
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--listen", "0.0.0.0:9092"], "add --insecure"),
        (
            ["--listen", "0.0.0.0:9092", "--insecure"],
            "advertised address PLAINTEXT://0.0.0.0:9092: set advertised.host",
        ),
        (["--listen", "[::]:9092", "--insecure"], "advertised address PLAINTEXT://[::]:9092: set advertised.host"),
        (["--listen", "9092"], "not of the form HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "not of the form HOST:PORT"),
    ],
)
def test_wrong_addresses_are_refused_before_anything_is_created(
    tmp_path: Path, arguments: list[str], text: str
) -> None:
    result = CliRunner().invoke(serve, [str(tmp_path / "data"), *arguments], **app.context_settings)
    assert isinstance(result.exception, ConfigError)
    assert text in str(result.exception)
    assert not (tmp_path / "data").exists()


def test_a_section_that_is_no_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "stratalog.toml").write_text("[plugins]\ngateway = 1\n")
    arguments = [str(tmp_path / "data"), "--config", str(tmp_path / "stratalog.toml")]
    result = CliRunner().invoke(serve, arguments, **app.context_settings)
    assert isinstance(result.exception, ConfigError)
    assert "plugins.gateway" in str(result.exception)


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("NODE_ID", "one", "node.id='one' is not of type int source=environment"),
        ("LISTENERS", "PLAINTEXT://0.0.0.0:0", "host 0.0.0.0 is not a loopback address"),
    ],
)
def test_variables_override_the_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, text: str
) -> None:
    config = tmp_path / "stratalog.toml"
    config.write_text("[plugins.gateway]\n'node.id' = 4\nlisteners = ['PLAINTEXT://127.0.0.1:0']\n")
    monkeypatch.setenv(f"STRATALOG_PLUGINS_GATEWAY_{variable}", value)
    result = CliRunner().invoke(serve, [str(tmp_path / "data"), "--config", str(config)], **app.context_settings)
    assert isinstance(result.exception, ConfigError)
    assert text in str(result.exception)


def test_a_port_in_use_is_named_with_one_reason(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        result = CliRunner().invoke(serve, [str(tmp_path / "data"), "--listen", address], **app.context_settings)
    assert str(result.exception) == f"cannot listen on {address} (Address already in use): choose a free address"


def test_a_folder_of_other_files_is_refused_and_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear reader")
    result = CliRunner().invoke(serve, [str(tmp_path), "--listen", "127.0.0.1:0"], **app.context_settings)
    assert isinstance(result.exception, LogDirNotFoundError)
    assert f"the directory contains no logs path={tmp_path}" in str(result.exception)
    assert [entry.name for entry in tmp_path.iterdir()] == ["letter.txt"]
