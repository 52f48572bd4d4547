from __future__ import annotations

import json
from pathlib import Path

import pytest

from stratalog import Record, open_engine
from stratalog.cli.app import run


def cost_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, object]:
    assert run(["tier", "cost", *arguments, "--json"]) == code
    costs: dict[str, object] = json.loads(capsys.readouterr().out)
    return costs


def test_a_topic_is_priced(capsys: pytest.CaptureFixture[str]) -> None:
    costs = cost_json(capsys, "--write-rate", "1048576", "--set", "retention.ms=86400000")
    assert costs["segment_bytes"] == 1 << 30
    assert costs["stored_bytes"] == 86_400 << 20
    assert costs["warning"] == ""


def test_text_output_shows_the_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tier", "cost", "--write-rate", "1048576"]) == 0
    text = capsys.readouterr().out
    for word in ("segments", "requests", "stored", "cost", "none while no records are written"):
        assert word in text
    assert "warning" not in text


def test_tiny_segments_are_warned_about(capsys: pytest.CaptureFixture[str]) -> None:
    assert "segment.bytes" in str(
        cost_json(capsys, "--write-rate", "1e6", "--set", "segment.bytes=1000", code=1)["warning"]
    )
    many = cost_json(capsys, "--write-rate", "1000", "--partitions", "1000", "--set", "segment.ms=60000", code=1)
    assert "segment.ms" in str(many["warning"])


def test_settings_are_read_from_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "stratalog.toml"
    file.write_text('[topic_defaults]\n"segment.bytes" = 536870912\n[plugins.s3]\n"part.bytes" = 16777216\n', "utf-8")
    costs = cost_json(capsys, "--write-rate", "1e6", "--config", str(file))
    assert costs["segment_bytes"] == 512 << 20
    assert costs["writes_per_gib"] == pytest.approx(2 * (32 + 2 + 2), rel=0.01)


def test_the_environment_overrides_the_part_size_of_the_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stratalog.toml"
    file.write_text("[plugins.s3]\nregion = 'eu-west-1'\n\"part.bytes\" = 16777216\n", "utf-8")
    large = cost_json(capsys, "--write-rate", "1e6", "--config", str(file))
    monkeypatch.setenv("STRATALOG_PLUGINS_S3_REGION", "eu-west-1")
    monkeypatch.setenv("STRATALOG_PLUGINS_S3_PART_BYTES", str(8 << 20))
    small = cost_json(capsys, "--write-rate", "1e6", "--config", str(file))
    assert large["writes_per_gib"] == pytest.approx(64 + 2 + 2, rel=0.02)
    assert small["writes_per_gib"] == pytest.approx(128 + 2 + 2, rel=0.02)


@pytest.mark.parametrize("section", ['"part.bytes" = "16777216"', "part.bytes = 16777216"])
def test_the_part_size_is_read_in_every_form_of_a_setting(
    section: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "stratalog.toml"
    file.write_text(f"[plugins.s3]\n{section}\n", "utf-8")
    cost = cost_json(capsys, "--write-rate", "1e6", "--config", str(file))
    assert cost["writes_per_gib"] == pytest.approx(64 + 2 + 2, rel=0.02)


def test_prices_are_the_users(capsys: pytest.CaptureFixture[str]) -> None:
    free = cost_json(capsys, "--write-rate", "1e6", "--price-writes", "0", "--price-reads", "0", "--price-storage", "0")
    assert (free["request_cost"], free["storage_cost"]) == (0, 0)


def test_an_estimate_accepts_settings_of_plugins(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "stratalog.toml"
    file.write_text('[topic_defaults]\n"ttl.ms" = 1000\n', "utf-8")
    options = ("--config", str(file), "--set", "bloom.bits.per.key=12")
    assert cost_json(capsys, "--write-rate", "1e6", *options) == cost_json(capsys, "--write-rate", "1e6")


@pytest.mark.parametrize(
    "arguments",
    [[], ["--write-rate", "-1"], ["--write-rate", "1", "--set", "x"], ["--write-rate", "1", "--set", "a=1"]],
)
def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert run(["tier", "cost", *arguments]) == 2
    assert capsys.readouterr().err


@pytest.fixture
def uri(tmp_path: Path, bucket: Path) -> str:
    """Return the URI of a tier with three segments of one record each in one topic, and one segment in another."""
    with open_engine(tmp_path / "data", tier=bucket.as_uri()) as engine:
        for topic, segments in (("many", 3), ("one", 1)):
            engine.create_topic(topic)
            for _ in range(segments):
                engine.log(topic, 0).append([Record(value=bytes(1000))])
                engine.log(topic, 0).roll()
        engine.offload()
    return bucket.as_uri()


def test_an_existing_tier_is_priced(capsys: pytest.CaptureFixture[str], uri: str) -> None:
    assert run(["tier", "cost", uri, "--json"]) == 1
    many, single = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (many["topic"], many["segments"], many["objects"], many["commits"], many["writes"]) == ("many", 3, 3, 4, 9)
    assert many["smallest_bytes"] == many["largest_bytes"] == many["log_bytes"] / 3
    assert many["stored_bytes"] > many["log_bytes"] > 3000
    assert "segment" in many["warning"]
    assert (single["topic"], single["segments"]) == ("one", 1)
    assert run(["tier", "cost", uri, "one", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == single


def test_a_tier_without_dear_requests_is_no_finding(capsys: pytest.CaptureFixture[str], uri: str) -> None:
    assert run(["tier", "cost", uri, "--price-writes", "0", "--price-reads", "0"]) == 0
    assert "many" in capsys.readouterr().out


def test_a_log_that_cannot_be_read_is_reported(capsys: pytest.CaptureFixture[str], uri: str, bucket: Path) -> None:
    for root in bucket.glob("one-*/0/manifest/*"):
        root.write_bytes(b"no manifest")
    assert run(["tier", "cost", uri, "--json"]) == 1
    many, single = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (many["error"], single["segments"]) == ("", None)
    assert "manifest" in single["error"]


@pytest.mark.parametrize(
    "arguments",
    [["--write-rate", "1"], ["--set", "segment.bytes=1000"], ["--partitions", "2"], ["nothing-of-this-name"]],
)
def test_a_tier_takes_no_settings(capsys: pytest.CaptureFixture[str], uri: str, arguments: list[str]) -> None:
    assert run(["tier", "cost", uri, *arguments]) == 2
    assert capsys.readouterr().err
