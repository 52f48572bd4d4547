"""``stratalog bench``: each figure is reported, and no file or object is left."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from command_runs import printed_items
from stratalog.cli import bench_command
from stratalog.cli.app import run
from stratalog.config.settings_sources import Settings
from stratalog.engine.engine import Engine
from stratalog.errors import StorageError
from stratalog.model.names import TopicPartition
from stratalog.reading.open_reader import open_settled
from stratalog.reading.reader import Reader

LOCAL = {
    "write 4 KiB and fsync": "ms",
    "append": "records/s",
    "append durably": "ms",
    "append durably, in threads": "records/s",
    "read records": "records/s",
    "fetch": "MB/s",
    "find by offset": "records/s",
    "recover": "MB/s",
}
REMOTE = {"offload": "MB/s", "tier, cold: read records": "records/s", "tier, cold: fetch": "MB/s"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_command, "_ENOUGH_NS", 0)  # functions that are called once each


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("disk", "bucket"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_bytes(b"x")
    return tmp_path


def left(place: Path) -> list[str]:
    return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())


def test_a_disk_is_measured_and_left_as_it_was(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "-d", str(place / "disk"), "--size", "1", "--threads", "2", "--json"]) == 0
    items = printed_items(capsys)
    assert {item["what"]: item["unit"] for item in items} == LOCAL
    assert all(item["figure"] > 0 for item in items)
    assert all(item["slowest_1_percent"] >= item["figure"] for item in items if item["unit"] == "ms")
    assert left(place) == ["bucket/mine", "disk/mine"]


def test_a_tier_is_measured_and_left_as_it_was(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--tier", f"file://{place / 'bucket'}", "--size", "1", "--compression", "zstd", "--json"]
    assert run(["bench", "-d", str(place / "disk"), *options]) == 0
    items = printed_items(capsys)
    assert {item["what"]: item["unit"] for item in items} == {**LOCAL, **REMOTE}
    assert left(place) == ["bucket/mine", "disk/mine"]


def test_the_tier_of_the_settings_is_measured_and_each_cold_figure_past_all_caches(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = list[Reader]()

    def noted(uri: str, settings: Settings, *, tier_options: Mapping[str, object]) -> Reader:
        assert settings.engine.tier_cache_dir is None
        readers.append(open_settled(uri, settings, tier_options=tier_options))
        return readers[-1]

    monkeypatch.setattr(bench_command, "open_settled", noted)
    tier, cache = (place / "bucket").as_uri(), str(place / "cache")
    (place / "s.toml").write_text(f'tier = "{tier}"\n"tier.cache.dir" = "{cache}"\n')
    assert run(["bench", "-d", str(place / "disk"), "--config", str(place / "s.toml"), "--size", "1", "--json"]) == 0
    measurements = {json.loads(line)["what"] for line in capsys.readouterr().out.splitlines()}
    assert measurements == {*LOCAL, *REMOTE}
    assert len(readers) == 2, "the second figure would be that of the first one's cache"
    assert [path for path in left(place) if not path.startswith("cache/")] == ["bucket/mine", "disk/mine", "s.toml"]


def test_a_failed_benchmark_leaves_nothing_either(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(engine: Engine, logs: object) -> None:
        raise StorageError(f"no more of {logs} of {engine.partitions()}")

    monkeypatch.setattr(Engine, "offload", refused)
    options = ["--tier", f"file://{place / 'bucket'}", "--size", "1"]
    assert run(["bench", "-d", str(place / "disk"), *options]) == 2
    assert "no more of" in capsys.readouterr().err
    assert left(place) == ["bucket/mine", "disk/mine"]


def test_nothing_is_measured_without_free_space(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(place)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=3 << 20))
    assert run(["bench", "-d", str(place / "disk"), "--size", "2"]) == 2
    assert "use a smaller --size" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong", [["-d", "nowhere"], ["-d", ".", "-d", "."], ["--compression", "foo"], ["--size", "0"]], ids=str
)
def test_wrong_arguments_are_reported(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", *wrong]) == 2
    assert capsys.readouterr().err


def test_nothing_is_left_after_sigterm(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, handler, offload = left(place), signal.getsignal(signal.SIGTERM), Engine.offload

    def terminated(engine: Engine, logs: Sequence[TopicPartition]) -> None:
        offload(engine, logs)
        assert left(place) != before
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Engine, "offload", terminated)
    assert run(["bench", "--size", "1", "--dir", str(place / "disk"), "--tier", (place / "bucket").as_uri()]) == 143
    assert left(place) == before
    assert signal.getsignal(signal.SIGTERM) == handler


def test_the_help_does_not_let_a_second_directory_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--dir", str(tmp_path), "--dir", str(tmp_path)]) == 2
    assert "give --dir one existing directory" in capsys.readouterr().err
    assert run(["bench", "--help"]) == 0
    help_text = " ".join(capsys.readouterr().out.split())
    assert "--dir PATH An existing directory. Default: the system's temporary folder." in help_text
