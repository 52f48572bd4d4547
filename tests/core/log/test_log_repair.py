"""``repair_log`` loses no valid record and reports its repairs. ``check_log`` then finds nothing."""

from __future__ import annotations

import pytest

from entry_parts import seal
from log_bed import LogBed, records
from stratalog.env import PosixVfs
from stratalog.env.vfs import FileStat
from stratalog.log.folder.folder import file_names
from stratalog.log.log_check import CheckpointOffset, check_log
from stratalog.log.log_repair import is_repairable, repair_log
from stratalog.model.messages.control import ControlType
from stratalog.registry.guard import Guard
from stratalog.registry.guarded_parts import guarded_part
from stratalog.segment.finding import FindingKind
from stratalog.spi.segment_store import LogFiles

SPAN = 1 << 31
BEGINS_EARLY = "the transaction that producer 7 aborted at 3 begins at N, before its previous transaction ends"


@pytest.fixture
def sound(bed: LogBed) -> LogBed:
    """Write a log of two segments, and close it cleanly."""
    bed.write_segment(0, [bed.batch(0, records(2)), bed.batch(2, records(2, start=2))])
    bed.write_segment(4, [bed.batch(4, records(2, start=4)), bed.batch(6, records(1, start=6))])
    bed.open(clean=False)
    bed.close()
    return bed


def test_a_sound_log_is_left_as_it_is(sound: LogBed) -> None:
    before = sound.contents()
    report = check_log(sound.files(), sound.components, records=True)
    assert (report.segments, report.batches, report.records, report.log_end) == (2, 4, 7, 7)
    assert repair_log(sound.files(), sound.components, sound.topic, report, 0) == []
    assert sound.contents() == before


def test_each_repairable_finding_is_repaired_once(sound: LogBed) -> None:
    sound.path(4).write_bytes(sound.path(4).read_bytes()[:-3])
    sound.path(0, ".timeindex").write_bytes(bytes(12))
    (sound.folder / "leader-epoch-checkpoint").write_bytes(b"garbage")
    sound.path(0, ".log.cleaned").write_bytes(b"")
    report = check_log(sound.files(), sound.components)
    kinds = {FindingKind.TORN, FindingKind.INDEX, FindingKind.EPOCHS, FindingKind.LEFT_OVER}
    assert kinds <= {finding.kind for finding in report.findings}
    repairs = repair_log(sound.files(), sound.components, sound.topic, report, 0)
    assert [repair.finding for repair in repairs] == report.findings
    assert all(repair.done for repair in repairs)
    after = check_log(sound.files(), sound.components)
    assert (after.findings, after.log_end) == ([], 6)


def test_a_file_that_is_renamed_during_the_check_is_not_missing(sound: LogBed, monkeypatch: pytest.MonkeyPatch) -> None:
    names = file_names(sound.files())
    lists = iter([names, [name for name in names if name != sound.path(0).name]])  # the second list omits the file
    monkeypatch.setattr("stratalog.log.log_check.file_names", lambda _: next(lists, names))
    assert check_log(sound.files(), sound.components).findings == []
    assert next(lists, None) is None


