"""``stratalog verify URI --repair`` on damaged roots and pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import stratalog
from command_runs import printed_items
from stratalog import Record, RecordColumns, TopicPartition
from stratalog.cli.app import run
from stratalog.errors import FencedEpochError
from stratalog.tier.manifest import entry_tree
from stratalog.tier.manifest.root import WriteMark
from stratalog.writing.bulk_writer import BulkWriter
from stratalog.writing.staged import StagedSegment
from stratalog.writing.write_target import WriteTarget

SEGMENTS = 14
T0 = TopicPartition("t", 0)


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_tree, "PAGE_ITEMS", 2)
    monkeypatch.setattr(entry_tree, "INLINE_PAGES", 2)


class Place:
    """A tier of one log with one record in each segment, and pages of two levels."""

    def __init__(self, folder: Path, layout: str = "single") -> None:
        self.data, self.bucket = folder / "data", folder / "bucket"
        self.bucket.mkdir()
        self.uri = f"file://{self.bucket}"
        with stratalog.open_engine(self.data, tier=self.uri) as engine:
            engine.create_topic("t", config={"retention.ms": -1, "local.retention.bytes": 1, "tier.layout": layout})
            self.write(engine, SEGMENTS)
            engine.apply_retention()

    def write(self, engine: stratalog.Engine, count: int) -> None:
        log = engine.log("t", 0)
        for _ in range(count):
            log.append([Record(value=b"%d" % log.offsets().log_end)])
            log.roll()
            engine.offload()

    def files(self, kind: str) -> list[Path]:
        return sorted(self.bucket.glob(f"t-*/0/{kind}/*"))

    def contents(self) -> dict[Path, bytes]:
        files = {path: path.read_bytes() for path in self.bucket.rglob("*") if path.is_file()}
        return {path: data for path, data in files.items() if "quarantine" not in path.parts}

    def check_read(self, count: int = SEGMENTS) -> None:
        with stratalog.open_reader(self.uri) as reader:
            assert [record.value for record in reader.log("t", 0).records()] == [
                b"%d" % number for number in range(count)
            ]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def stage_record(writer: BulkWriter, value: bytes) -> Sequence[StagedSegment]:
    with writer.stage(T0) as stage:
        stage.add(RecordColumns.from_records([Record(value=value)]))
        return stage.finish()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def reported_flaws(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    """Return the object key and the repair of each reported flaw."""
    items = printed_items(capsys)
    flaws = [item for item in items if item.get("flaw", "orphan") != "orphan"]
    return [(item["key"].rpartition("/")[2], item["done"]) for item in flaws]


DAMAGES = [flip, cut, empty, Path.unlink]
ROOT_DAMAGES = [flip, cut, empty]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.long
def test_every_page_is_rebuilt_byte_for_byte(
    place: Place, damage: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    before, pages = place.contents(), place.files("pages")
    assert len({json.loads(path.read_bytes())["level"] for path in pages}) >= 2
    for path in pages:
        damage(path)
        assert run(["verify", place.uri]) == 1
        capsys.readouterr()
        assert run(["verify", place.uri, "--repair", "--json"]) == 0
        assert {repair for _, repair in reported_flaws(capsys)} == {"rebuilt with the same bytes"}
        assert place.contents() == before
    assert run(["verify", place.uri, "--deep"]) == 0


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.long
def test_when_all_pages_are_damaged_a_new_root_names_the_segments(
    place: Place, damage: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    for path in place.files("pages"):
        damage(path)
    versions = len(place.files("manifest"))
    assert run(["verify", place.uri, "--repair", "--json"]) == 0
    remade = f"version {versions + 1} names its segments, found by their footers"
    assert remade in {repair for _, repair in reported_flaws(capsys)} <= {remade, "rebuilt with the same bytes"}
    assert run(["verify", place.uri, "--deep"]) == 0
    place.check_read()
    with stratalog.open_engine(place.data, tier=place.uri) as engine:
        place.write(engine, 3)
    place.check_read(SEGMENTS + 3)


def test_a_new_root_keeps_the_rounds_of_writers_and_the_end_of_the_history(place: Place) -> None:
    with stratalog.open_engine(place.data, tier=place.uri) as engine:
        engine.log("t", 0).append([Record(key=b"K", value=b"x")])
        engine.log("t", 0).roll()
        engine.offload()
        engine.erase("t", b"K")
        place.write(engine, 3)
    target = WriteTarget(place.uri, take_over=True)
    with target.open() as writer, writer.stage(T0) as stage:
        stage.add(RecordColumns.from_records([Record(value=b"round")]))
        writer.append(T0, stage.finish(), WriteMark("query", 7))
    before = json.loads(max(place.files("manifest")).read_bytes())
    assert before["marks"]
    assert before["history_start"] > 0
    for path in place.files("pages"):
        flip(path)
    assert run(["verify", place.uri, "--repair"]) == 0
    after = json.loads(max(place.files("manifest")).read_bytes())
    assert after["version"] == before["version"] + 1
    assert (after["marks"], after["history_start"]) == (before["marks"], before["history_start"])


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_new_root_names_no_upload_that_was_never_committed(place: Place, *, is_committed: bool) -> None:
    """The upload was made later than the committed one, or it is above the log's end in the tier."""
    target = WriteTarget(place.uri, take_over=True)
    with target.open() as writer:
        uploads = [stage_record(writer, value) for value in (b"%d" % SEGMENTS, b"never committed")]
        if is_committed:
            writer.append(T0, uploads[0])
        before = [path for path in place.files("segments") if path.name.startswith(f"{SEGMENTS:020}-")]
        assert len(before) == 2
        for path in place.files("pages"):
            flip(path)
        assert run(["verify", place.uri, "--repair"]) == 0
        place.check_read(SEGMENTS + is_committed)


