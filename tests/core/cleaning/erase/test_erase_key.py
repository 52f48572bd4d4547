"""Erasure of a key from a local log."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_runs import printed_items
from log_bed import LogBed
from stratalog import Record, open_engine
from stratalog.cleaning.erase.erase_key import erase
from stratalog.cleaning.erase.erasure_proof import proof_of
from stratalog.cli.app import run
from stratalog.config.topic import TopicConfig
from stratalog.errors import DiskFullError, StorageError
from stratalog.log.log import Log
from stratalog.segment.framing import scan
from stratalog.testing.faults import FaultyVfs

KEPT, GONE = b"kept", b"gone"


def filled(bed: LogBed, magic: int = 2, codec: str | None = None, delay_ms: int = 60_000) -> Log:
    """Return a log with six closed segments of four batches with two records each.

    The segments 1 and 4 do not contain the erased key.
    """
    bed.topic = TopicConfig.from_mapping(
        {"segment.bytes": 1 << 20, "retention.ms": -1, "file.delete.delay.ms": delay_ms}, "test"
    )
    log = bed.open()
    for segment in range(6):
        for _ in range(4):
            key = KEPT if segment % 3 == 1 else GONE
            records = [Record(key=name, value=b"v", timestamp_ms=bed.clock.now_ms()) for name in (key, KEPT)]
            log.append_as_leader(bed.batch(0, records, magic=magic, codec=codec))
        if segment < 5:
            log.roll()
    return log


def data_of(log: Log) -> bytes:
    return b"".join(bytes(segment.read(0, segment.size_bytes)) for segment in log.view().segments)


def batches(bed: LogBed, log: Log) -> list[tuple[int, int, int, int]]:
    """Return last offset, producer id, producer epoch and base sequence of each batch."""
    data = data_of(log)
    tables = scan(bed.components.formats, data, 0, len(data), check_crc=True).tables
    return [
        (batch.last_offset, batch.producer_id, batch.producer_epoch, batch.base_sequence)
        for table in tables
        for batch in table
    ]


@pytest.mark.parametrize(("magic", "codec"), [(2, None), (2, "zstd"), (1, None), (0, "gzip")])
def test_no_record_of_the_key_is_left_and_all_others_are(bed: LogBed, magic: int, codec: str | None) -> None:
    log = filled(bed, magic, codec)
    end = log.offsets().log_end
    before = [(record.offset, record.key, record.timestamp_ms) for record in log.records()]
    result = erase(log, GONE)
    expected = [row for row in before if row[1] != GONE]
    assert [(record.offset, record.key, record.timestamp_ms) for record in log.records()] == expected
    assert (result.error, result.is_complete, result.end) == (None, True, end)
    assert [(segment.base_offset, segment.records) for segment in result.segments] == [
        (base, 4) for base in (0, 16, 24, 40)
    ]
    for proof in result.segments:
        data = bed.path(proof.base_offset).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (proof.bytes_after, proof.sha256_after)
    bed.close()
    reopened_log = bed.open(clean=False)
    assert [(record.offset, record.key, record.timestamp_ms) for record in reopened_log.records()] == expected
    assert reopened_log.append([Record(value=b"next")]).base_offset == end


def test_files_that_are_set_aside_are_reported_until_they_are_deleted(bed: LogBed) -> None:
    log = filled(bed, delay_ms=5000)
    before = {segment.base_offset: bed.path(segment.base_offset).read_bytes() for segment in log.segments()}
    first = erase(log, GONE)
    assert {segment.sha256_before for segment in first.segments} <= {
        hashlib.sha256(data).hexdigest() for data in before.values()
    }
    assert [remnant.until_ms for remnant in first.remnants] == [bed.clock.now_ms() + 5000] * 4
    assert all(Path(remnant.where).exists() for remnant in first.remnants)
    second = erase(log, GONE)
    assert (second.segments, second.remnants) == ((), first.remnants)
    bed.clock.advance_ms(5000)
    log.maintenance.delete_expired()
    assert erase(log, GONE).remnants == ()
    assert not any(GONE in data for data in bed.contents().values())


def test_headers_of_batches_and_producers_stay(bed: LogBed) -> None:
    bed.topic = TopicConfig(retention_ms=-1)
    log = bed.open()
    for sequence in range(3):
        record = Record(key=GONE, value=b"%d" % sequence, timestamp_ms=bed.clock.now_ms())
        log.append_as_leader(bed.batch(0, [record], producer=(7, 0, sequence)))
    for producer, commit in ((8, True), (9, False)):
        records = [Record(key=name, value=b"t", timestamp_ms=bed.clock.now_ms()) for name in (GONE, KEPT)]
        log.append_as_leader(bed.batch(0, records, producer=(producer, 0, 0), transactional=True))
        log.end_transaction(producer, 0, commit=commit, coordinator_epoch=0)
    headers = batches(bed, log)
    committed = [record.offset for record in log.records(isolation="read_committed") if record.key != GONE]
    producers = log.producers()
    assert erase(log, GONE).is_complete
    assert batches(bed, log) == headers
    assert [record.offset for record in log.records(isolation="read_committed")] == committed
    bed.close()
    for file in [*bed.folder.glob("*.snapshot"), *bed.folder.glob("*index")]:
        file.unlink()
    reopened_log = bed.open(clean=False)
    assert [(state.producer_id, state.last_sequence, state.last_offset) for state in reopened_log.producers()] == [
        (state.producer_id, state.last_sequence, state.last_offset) for state in producers
    ]
    assert [record.offset for record in reopened_log.records(isolation="read_committed")] == committed


def test_a_dry_run_changes_nothing(bed: LogBed) -> None:
    log = filled(bed)
    contents = bed.contents()
    planned = erase(log, GONE, dry_run=True)
    assert bed.contents() == contents
    proof = proof_of(planned, log, GONE)
    assert (planned.is_complete, proof["complete"], proof["gone_ms"]) == (True, False, -1)
    actual = erase(log, GONE)
    assert proof_of(actual, log, GONE)["complete"]
    assert [(segment.base_offset, segment.records, segment.sha256_before) for segment in planned.segments] == [
        (segment.base_offset, segment.records, segment.sha256_before) for segment in actual.segments
    ]


def test_a_damaged_segment_is_reported_and_the_others_are_done(bed: LogBed) -> None:
    log = filled(bed)
    bed.close()
    damaged = bytearray(bed.path(16).read_bytes())
    damaged[-1] ^= 1
    bed.path(16).write_bytes(damaged)
    log = bed.open()
    result = erase(log, GONE)
    assert [segment.base_offset for segment in result.segments] == [0, 24, 40]
    (remnant,) = [remnant for remnant in result.remnants if remnant.kind == "damaged segment"]
    assert (str(bed.path(16)), result.is_complete) == (remnant.where, False)


def test_a_log_that_cannot_be_rolled_reports_it_and_keeps_its_records(bed: LogBed) -> None:
    files = FaultyVfs()
    bed.files_port = files
    log = filled(bed)
    files.room_bytes = 0
    result = erase(log, GONE)
    files.room_bytes = None
    assert isinstance(result.error, DiskFullError)
    assert not result.is_complete
    assert len(list(log.records())) == 48
    assert erase(log, GONE).is_complete


@pytest.mark.long
def test_a_second_call_completes_an_erasure_that_failed_at_any_operation(bed: LogBed) -> None:
    """Each operation fails once. The other records stay with their offsets, and a second call completes the erasure."""
    files = FaultyVfs()
    bed.files_port = files
    log = filled(bed, delay_ms=0)
    contents = bed.contents()
    expected = [record.offset for record in log.records() if record.key != GONE]
    erase(log, GONE)
    bed.close()
    failed = 0
    for nth in range(0, 400, 3):
        bed.close()
        bed.write(contents)
        log, countdown = bed.open(clean=False), iter(range(nth))

        def rule(operation: str, path: str, countdown: Iterator[int] = countdown) -> None:
            if operation in {"create", "write", "sync", "rename", "sync_folder"} and next(countdown, None) is None:
                raise OSError(5, "told to fail", path)

        files.rule = rule
        try:
            result = erase(log, GONE)
            ended = result.error is None
        except StorageError:
            ended = False
        files.rule = None
        if ended:
            break
        failed += 1
        bed.crash()
        log = bed.open(clean=False)
        assert [record.offset for record in log.records() if record.key != GONE] == expected
        assert erase(log, GONE).is_complete
        assert [record.offset for record in log.records()] == expected
    assert failed > 10


def test_the_command_prints_the_proof_and_checks_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bucket").mkdir()
    tier = f"file://{tmp_path / 'bucket'}"
    with open_engine(tmp_path / "data", tier=tier) as engine:
        engine.create_topic("t", config={"remote.storage.enable": True, "retention.ms": -1})
        log = engine.log("t", 0)
        for _ in range(2):
            log.append([Record(key=GONE, value=b"v"), Record(key=KEPT, value=b"v")])
            log.roll()
            engine.offload()
        log.append([Record(key=GONE, value=b"v")])
    place = ["--dir", str(tmp_path / "data"), "--tier", tier]
    erasing = ["erase", "t", "--key", GONE.hex(), "--hex", *place]
    assert run([*erasing, "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert [(item["part"], item["base_offset"]) for item in planned["segments"]] == [
        ("local", 4),
        ("tier", 0),
        ("tier", 2),
    ]
    assert run([*erasing, "--json"]) == 0
    output = capsys.readouterr().out
    proof = json.loads(output)
    assert proof["complete"]
    assert GONE.hex() not in output
    assert [(item["part"], item["base_offset"]) for item in proof["segments"]] == [
        ("local", 4),
        ("tier", 0),
        ("tier", 2),
    ]
    assert sorted(item["kind"] for item in proof["remnants"]).count("object") == 2
    file = tmp_path / "proof.json"
    file.write_text(output, encoding="utf-8")
    assert run([*erasing, "--check", str(file), "--json"]) == 1
    remnants = printed_items(capsys)
    assert [item["kind"] for item in remnants] == ["object", "object"]
    assert run(["erase", "t", "--key", "other", *place, "--check", str(file)]) == 2
    assert "another key" in capsys.readouterr().err
    assert run(["erase", "other", "--key", "other", *place, "--check", str(file)]) == 2
    assert run([*erasing, "--check", str(file), "--dry-run"]) == 2
    for text in (
        "",
        "no json",
        "[]",
        "{}",
        json.dumps({**proof, "remnants": [{}]}),
        json.dumps({**proof, "key_salt": "x"}),
    ):
        file.write_text(text, encoding="utf-8")
        assert run([*erasing, "--check", str(file)]) == 2, text
    assert run(["erase", "t", "--key", "nobody", *place]) == 0
    assert run(["erase", "t", "--key", "xyz", "--hex", *place]) == 2
    assert run(["erase", "missing", "--key", "k", *place]) == 2
    assert "hexadecimal" in capsys.readouterr().err