def test_a_segment_that_is_deleted_during_the_check_is_not_missing(
    sound: LogBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = file_names(sound.files())
    base = sound.path(0).name.removesuffix(".log")
    lists = iter([[name for name in names if name != f"{base}.log"], [name for name in names if base not in name]])
    monkeypatch.setattr("stratalog.log.log_check.file_names", lambda _: next(lists, names))
    assert check_log(sound.files(), sound.components).findings == []
    assert next(lists, None) is None


def test_the_producers_are_known_although_all_snapshots_were_damaged(bed: LogBed) -> None:
    """Without any snapshot, a log that was closed cleanly has no producers, as in Kafka."""
    log = bed.open()
    log.append_as_leader(bed.batch(0, records(1), producer=(7, 0, 0), transactional=True))
    for _ in range(2):
        log.roll()
        log.append(records(1))
    producers = log.producers()
    bed.close()
    for name in bed.names():
        if name.endswith(".snapshot"):
            (bed.folder / name).write_bytes(b"garbage")
    report = check_log(bed.files(), bed.components)
    assert {finding.kind for finding in report.findings} == {FindingKind.SNAPSHOT}
    repair_log(bed.files(), bed.components, bed.topic, report, 0)
    assert check_log(bed.files(), bed.components).findings == []
    assert bed.open().producers() == producers


@pytest.mark.parametrize(("first_offset", "is_sound"), [(0, True), (3, True), (4, False)])
def test_an_aborted_transaction_can_begin_below_its_first_batch(
    bed: LogBed, first_offset: int, *, is_sound: bool
) -> None:
    """Compaction and deletion remove batches, and keep the offsets in the index of aborted transactions."""
    transaction = [
        bed.batch(3, records(2), producer=(7, 0, 3), transactional=True),
        bed.marker(5, 7, ControlType.ABORT),
    ]
    bed.write_segment(0, transaction)
    bed.open(clean=False)
    bed.close()
    index = bed.path(0, ".txnindex")
    entry = bytearray(index.read_bytes())
    entry[10:18] = first_offset.to_bytes(8, "big")
    index.write_bytes(entry)
    texts = [finding.text for finding in check_log(bed.files(), bed.components).findings]
    assert texts == ([] if is_sound else ["the transaction that producer 7 aborted at 5 is missing"])


def test_an_aborted_transaction_cannot_begin_before_the_previous_one_ends(bed: LogBed) -> None:
    """Readers would hide the records of the previous transaction, which is committed."""
    log = bed.open()
    for sequence, commit in ((0, True), (1, False)):
        log.append_as_leader(bed.batch(0, records(1), producer=(7, 0, sequence), transactional=True))
        log.end_transaction(7, 0, commit=commit, coordinator_epoch=0)
    bed.close()
    index = bed.path(0, ".txnindex")
    entry = bytearray(index.read_bytes())
    for first_offset, texts in ((2, []), (1, [BEGINS_EARLY]), (0, [BEGINS_EARLY])):
        entry[10:18] = first_offset.to_bytes(8, "big")
        index.write_bytes(entry)
        found_texts = [finding.text for finding in check_log(bed.files(), bed.components).findings]
        assert [text.replace(f"at {first_offset},", "at N,") for text in found_texts] == texts


def test_a_check_lists_the_files_equally_often_for_any_number_of_segments(
    bed: LogBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed_folders: list[str] = []
    real_list = PosixVfs.list

    def count(vfs: PosixVfs, path: str) -> list[FileStat]:
        listed_folders.append(path)
        return real_list(vfs, path)

    monkeypatch.setattr(PosixVfs, "list", count)
    counts = []
    for segment in range(4):
        bed.write_segment(segment, [bed.batch(segment, records(1, start=segment))])
        bed.path(segment, ".index").touch()
        listed_folders.clear()
        check_log(bed.files(), bed.components)
        counts.append(len(listed_folders))
    assert counts == [counts[0]] * 4


def test_a_torn_tail_in_the_segment_store_of_a_plugin_is_truncated(sound: LogBed) -> None:
    """The place of the finding also names the plugin."""
    sound.path(4).write_bytes(sound.path(4).read_bytes()[:-3])
    files = guarded_part(sound.files(), LogFiles, Guard("segment store memory", "plugin a/b"))
    report = check_log(files, sound.components)
    torn, *_ = repair_log(files, sound.components, sound.topic, report, 0)
    assert torn.finding.kind is FindingKind.TORN
    assert "plugin a/b" in torn.finding.place
    assert check_log(files, sound.components).findings == []


def test_damage_is_not_repaired(sound: LogBed) -> None:
    data = bytearray(sound.path(0).read_bytes())
    data[70] ^= 1
    sound.path(0).write_bytes(data)
    report = check_log(sound.files(), sound.components)
    assert [finding.kind for finding in report.findings] == [FindingKind.DAMAGE]
    assert not any(map(is_repairable, report.findings))
    assert repair_log(sound.files(), sound.components, sound.topic, report, 0) == []
    assert sound.path(0).read_bytes() == data


@pytest.mark.parametrize("was_clean", [True, False])
def test_a_log_that_ends_below_a_checkpoint_has_lost_its_end_only_after_a_clean_stop(
    sound: LogBed, *, was_clean: bool
) -> None:
    checkpoints = [CheckpointOffset("the file", "high watermark of t-0", 9), CheckpointOffset("other", "log start", 7)]
    report = check_log(sound.files(), sound.components, checkpoints=checkpoints, was_clean=was_clean)
    findings = [(finding.kind, finding.place, finding.text) for finding in report.findings]
    text = "the high watermark of t-0 is 9, but the log ends at 7"
    assert findings == ([(FindingKind.BOUNDS, "the file", text)] if was_clean else [])
    assert report.known_end == 9


def test_bad_records_of_an_overflowed_segment_have_their_position_in_the_file(bed: LogBed) -> None:
    """The check reads the segment in pieces, each of which begins at position 0."""
    damaged = bytearray(bed.batch(SPAN + 5, records(1)))
    damaged[57:61] = (2).to_bytes(4, "big")  # the number of records
    seal(damaged)
    first = bed.batch(0, records(1))
    bed.write_segment(0, [first, damaged])
    bed.write_segment(2 * SPAN, [bed.batch(2 * SPAN, records(1))])
    report = check_log(bed.files(), bed.components, records=True)
    (damage,) = [finding for finding in report.findings if finding.kind is FindingKind.DAMAGE]
    assert (damage.place, damage.position) == (str(bed.path(0)), len(first))
