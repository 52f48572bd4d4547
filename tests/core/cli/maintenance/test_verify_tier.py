"""``stratalog verify URI``: its report, step by step, and its repairs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import stratalog
from command_runs import printed_items
from extra_indexes import ExtraPlugin
from stratalog import Record
from stratalog.cli.app import run
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.tier.upkeep.collect import GRACE_MS

SMALL = {"segment.bytes": 3000, "index.interval.bytes": 500, "retention.ms": -1}


class Place:
    """A log directory and its tier, with two topics."""

    def __init__(self, folder: Path, layout: str = "single") -> None:
        self.data, self.bucket = folder / "data", folder / "bucket"
        self.bucket.mkdir()
        self.uri = f"file://{self.bucket}"
        with stratalog.open_engine(self.data, tier=self.uri) as engine:
            for topic in ("orders", "other"):
                engine.create_topic(topic, config={**SMALL, "tier.layout": layout})
                for number in range(30):
                    engine.log(topic, 0).append([Record(timestamp_ms=1000 + number, value=bytes([number]) * 300)])
            engine.offload()

    def objects(self, topic: str = "orders") -> list[Path]:
        return sorted(self.bucket.glob(f"{topic}-*/0/segments/*"))

    def contents(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.bucket.rglob("*") if path.is_file()}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def flip(path: Path, position: int = 100) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_a_sound_tier_is_reported_as_sound_and_not_changed(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    before = place.contents()
    assert run(["verify", place.uri, "--deep", "--json"]) == 0
    *logs, total = printed_items(capsys)
    assert [(log["topic"], log["segments"]) for log in logs] == [("orders", 3), ("other", 3)]
    assert (total["complete"], total["segments"], total["wrong"]) == (True, 6, 0)
    assert run(["verify", place.uri]) == 0
    assert "nothing wrong" in capsys.readouterr().out
    assert place.contents() == before


def test_damage_is_shown_and_exits_with_1(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    victim, lost = place.objects()[0], place.objects("other")[1]
    flip(victim)
    lost.unlink()
    assert run(["verify", place.uri, "--deep", "--json"]) == 1
    flaws = [item for item in printed_items(capsys) if "flaw" in item]
    assert [(item["flaw"], item["key"], item["done"]) for item in flaws] == [
        ("log", str(victim.relative_to(place.bucket)), ""),
        ("missing", str(lost.relative_to(place.bucket)), ""),
    ]
    assert run(["verify", place.uri]) == 1
    assert f"missing: the object is missing key={lost.relative_to(place.bucket)} position=0" in capsys.readouterr().out


@pytest.mark.parametrize("layout", ["single", "plain", "chunked"])
@pytest.mark.long
def test_objects_that_are_still_local_are_put_back_byte_for_byte(
    tmp_path: Path, layout: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path, layout)
    before = place.contents()
    for number, path in enumerate(place.objects()):
        if number % 2:
            path.unlink()
        elif path.stat().st_size:
            flip(path, 0)
    assert run(["verify", place.uri, "--deep", "--repair", "--dir", str(place.data), "--json"]) == 0
    *_, total = printed_items(capsys)
    assert total["repaired"]
    assert place.contents() == before
    assert run(["verify", place.uri, "--deep"]) == 0


def test_objects_that_cannot_be_put_back_get_a_note_and_keep_their_bytes(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = place.objects()[0]
    flip(victim)
    damaged = victim.read_bytes()
    flip(place.data / "orders-0" / f"{0:020}.log")
    assert run(["verify", place.uri, "--deep", "--repair", "--dir", str(place.data), "--json"]) == 1
    (note,) = place.bucket.rglob("quarantine/*")
    note_fields = json.loads(note.read_bytes())
    assert (note_fields["key"], note_fields["flaw"]) == (str(victim.relative_to(place.bucket)), "log")
    assert victim.read_bytes() == damaged
    capsys.readouterr()
    assert run(["verify", place.uri]) == 0, "the note itself is no orphan"
    with stratalog.open_reader(place.uri) as reader:
        assert reader.partitions()


def test_collecting_orphans_keeps_the_history_for_the_configured_time(
    tmp_path: Path, bucket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    then_ms = round(bucket.stat().st_mtime * 1000) - 2 * GRACE_MS
    with stratalog.open_engine(tmp_path / "data", tier=bucket.as_uri(), env=Env(clock=ManualClock(then_ms))) as engine:
        engine.create_topic("t", config={"retention.ms": -1})
        engine.log("t", 0).append([Record(value=b"v")])
        engine.log("t", 0).roll()
        engine.offload()
    roots = sorted(bucket.glob("t-*/0/manifest/*"))
    (segment,) = bucket.glob("t-*/0/segments/*")
    shutil.copy(segment, segment.with_name(f"{0:020}-0-{0:032x}.seg"))
    for path in bucket.rglob("*"):
        os.utime(path, (then_ms / 1000, then_ms / 1000))
    config = tmp_path / "stratalog.toml"
    config.write_text(f'"tier.history.ms" = {10 * GRACE_MS}\n')
    assert run(["verify", bucket.as_uri(), "--repair", "--config", str(config), "--json"]) == 0
    *_, total = printed_items(capsys)
    assert total["orphans"] == 1
    assert sorted(bucket.glob("t-*/0/manifest/*")) == roots


def test_a_budget_ends_a_run_and_the_next_runs_continue(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place.objects()[1].unlink()
    state = tmp_path / "state.json"
    segment_count, flaw_count, codes = 0, 0, []
    for _ in range(20):
        codes.append(run(["verify", place.uri, "--budget", "requests=1", "--state", str(state), "--json"]))
        items = printed_items(capsys)
        segment_count += int(str(items[-1]["segments"]))
        flaw_count += sum("flaw" in item for item in items)
        if items[-1]["complete"]:
            break
        assert state.exists()
    assert len(codes) > 3
    assert (segment_count, flaw_count) == (6, 1)
    assert codes[-1] == 1
    assert not state.exists()


def test_a_budget_ends_a_run_between_logs_of_one_segment(
    tmp_path: Path, bucket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri, state = bucket.as_uri(), tmp_path / "state.json"
    with stratalog.open_engine(tmp_path / "data", tier=uri) as engine:
        engine.create_topic("orders", partitions=3)
        engine.create_topic("empty")
        for partition in range(3):
            engine.log("orders", partition).append([Record(value=b"v")])
            engine.log("orders", partition).roll()
        engine.offload()
    totals = list[dict[str, object]]()
    while not totals or not totals[-1]["complete"]:
        assert run(["verify", uri, "--budget", "requests=1", "--state", str(state), "--json"]) == 0
        totals.append(printed_items(capsys)[-1])
        assert state.exists() != totals[-1]["complete"]
    assert [total["logs"] for total in totals] == [1, 1, 1, 1]
    assert [total["segments"] for total in totals] == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--budget", "requests=1"], "needs --state"),
        (["--budget", "seconds=1", "--state", "s"], "requests=NUMBER"),
        (["--budget", "bytes=0", "--state", "s"], "requests=NUMBER"),
        (["--dir", "."], "--dir needs --repair"),
        (["--repair", "--dir", "missing"], "no such directory"),
    ],
)
def test_wrong_options_are_refused(
    place: Place, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", place.uri, *arguments]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "{}", '{"version": 1, "uri": "x", "deep": false, "log": "", "offset": 0, "wrong": 0}']
)
def test_a_state_of_something_else_is_refused(
    place: Place, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state.json"
    state.write_text(text)
    assert run(["verify", place.uri, "--state", str(state)]) == 2
    assert "delete it to start from the beginning" in capsys.readouterr().err
    assert state.read_text() == text


def test_options_of_tiers_are_refused_for_directories(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(place.data), "--state", "s"]) == 2
    assert "are for tiers" in capsys.readouterr().err


def test_a_directory_beside_is_still_checked(place: Place) -> None:
    assert run(["verify", str(place.data)]) == 0
    shutil.rmtree(place.bucket)
    assert run(["verify", place.uri]) == 2


def test_segments_with_extra_indexes_are_put_back_byte_for_byte(
    tmp_path: Path, bucket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the plugin, extra indexes are copied from sound objects or from the local files of the segment."""
    plugin = ExtraPlugin()
    with stratalog.open_engine(tmp_path / "data", tier=bucket.as_uri(), plugins=[plugin]) as engine:
        engine.create_topic("orders", config={"index.extra": "keyset,valueset", "remote.storage.enable": True})
        log = engine.log("orders", 0)
        for number in range(4):
            log.append([Record(key=b"k%d" % number, value=bytes([number]) * 300)])
            log.roll()
        engine.make_extra_indexes()
        engine.offload()
    assert run(["verify", str(tmp_path / "data")]) == 0
    objects = sorted(bucket.glob("orders-*/0/segments/*"))
    before = [path.read_bytes() for path in objects]
    flip(objects[0])
    objects[1].unlink()
    flip(objects[2], before[2].index(b"SET"))
    (tmp_path / "data" / "orders-0" / "00000000000000000000.extra").unlink()
    capsys.readouterr()
    assert run(["verify", bucket.as_uri(), "--deep", "--repair", "--dir", str(tmp_path / "data"), "--json"]) == 0
    assert [path.read_bytes() for path in objects] == before
