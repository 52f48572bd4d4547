"""``stratalog verify`` finds damage, and repairs it if no valid record is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from log_bed import LogBed, records
from stratalog import Record, open_engine, open_reader
from stratalog.cli.app import run
from stratalog.model.messages.control import ControlType

Call = Callable[..., tuple[int, list[dict[str, object]]]]
SMALL = {"segment.bytes": 600, "index.interval.bytes": 0}
COUNT = 20
SUFFIXES = (".index", ".timeindex", ".txnindex", ".snapshot")


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs ``stratalog verify``, and returns the exit code and the reported problems."""

    def call(*arguments: object) -> tuple[int, list[dict[str, object]]]:
        code = run(["verify", *map(str, arguments), "--json"])
        captured = capsys.readouterr()
        assert captured.err == ""
        return code, [item for line in captured.out.splitlines() if "problem" in (item := json.loads(line))]

    return call


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with two logs of several segments that was closed cleanly.

    One log has idempotent producers and an aborted transaction.
    """
    folder = tmp_path_factory.mktemp("original") / "data"
    with open_engine(folder) as engine:
        engine.create_topic("t", partitions=2, config=SMALL)
        for number in range(COUNT):
            engine.log("t", 0).append([Record(timestamp_ms=number, value=b"%d" % number * 40)])
    return folder


@pytest.fixture
def sound(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "data")


@pytest.fixture
def aborted(bed: LogBed) -> Path:
    """Return a directory with a log of two segments and one aborted transaction over both, opened and closed once."""
    bed.write_segment(0, [bed.batch(0, records(3), producer=(5, 0, 0), transactional=True)])
    bed.write_segment(
        3,
        [
            bed.batch(3, records(1, start=3)),
            bed.batch(4, records(1, start=4), producer=(5, 0, 3), transactional=True),
            bed.marker(5, 5, ControlType.ABORT),
        ],
    )
    bed.open(clean=False)
    bed.close()
    return bed.directory


def segment(folder: Path, number: int, suffix: str = ".log") -> Path:
    return sorted((folder / "t-0").glob(f"*{suffix}"))[number]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def read(folder: Path) -> list[Record]:
    with open_reader(folder) as reader:
        return list(reader.log("t", 0).records())


# --- sound directories -----------------------------------------------------------------------------------------------


def test_a_sound_directory_has_nothing_wrong_and_stays_as_it_is(verify: Call, sound: Path) -> None:
    before = {path: path.read_bytes() for path in sound.rglob("*") if path.is_file()}
    assert verify(sound) == (0, [])
    assert verify(sound / "t-0") == (0, [])
    assert verify(sound, "--repair") == (0, [])
    assert {path: path.read_bytes() for path in sound.rglob("*") if path.is_file()} == before


def test_a_directory_in_use_is_refused_with_the_advice_to_stop_its_engine(
    sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_engine(sound):
        for options in ((), ("--repair",)):
            assert run(["verify", str(sound), *options]) == 2
        first, _ = capsys.readouterr().err.strip().splitlines()
    assert first.endswith("stop the engine or broker, because changes during the check look like damage")


def test_an_aborted_transaction_is_sound(verify: Call, aborted: Path) -> None:
    assert (aborted / "t-0" / f"{3:020d}.txnindex").stat().st_size == 34
    assert verify(aborted) == (0, [])


def test_text_output_shows_in_one_line_what_was_checked(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(sound)]) == 0
    assert capsys.readouterr().out.startswith("2 logs, ")


# --- findings --------------------------------------------------------------------------------------------------------


def test_every_byte_of_a_segment_that_a_crc_covers_is_checked(verify: Call, sound: Path) -> None:
    path = segment(sound, 1)
    data = path.read_bytes()
    size = int.from_bytes(data[8:12], "big") + 12
    for position in [*range(8, 12), *range(16, size, 3)]:  # no CRC covers offsets and leader epochs
        flip(path, size + position)
        code, problems = verify(sound)
        assert code == 1
        assert [problem["problem"] for problem in problems] == ["damage"]
        assert (problems[0]["file"], problems[0]["position"]) == (str(path), size)
        path.write_bytes(data)


@pytest.mark.parametrize("position", range(7))
def test_offsets_that_do_not_ascend_are_found(verify: Call, sound: Path, position: int) -> None:
    path = segment(sound, 1)
    size = int.from_bytes(path.read_bytes()[8:12], "big") + 12
    flip(path, size + position)
    code, problems = verify(sound)
    assert (code, problems[0]["problem"], problems[0]["position"]) == (1, "damage", size)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.long
def test_every_byte_of_an_index_is_compared_with_the_log(verify: Call, sound: Path, suffix: str) -> None:
    path = segment(sound, 1, suffix)
    data = path.read_bytes()
    entry = {".index": 8, ".timeindex": 12}[suffix]
    assert len(data) >= 2 * entry
    for position in range(len(data)):
        flip(path, position)
        code, problems = verify(sound)
        assert (code, {problem["problem"] for problem in problems}) == (1, {"index"}), position
        path.write_bytes(data)


def test_every_byte_of_a_transaction_index_is_compared(verify: Call, aborted: Path) -> None:
    path = aborted / "t-0" / f"{3:020d}.txnindex"
    data = path.read_bytes()
    for position in [0, *range(2, 26)]:  # readers do not depend on the version's second byte and the last stable offset
        flip(path, position)
        assert verify(aborted)[0] == 1, position
    for content in (b"", data * 2, data[:-1]):
        path.write_bytes(content)
        code, problems = verify(aborted)
        assert (code, problems[0]["problem"], problems[0]["file"]) == (1, "index", str(path))


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("tail", [b"\0", bytes(24), b"\xff" * 24])
def test_bytes_behind_the_entries_are_found(verify: Call, sound: Path, suffix: str, tail: bytes) -> None:
    path = segment(sound, -1, suffix)
    path.write_bytes(path.read_bytes() + tail)
    code, problems = verify(sound)
    assert (code, [problem["file"] for problem in problems]) == (1, [str(path)])


def test_a_lost_end_is_found_by_the_checkpoints(verify: Call, sound: Path) -> None:
    last = segment(sound, -1)
    for suffix in (".log", ".index", ".timeindex"):
        last.with_suffix(suffix).unlink(missing_ok=True)
    code, problems = verify(sound)
    texts = [str(problem["text"]) for problem in problems if problem["problem"] == "bounds"]
    assert code == 1
    assert any(f"high watermark of t-0 is {COUNT}" in text for text in texts)
    assert any(f"recovery point of t-0 is {COUNT}" in text for text in texts)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("recovery-point-offset-checkpoint", "bounds"),
        ("t-0/leader-epoch-checkpoint", "epochs"),
        ("t-0/partition.metadata", "damage"),
        (f"t-0/{COUNT:020d}.snapshot", "snapshot"),
    ],
)
def test_small_files_are_checked(verify: Call, sound: Path, name: str, kind: str) -> None:
    (sound / name).write_bytes(b"not what it should be")
    code, problems = verify(sound)
    assert (code, [(problem["problem"], problem["file"]) for problem in problems]) == (1, [(kind, str(sound / name))])


def test_the_text_advises_a_repair_only_of_what_can_be_repaired(
    sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(segment(sound, 0), 70)
    assert run(["verify", str(sound)]) == 1
    assert "--repair" not in capsys.readouterr().out
    segment(sound, 1, ".index").unlink()
    assert run(["verify", str(sound)]) == 1
    assert f"2 wrong\nrun stratalog verify {sound} --repair to repair 1 of them\n" in capsys.readouterr().out
    assert run(["verify", str(sound / "t-0")]) == 1
    assert f"run stratalog verify {sound / 't-0'} --repair to repair 1 of them\n" in capsys.readouterr().out
    assert run(["verify", str(sound), "--repair"]) == 1
    assert capsys.readouterr().out.endswith(": 1 wrong, 1 repaired\n")


def test_a_directory_without_logs_is_not_sound_but_the_wrong_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ([], ["--repair"]):
        assert run(["verify", str(tmp_path), *options]) == 2
        assert "the directory contains no logs" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_engine_without_topics_is_sound(verify: Call, tmp_path: Path) -> None:
    with open_engine(tmp_path):
        pass
    assert verify(tmp_path) == (0, [])


def test_a_place_that_cannot_be_verified_exits_with_2(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_engine(sound):
        for options in ([], ["--repair"]):
            assert run(["verify", str(sound), *options]) == 2
            assert "another engine" in capsys.readouterr().err
    assert run(["verify", str(tmp_path / "missing")]) == 2


def test_a_folder_in_place_of_a_segment_is_reported_as_when_the_log_is_opened(
    sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = segment(sound, 0)
    first.unlink()
    first.mkdir()
    assert run(["verify", str(sound)]) == 2
    assert f"this is not a regular file path={first}" in capsys.readouterr().err


def test_the_other_logs_are_checked_before_the_error_of_an_unreadable_log(
    sound: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (sound / "t-1" / "leader-epoch-checkpoint").write_bytes(b"not what it should be")
    first = segment(sound, 0)
    first.unlink()
    first.mkdir()
    assert run(["verify", str(sound)]) == 2
    captured = capsys.readouterr()
    assert f"file={sound / 't-1' / 'leader-epoch-checkpoint'}" in captured.out
    assert "\n1 logs, " in captured.out
    assert "; logs that cannot be read: 1\n" in captured.out
    assert f"path={first}" in captured.err


def test_folders_in_place_of_files_of_the_directory_do_not_end_the_check(verify: Call, sound: Path) -> None:
    """An engine ignores them with a warning."""
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (sound / name).unlink()
        (sound / name).mkdir()
    code, problems = verify(sound)
    reported = [(problem["problem"], problem["file"]) for problem in problems]
    assert (code, reported) == (1, [("bounds", str(sound / "recovery-point-offset-checkpoint"))])


# --- repairs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("suffix", "kept"),  # an empty offset index is slow, but correct
    [(".timeindex", 0), *((suffix, kept) for suffix in (".index", ".timeindex") for kept in (0.7, 1, None))],
)
def test_indexes_are_rebuilt(verify: Call, original: Path, sound: Path, suffix: str, kept: float | None) -> None:
    for number in (0, 1, -1):
        path = segment(sound, number, suffix)
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * (kept or 0))] if kept != 1 else b"\x7f" * len(data))
    if kept is None:
        for number in (-1, 1, 0):
            segment(sound, number, suffix).unlink()
    assert verify(sound)[0] == 1
    code, repaired = verify(sound, "--repair")
    assert (code, {problem["repaired"] for problem in repaired}) == (0, {True})
    for path in (sound / "t-0").glob("*index"):
        assert path.read_bytes() == (original / "t-0" / path.name).read_bytes()
    assert verify(sound) == (0, [])
    assert read(sound) == read(original)


def test_a_lost_transaction_index_is_rebuilt(verify: Call, aborted: Path) -> None:
    path = aborted / "t-0" / f"{3:020d}.txnindex"
    data = path.read_bytes()
    path.write_bytes(b"")
    assert verify(aborted, "--repair")[0] == 0
    assert path.read_bytes() == data
    assert verify(aborted) == (0, [])


@pytest.mark.parametrize("position", [0, 1])
def test_a_missing_segment_is_reported(verify: Call, sound: Path, position: int) -> None:
    """Records are missing although no byte is damaged. The indexes of the missing segment show the loss."""
    missing = sorted((sound / "t-0").glob("*.log"))[position]
    missing.rename(f"{missing}.deleted")  # a deletion that a crash interrupted is no loss
    assert verify(sound) == (0, [])
    Path(f"{missing}.deleted").unlink()
    code, problems = verify(sound)
    assert (code, [(problem["problem"], problem["file"]) for problem in problems]) == (1, [("damage", str(missing))])
    assert missing.with_suffix(".index").name in str(problems[0]["text"])
    missing.with_suffix(".index").unlink()
    missing.with_suffix(".timeindex").unlink()
    assert verify(sound) == (0, [])


def test_a_loss_is_reported_although_a_repair_removes_its_traces(verify: Call, sound: Path) -> None:
    """The repair of the indexes of the emptied file also removes the indexes of the missing file."""
    emptied, missing = segment(sound, 0), segment(sound, 1)
    emptied.write_bytes(b"")
    missing.unlink()
    code, problems = verify(sound)
    losses = [(problem["problem"], problem["file"]) for problem in problems if problem["problem"] == "damage"]
    assert (code, losses) == (1, [("damage", str(emptied)), ("damage", str(missing))])
    code, problems = verify(sound, "--repair")
    unrepaired = [(problem["file"], problem["repaired"]) for problem in problems if problem["problem"] == "damage"]
    assert (code, unrepaired) == (1, [(str(emptied), False), (str(missing), False)])
    assert verify(sound) == (0, [])


@pytest.mark.parametrize("cut", [1, 30, 70])
def test_a_torn_tail_is_cut_and_the_directory_opens_again(verify: Call, sound: Path, cut: int) -> None:
    before, path = read(sound), segment(sound, -1)
    path.write_bytes(path.read_bytes()[:-cut])
    code, problems = verify(sound)
    assert code == 1
    assert "torn tail" in {problem["problem"] for problem in problems}
    code, problems = verify(sound, "--repair")
    repaired = {problem["problem"]: problem["repaired"] for problem in problems}
    assert (code, repaired["torn tail"], repaired["bounds"]) == (1, True, False), "the last record was acknowledged"
    assert read(sound) == before[:-1]
    assert not (sound / ".kafka_cleanshutdown").exists()
    with open_engine(sound) as engine:
        assert engine.log("t", 0).offsets().log_end == COUNT - 1
    assert verify(sound) == (0, [])


def test_a_torn_tail_after_an_unclean_stop_loses_no_acknowledged_record(verify: Call, sound: Path) -> None:
    (sound / ".kafka_cleanshutdown").unlink()
    path = segment(sound, -1)
    path.write_bytes(path.read_bytes()[:-1])
    code, problems = verify(sound, "--repair")
    assert (code, {problem["repaired"] for problem in problems}) == (0, {True})


def test_the_lost_end_of_a_log_is_reported_after_the_repair_of_another_log(verify: Call, sound: Path) -> None:
    segment(sound, 0, ".index").unlink()
    recovery_points = sound / "recovery-point-offset-checkpoint"
    recovery_points.write_bytes(recovery_points.read_bytes().replace(b"t 1 0", b"t 1 5"))
    code, problems = verify(sound, "--repair")
    assert code == 1
    assert [str(problem["text"]) for problem in problems if problem["problem"] == "bounds"] == [
        "the recovery point of t-1 is 5, but the log ends at 0"
    ]


@pytest.mark.parametrize("number", [0, 1, -1])
def test_damage_before_good_records_is_reported_and_never_truncated(verify: Call, sound: Path, number: int) -> None:
    path = segment(sound, number)
    flip(path, 70)
    before = {log_path: log_path.read_bytes() for log_path in (sound / "t-0").glob("*.log")}
    for _ in range(2):
        code, problems = verify(sound, "--repair")
        assert code == 1
        assert ("damage", str(path), 0, False) in [
            (problem["problem"], problem["file"], problem["position"], problem["repaired"]) for problem in problems
        ]
        assert {log_path: log_path.read_bytes() for log_path in (sound / "t-0").glob("*.log")} == before


def test_zeros_behind_a_log_are_a_torn_tail(verify: Call, sound: Path) -> None:
    before, path = read(sound), segment(sound, -1)
    path.write_bytes(path.read_bytes() + bytes(5000))
    code, problems = verify(sound, "--repair")
    assert (code, [problem["problem"] for problem in problems]) == (0, ["torn tail"])
    assert read(sound) == before


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", f"{COUNT:020d}.snapshot"])
def test_small_files_are_rebuilt(verify: Call, original: Path, sound: Path, name: str) -> None:
    path = sound / "t-0" / name
    path.write_bytes(b"garbage")
    assert verify(sound, "--repair")[0] == 0
    assert path.read_bytes() == (original / "t-0" / name).read_bytes()
    assert verify(sound) == (0, [])


def test_an_interrupted_replacement_is_reported_and_finished(verify: Call, sound: Path) -> None:
    leftover = sound / "t-0" / (segment(sound, 0).name + ".cleaned")
    leftover.write_bytes(segment(sound, 0).read_bytes())
    code, problems = verify(sound)
    assert (code, [(problem["problem"], problem["file"]) for problem in problems]) == (
        1,
        [("left over", str(leftover))],
    )
    assert verify(sound, "--repair")[0] == 0
    assert not leftover.exists()


def test_one_log_is_repaired_by_itself(verify: Call, sound: Path) -> None:
    second_folder = shutil.copytree(sound / "t-0", sound / "t-1", dirs_exist_ok=True)
    for folder in (sound / "t-0", second_folder):
        max(folder.glob("*.log")).write_bytes(b"torn")
    assert verify(sound / "t-0", "--repair")[0] == 1, "the end of the log is lost"
    assert max((sound / "t-0").glob("*.log")).read_bytes() == b""
    assert max(second_folder.glob("*.log")).read_bytes() == b"torn"