@pytest.mark.parametrize("damage", ROOT_DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("victims", [slice(-1, None), slice(-3, None), slice(None)], ids=["head", "last three", "all"])
@pytest.mark.parametrize("layout", ["single", "plain"])
@pytest.mark.long
def test_a_head_is_rebuilt_and_the_engine_continues(
    tmp_path: Path, layout: str, victims: slice, damage: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(tmp_path, layout)
    roots = place.files("manifest")[victims]
    broken = dict[str, bytes]()
    for path in roots:
        damage(path)
        broken[f"{path.name}.damaged"] = path.read_bytes()
    assert run(["verify", place.uri]) == 1
    capsys.readouterr()
    assert run(["verify", place.uri, "--repair", "--json"]) == 0
    assert [key for key, _ in reported_flaws(capsys)] == [path.name for path in roots]
    assert {path.name: path.read_bytes() for path in place.files("quarantine")} == broken
    assert run(["verify", place.uri, "--deep"]) == 0
    place.check_read()
    with stratalog.open_engine(place.data, tier=place.uri) as engine:
        place.write(engine, 3)
        assert len(list(engine.log("t", 0).records())) == SEGMENTS + 3
    place.check_read(SEGMENTS + 3)
    assert run(["verify", place.uri, "--deep"]) == 0


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.long
def test_history_behind_a_damaged_root_is_given_up(
    place: Place, damage: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    roots = place.files("manifest")
    damage(roots[4])
    assert run(["verify", place.uri]) == 1
    capsys.readouterr()
    assert run(["verify", place.uri, "--repair", "--json"]) == 0
    assert {repair for _, repair in reported_flaws(capsys)} == {"history now begins at version 6"}
    assert place.files("manifest") == roots[5:]
    assert run(["verify", place.uri, "--deep"]) == 0
    place.check_read()


def test_objects_that_no_manifest_names_are_left_and_shown(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """A page and an object that the page describes are both damaged, so the object cannot be repaired."""
    first = json.loads(place.files("manifest")[-1].read_bytes())
    assert first["pages"]
    for path in [*place.files("manifest")[:-1], place.files("segments")[0]]:
        path.unlink()
    victim = place.files("pages")[0]
    damaged = [path for path in place.files("pages") if path.name.startswith(victim.name[:20])]
    for path in damaged:
        flip(path)
    before = place.contents()
    assert run(["verify", place.uri, "--repair", "--json"]) == 1
    assert any(repair.startswith("noted in ") for _, repair in reported_flaws(capsys))
    after = place.contents()
    assert {path: after[path] for path in damaged} == {path: before[path] for path in damaged}


def test_a_writer_that_a_damaged_root_fenced_stays_fenced(place: Place, tmp_path: Path) -> None:
    with stratalog.open_engine(tmp_path / "new", tier=place.uri, attach=True):
        cut(place.files("manifest")[-1])
        assert run(["verify", place.uri, "--repair"]) == 0
        with stratalog.open_engine(place.data, tier=place.uri) as old, pytest.raises(FencedEpochError):
            place.write(old, 1)
    with stratalog.open_engine(tmp_path / "new", tier=place.uri) as engine:
        place.write(engine, 1)
    place.check_read(SEGMENTS + 1)
