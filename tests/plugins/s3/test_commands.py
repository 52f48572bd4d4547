"""Commands on S3, as a new user runs them: the texts of errors, and that no text contains a secret."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from own_command import running_command
from stratalog import Record, open_engine
from stratalog.cli.app import run
from stratalog.testing.faultproxy import FaultProxy, Misdeed, ProxyFault
from stratalog.testing.s3 import LocalS3

SECRET = "canary-secret-of-nobody"
KEY = "AKIACANARYOFNOBODY"
RunCli = Callable[..., str]


@pytest.fixture
def place(tmp_path: Path, local_s3: LocalS3, s3_tier: str) -> str:
    """Return the URI of a tier with a topic of six segments; the engine's directory is ``data``."""
    with open_engine(tmp_path / "data", tier=s3_tier, tier_options=local_s3.options) as engine:
        engine.create_topic("orders", config={"retention.ms": -1})
        for number in range(6):
            engine.log("orders", 0).append([Record(value=b"%d" % number)])
            engine.log("orders", 0).roll()
        engine.offload()
    return s3_tier


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, local_s3: LocalS3, tmp_path: Path) -> None:
    """Set the environment of a user of AWS, whose credentials are in variables and not on the command line."""
    settings = {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": local_s3.endpoint_url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def run_cli(capfd: pytest.CaptureFixture[str]) -> RunCli:
    """Return a function that runs a command, checks its exit code, and returns all its output."""

    def run_command(code: int, *arguments: str) -> str:
        assert run(list(arguments)) == code
        output = "".join(capfd.readouterr())
        assert SECRET not in output
        assert "Traceback" not in output
        return output

    return run_command


def commands(uri: str, folder: Path) -> list[list[str]]:
    """Return one command of each kind that needs the tier."""
    data = str(folder / "data")
    return [
        ["tier", "ls", uri],
        ["tier", "log", uri, "orders", "0"],
        ["tier", "diff", uri, "orders", "0", "--from", "1"],
        ["tier", "cost", uri],
        ["verify", uri, "--deep"],
        ["offload", "-d", data, "--tier", uri],
        ["restore", uri, str(folder / "restored")],
        ["attach", uri, "-d", str(folder / "attached")],
        ["archive", data, f"{uri}-archive"],
        ["topics", "list", "--tier", uri],
    ]


@pytest.mark.long
def test_all_checks_pass_and_print_no_secret(place: str, tmp_path: Path, run_cli: RunCli) -> None:
    for command in commands(place, tmp_path):
        # These commands report findings.
        run_cli(1 if command[:2] in (["tier", "cost"], ["tier", "diff"]) else 0, *command)


@pytest.mark.long
def test_a_bucket_that_is_missing_is_named(tmp_path: Path, run_cli: RunCli) -> None:
    for command in commands("s3://bucket-of-nobody/prefix", tmp_path):
        if command[0] not in {"offload", "archive"}:
            output = run_cli(2, *command)
            assert "s3://bucket-of-nobody" in output
            assert "create the bucket" in output


@pytest.mark.long
def test_the_error_for_missing_credentials_names_the_places_searched(
    place: str, tmp_path: Path, run_cli: RunCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    for command in commands(place, tmp_path)[:5]:
        assert "AWS_ACCESS_KEY_ID" in run_cli(2, *command)


@pytest.mark.long
def test_the_error_for_missing_permissions_names_those_to_grant(
    place: str, tmp_path: Path, run_cli: RunCli, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint_url)
    proxy.plan(ProxyFault(Misdeed.STATUS, times=10_000, status=403, code="AccessDenied"))
    try:
        for command in commands(place, tmp_path):
            output = run_cli(2, *command)
            assert "AccessDenied" in output
            assert "grant" in output
            assert "key=:" not in output
    finally:
        proxy.heal()


@pytest.mark.parametrize("uri", ["s3:/bucket", "s3://", "nosuch://bucket/x", "bucket/prefix"])
def test_an_invalid_uri_is_refused(uri: str, run_cli: RunCli) -> None:
    assert "://" in run_cli(2, "tier", "ls", uri)


@pytest.mark.long
def test_a_check_continues_where_its_budget_ended(place: str, tmp_path: Path, run_cli: RunCli) -> None:
    state = str(tmp_path / "state")
    assert "run the command again" in run_cli(0, "verify", place, "--deep", "--budget", "requests=12", "--state", state)
    assert Path(state).exists()
    assert "nothing wrong" in run_cli(0, "verify", place, "--deep", "--state", state)
    assert not Path(state).exists()


@pytest.mark.long
def test_following_ends_with_ctrl_c_and_continues_later(place: str, tmp_path: Path, run_cli: RunCli) -> None:
    uri = f"{place}-archive"
    arguments = ["archive", str(tmp_path / "data"), uri, "--follow", "--interval", "0.1", "--json"]
    with running_command(*arguments, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        first_line = running.stdout.readline()
        running.send_signal(signal.SIGINT)
        output, errors = running.communicate(timeout=60)
    assert '"orders"' in first_line
    assert SECRET not in first_line + output + errors
    assert "Traceback" not in errors
    assert run_cli(0, "archive", str(tmp_path / "data"), uri)
    assert "orders" in run_cli(0, "tier", "ls", uri)
