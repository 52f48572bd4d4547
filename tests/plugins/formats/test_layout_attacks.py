"""Attacks on the bucket of an encrypted topic without the key: every attack raises an error that names an object."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from command_runs import printed_items
from forged_roots import forge_root, read_root, root_paths, write_root
from stratalog import Engine, Record, open_engine, open_reader
from stratalog.cli.app import run
from stratalog.config.settings_sources import Settings, read_settings
from stratalog.config.topic import TopicConfig
from stratalog.engine.restore.restore import restore
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.errors import ConfigError, CorruptManifestError, CorruptObjectError, TamperedManifestError
from stratalog.model.names import TIER_NOTE_FILE, TopicPartition
from stratalog.reading import OffsetRange, ReadSource, plan_splits
from stratalog.reading.open_reader import open_host, open_tier
from stratalog.segment.components import Components
from stratalog.segment.finding import FindingKind
from stratalog.tier.manifest.head import WARM_HEAD_MS
from stratalog.tier.tier import Tier
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.tier_check import TierLogCheck
from stratalog.tier.upkeep.tier_repair import TierRepair

FIRST, SECOND = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
VALUES: Final = [b"0", b"1", b"2"]
EARLIER_RELEASE: Final = Path(__file__).parents[2] / "data" / "encrypted-1" / "bucket"
Attack = Callable[[Path], object]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.toml"
    return written(file, f'active = "first"\n[keys]\nfirst = "{FIRST}"\n')


def written(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)
    file.chmod(0o600)
    return file


@pytest.fixture
def settings(keys: Path) -> dict[str, Any]:
    return {"plugins": {"encrypted": {"keys.file": str(keys)}}}


def with_policy(settings: dict[str, Any], policy: str) -> dict[str, Any]:
    return {"plugins": {"encrypted": {**settings["plugins"]["encrypted"], "manifest.unauthenticated": policy}}}


@pytest.fixture
def bucket(tmp_path: Path, settings: dict[str, Any]) -> Path:
    """Return a bucket with the encrypted topics ``t`` and ``u``, with three segments each.

    The directory of the engine is ``source``.
    """
    new_bucket = tmp_path / "bucket"
    new_bucket.mkdir()
    with open_engine(tmp_path / "source", tier=new_bucket.as_uri(), config=settings) as engine:
        for topic in ("t", "u"):
            engine.create_topic(topic, config={"tier.layout": "encrypted", "retention.ms": -1})
            fill(engine, topic, VALUES)
        engine.offload()
    return new_bucket


def fill(engine: Engine, topic: str, values: list[bytes]) -> None:
    for value in values:
        engine.log(topic, 0).append([Record(key=b"k", value=value)])
        engine.log(topic, 0).roll()


def values(bucket: Path, settings: dict[str, Any], topic: str = "t") -> list[bytes | None]:
    with open_reader(bucket.as_uri(), config=settings) as reader:
        return [record.value for record in reader.log(topic, 0).records()]


def heads(bucket: Path, topic: str = "t") -> list[Path]:
    return root_paths(bucket, f"{topic}-*/*")


# --- roots -----------------------------------------------------------------------------------------------------------


def test_without_an_attack_everything_is_read_and_every_root_has_a_mac(bucket: Path, settings: dict[str, Any]) -> None:
    assert values(bucket, settings) == VALUES
    for path in root_paths(bucket):
        root = read_root(path)
        assert root["format_version"] == 4
        assert root["mac"][:2] == ["encrypted", "first"]
        assert len(root["mac"][2]) == 64
    assert all(entry["layout"] == "encrypted@2" for entry in read_root(heads(bucket)[-1])["entries"])


def strip_mac(path: Path) -> None:
    def change(root: dict[str, Any]) -> None:
        del root["mac"]
        root["format_version"] = 3

    forge_root(path, change)


def put_plaintext(bucket: Path, *, keeps_mac: bool) -> None:
    """Replace the second segment by a plaintext segment, as an engine without encryption writes it."""
    folder = bucket.parent / "forger"
    (folder / "bucket").mkdir(parents=True)
    with open_engine(folder / "data", tier=(folder / "bucket").as_uri()) as engine:
        engine.create_topic("t", config={"retention.ms": -1})
        fill(engine, "t", [b"0", b"forged"])
        engine.offload()
    forged_entry = read_root(heads(folder / "bucket")[-1])["entries"][1]
    forged_log, attacked_log = (next(bucket_folder.glob("t-*/0")) for bucket_folder in (folder / "bucket", bucket))
    shutil.copytree(forged_log / "segments", attacked_log / "segments", dirs_exist_ok=True)

    def change(root: dict[str, Any]) -> None:
        old = root["entries"][1]
        root["entries"][1] = forged_entry
        root["size_bytes"] += forged_entry["size_bytes"] - old["size_bytes"]

    forge_root(heads(bucket)[-1], change)
    if not keeps_mac:
        strip_mac(heads(bucket)[-1])


def put_older_object(bucket: Path) -> None:
    """Replace the second entry by a copy of the first one, with the offsets of the second one.

    The copy refers to the first object and has its key.
    """

    def change(root: dict[str, Any]) -> None:
        older = json.loads(json.dumps(root["entries"][0]))
        older["base_offset"], older["end_offset"] = 1, 2
        root["entries"][1] = older

    forge_root(heads(bucket)[-1], change)


def change_offset(bucket: Path) -> None:
    forge_root(heads(bucket)[-1], lambda root: root.update(first_dirty_offset=1))


def take_another_logs_root(bucket: Path) -> None:
    """Replace the root of ``t`` by that of topic ``u``, with the topic and topic id of ``t``."""
    own_root, other_root = read_root(heads(bucket)[-1]), read_root(heads(bucket, "u")[-1])
    write_root(heads(bucket)[-1], {**other_root, "topic": own_root["topic"], "topic_id": own_root["topic_id"]})


def copy_another_logs_root(bucket: Path) -> None:
    heads(bucket)[-1].write_bytes(heads(bucket, "u")[-1].read_bytes())


def continue_the_chain(bucket: Path) -> None:
    """Add a root with the next version and the content of the latest root."""
    head = heads(bucket)[-1]
    root = read_root(head)
    version = root["version"] + 1
    commits = [*root["recent_commits"], "f" * 32]
    forged_root = {**root, "version": version, "commit_id": "f" * 32, "recent_commits": commits}
    write_root(head.with_name(f"{version:020d}"), forged_root)


def older_root_under_the_newest_key(bucket: Path) -> None:
    paths = heads(bucket)
    paths[-1].write_bytes(paths[-2].read_bytes())


def older_root_with_the_newest_version(bucket: Path) -> None:
    paths = heads(bucket)
    newest, older = read_root(paths[-1]), read_root(paths[-2])
    commits = [*older["recent_commits"], newest["commit_id"]]
    write_root(
        paths[-1],
        {
            **older,
            "version": newest["version"],
            "commit_id": newest["commit_id"],
            "recent_commits": commits,
            "parent_sha256": newest["parent_sha256"],
        },
    )


def mac_of_a_key_that_nobody_has(bucket: Path) -> None:
    forge_root(heads(bucket)[-1], lambda root: root["mac"].__setitem__(1, "mine"))


ATTACKS: Final[dict[str, Attack]] = {
    "an entry replaced by plaintext": lambda bucket: put_plaintext(bucket, keeps_mac=True),
    "an entry replaced by plaintext, without the MAC": lambda bucket: put_plaintext(bucket, keeps_mac=False),
    "an older object": put_older_object,
    "a changed number": change_offset,
    "the MAC is stripped": lambda bucket: strip_mac(heads(bucket)[-1]),
    "the root of another log": copy_another_logs_root,
    "the root of another log under our names": take_another_logs_root,
    "a further version": continue_the_chain,
    "an older root under the newest key": older_root_under_the_newest_key,
    "an older root with the newest version": older_root_with_the_newest_version,
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.long
def test_a_reader_refuses_a_changed_root_and_names_it(bucket: Path, settings: dict[str, Any], attack: str) -> None:
    ATTACKS[attack](bucket)
    with pytest.raises(CorruptManifestError, match=r"/manifest/0000"):
        values(bucket, settings)


def test_splits_for_other_processes_are_planned_from_checked_roots_alone(
    bucket: Path, settings: dict[str, Any]
) -> None:
    source = pickle.loads(pickle.dumps(ReadSource(bucket.as_uri(), config=settings)))  # noqa: S301 - our own bytes
    ranges = [OffsetRange(TopicPartition("t", 0), 0, 3)]
    with source.open() as reader:
        assert sum(len(split.pieces) for split in plan_splits(reader, ranges)) == 3
    put_plaintext(bucket, keeps_mac=True)
    with source.open() as reader, pytest.raises(TamperedManifestError):
        plan_splits(reader, ranges)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.long
def test_attach_and_restore_refuse_a_changed_root_and_change_nothing(
    tmp_path: Path, bucket: Path, settings: dict[str, Any], attack: str
) -> None:
    ATTACKS[attack](bucket)
    before = root_paths(bucket)
    with pytest.raises(CorruptManifestError):
        open_engine(tmp_path / "new", tier=bucket.as_uri(), config=settings, attach=["t"])
    with pytest.raises(CorruptManifestError):
        restore(bucket.as_uri(), tmp_path / "restored", config=settings)
    assert root_paths(bucket) == before


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.long
def test_a_check_of_the_tier_finds_a_changed_root(bucket: Path, settings: dict[str, Any], attack: str) -> None:
    ATTACKS[attack](bucket)
    with tier_log(bucket, settings) as log:
        findings = list(TierLogCheck(log, open_parts(), contents=False).roots())
    assert FindingKind.ROOT in {finding.kind for finding in findings}


def open_parts() -> Components:
    host = open_host(Settings(), (), None)
    host.close()
    return host.components(TopicConfig())


def test_a_mac_of_an_unknown_key_is_an_error_that_names_the_key_and_the_root(
    bucket: Path, settings: dict[str, Any]
) -> None:
    mac_of_a_key_that_nobody_has(bucket)
    with pytest.raises(ConfigError, match=r"no key 'mine'.* key=.*/manifest/0000"):
        values(bucket, settings)


def test_a_page_of_another_log_is_refused(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("entry_tree", "root", "manifest_checks", "page_codec"):
        monkeypatch.setattr(f"stratalog.tier.manifest.{module}.PAGE_ITEMS", 2)
    monkeypatch.setattr("stratalog.tier.upkeep.manifest_rebuild.PAGE_ITEMS", 2)
    (tmp_path / "bucket").mkdir()
    with open_engine(tmp_path / "a", tier=(tmp_path / "bucket").as_uri(), config=settings) as engine:
        for topic in ("t", "u"):
            engine.create_topic(topic, config={"tier.layout": "encrypted", "retention.ms": -1})
            fill(engine, topic, VALUES)
        engine.offload()
    (own_page,) = (tmp_path / "bucket").glob("t-*/0/pages/*")
    (other_page,) = (tmp_path / "bucket").glob("u-*/0/pages/*")
    assert values(tmp_path / "bucket", settings) == VALUES
    own_page.write_bytes(other_page.read_bytes())
    with pytest.raises(CorruptManifestError, match=r"t-.*/0/pages/"):
        values(tmp_path / "bucket", settings)


# --- objects ---------------------------------------------------------------------------------------------------------


def segments(bucket: Path, topic: str = "t") -> list[Path]:
    return sorted(bucket.glob(f"{topic}-*/0/segments/*"))


def test_an_object_of_another_log_or_of_another_offset_is_refused(bucket: Path, settings: dict[str, Any]) -> None:
    for victim, source in ((segments(bucket)[1], segments(bucket, "u")[1]), (segments(bucket)[1], segments(bucket)[0])):
        before = victim.read_bytes()
        victim.write_bytes(source.read_bytes())
        with pytest.raises(CorruptObjectError, match=victim.name):
            values(bucket, settings)
        victim.write_bytes(before)


def test_a_rebuild_leaves_out_objects_that_were_moved_and_plaintext(
    tmp_path: Path, bucket: Path, settings: dict[str, Any]
) -> None:
    """An older object is renamed so that it looks like the newest one. A plaintext segment claims a higher epoch."""
    put_plaintext(bucket, keeps_mac=True)
    planted_names = set[str]()
    for path in segments(bucket):
        if not path.read_bytes().endswith(b"STLGENC1"):
            base, _, unique = path.name.split("-")
            planted_names.add(path.rename(path.with_name(f"{base}-7-{unique}")).name)
    moved_object = segments(bucket)[1].with_name(f"{0:020d}-9-{'f' * 32}.seg")
    shutil.copy(segments(bucket)[0], moved_object)
    for folder in bucket.glob("t-*/0/manifest"):
        shutil.rmtree(folder)
    with open_engine(tmp_path / "new", tier=bucket.as_uri(), config=settings) as engine:
        assert isinstance(engine.tier, Tier)
        (name,) = engine.tier.lost()
        report = engine.tier.rebuild(name)
    assert {key.rpartition("/")[2] for key, _ in report.ignored} >= {*planted_names, moved_object.name}
    assert values(bucket, settings) == VALUES
    assert read_root(heads(bucket)[-1])["mac"][1] == "first"


def test_a_rebuild_without_keys_stops_and_writes_nothing(tmp_path: Path, bucket: Path) -> None:
    for folder in bucket.glob("t-*/0/manifest"):
        shutil.rmtree(folder)
    with open_engine(tmp_path / "new", tier=bucket.as_uri()) as engine:
        assert isinstance(engine.tier, Tier)
        (name,) = engine.tier.lost()
        with pytest.raises(ConfigError, match=r"keys\.file"):
            engine.tier.rebuild(name)
    assert not heads(bucket)


# --- rollbacks to an earlier state -----------------------------------------------------------------------------------


def opened(tmp_path: Path, bucket: Path, settings: dict[str, Any]) -> list[bytes | None]:
    with open_engine(tmp_path / "source", tier=bucket.as_uri(), config=settings) as engine:
        return [record.value for record in engine.log("t", 0).records()]


def drop_the_newest(bucket: Path) -> None:
    heads(bucket)[-1].unlink()


def drop_the_manifest(bucket: Path) -> None:
    shutil.rmtree(heads(bucket)[0].parent)


@pytest.mark.parametrize("attack", [drop_the_newest, drop_the_manifest])
def test_the_note_on_local_disk_refuses_a_tier_that_was_rolled_back(
    tmp_path: Path, bucket: Path, settings: dict[str, Any], attack: Attack
) -> None:
    assert opened(tmp_path, bucket, settings) == VALUES
    note = json.loads((tmp_path / "source" / "t-0" / TIER_NOTE_FILE).read_bytes())
    assert note["manifest_version"] == read_root(heads(bucket)[-1])["version"]
    attack(bucket)
    with pytest.raises(
        TamperedManifestError, match=r"the note on local disk is about version \d of t-0.*/manifest/0000"
    ):
        opened(tmp_path, bucket, settings)


def test_the_note_accepts_what_a_repair_made_of_a_damaged_head(
    tmp_path: Path, bucket: Path, settings: dict[str, Any]
) -> None:
    assert opened(tmp_path, bucket, settings) == VALUES
    heads(bucket)[-1].write_bytes(b"{")
    with tier_log(bucket, settings) as log:
        assert [repair.finding.kind for repair in TierRepair(log).manifest()] == [FindingKind.ROOT]
    assert opened(tmp_path, bucket, settings) == VALUES


@pytest.mark.parametrize("attack", ["an older object", "the MAC is stripped", "an entry replaced by plaintext"])
def test_a_repair_brings_back_what_the_key_authenticates(bucket: Path, settings: dict[str, Any], attack: str) -> None:
    ATTACKS[attack](bucket)
    with tier_log(bucket, settings) as log:
        assert all(repair.done for repair in TierRepair(log).manifest())
    assert values(bucket, settings) == VALUES
    assert "mac" in read_root(heads(bucket)[-1])


def test_a_repair_does_not_replace_a_missing_encrypted_segment_by_plaintext(
    bucket: Path, settings: dict[str, Any]
) -> None:
    put_plaintext(bucket, keeps_mac=True)
    for path in segments(bucket):
        base, epoch, unique = path.name.split("-")
        if path.read_bytes().endswith(b"STLGENC1"):
            if int(base) == 2:
                path.unlink()
        elif int(base) == 1:
            path.rename(path.with_name(f"{2:020d}-{epoch}-{unique}"))
    with tier_log(bucket, settings) as log:
        list(TierRepair(log).manifest())
    assert b"forged" not in values(bucket, settings)


def test_an_open_tier_refuses_an_older_root(bucket: Path, settings: dict[str, Any]) -> None:
    clock = ManualClock()
    with tier_log(bucket, settings, clock=clock) as log:
        assert log.refresh().end_offset == 3
        drop_the_newest(bucket)
        clock.sleep_ms(WARM_HEAD_MS + 1)
        with pytest.raises(CorruptManifestError, match="manifest"):
            log.refresh()


def test_an_earlier_state_without_a_mac_must_be_the_one_that_was_continued(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """A root without a MAC is accepted only if a later root with a MAC refers to it by its hash."""
    bucket = turned_on(tmp_path, settings)
    with open_reader(bucket.as_uri(), config=settings, as_of=2) as reader:
        assert reader.log("t", 0).offsets().log_end == 1
    forge_root(heads(bucket)[1], lambda root: root.update(created_ms=root["created_ms"] + 1))
    with (
        open_reader(bucket.as_uri(), config=settings, as_of=2) as reader,
        pytest.raises((TamperedManifestError, ConfigError), match=r"no MAC|cannot be read as of 2"),
    ):
        reader.log("t", 0)


# --- missing keys, other keys, and logs from before encryption -------------------------------------------------------


def turned_on(tmp_path: Path, settings: dict[str, Any]) -> Path:
    """Return a bucket with topic ``t``: one segment from before its encryption, and an encrypted one."""
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with open_engine(tmp_path / "source", tier=bucket.as_uri(), config=settings) as engine:
        engine.create_topic("t", config={"retention.ms": -1})
        fill(engine, "t", [b"plain"])
        engine.offload()
        engine.alter_topic("t", {"tier.layout": "encrypted"})
        fill(engine, "t", [b"secret"])
        engine.offload()
    return bucket


def test_segments_from_before_encryption_are_read_because_the_mac_covers_their_entries(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    bucket = turned_on(tmp_path, settings)
    head = read_root(heads(bucket)[-1])
    assert [entry["layout"] for entry in head["entries"]] == ["single@1", "encrypted@2"]
    assert "mac" in head
    assert "mac" not in read_root(heads(bucket)[0])
    assert values(bucket, settings) == [b"plain", b"secret"]
    with open_engine(tmp_path / "source", tier=bucket.as_uri(), config=settings) as engine:
        engine.alter_topic("t", {"tier.layout": "single"})
        fill(engine, "t", [b"plain again"])
        engine.offload()
    assert "mac" in read_root(heads(bucket)[-1])
    assert values(bucket, settings) == [b"plain", b"secret", b"plain again"]


def test_without_keys_a_manifest_is_shown_with_a_warning_and_not_written(
    tmp_path: Path, bucket: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), tier_log(bucket, {}) as log:
        assert next(log.history()).end_offset == 3
    assert [text for text in caplog.messages if "is not checked" in text and "t-0" in text] == [
        "the MAC of the manifest is not checked: layout encrypted is not installed or has no keys: log=t-0"
    ]
    with open_reader(bucket.as_uri()) as reader, pytest.raises(ConfigError, match=r"keys\.file"):
        reader.log("t", 0)
    before = heads(bucket)
    with pytest.raises(ConfigError, match="configure its keys"):
        open_engine(tmp_path / "new", tier=bucket.as_uri(), attach=["t"])
    assert heads(bucket) == before


def test_a_dump_shows_the_mac_without_a_key(bucket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dump", str(heads(bucket)[-1]), "--json"]) == 0
    items = printed_items(capsys)
    assert [item["mac"][:2] for item in items if item["kind"] == "manifest"] == [["encrypted", "first"]]


def earlier(tmp_path: Path) -> Path:
    return shutil.copytree(EARLIER_RELEASE, tmp_path / "earlier")


def test_a_log_of_an_earlier_release_is_read_with_one_warning(
    tmp_path: Path, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    bucket = earlier(tmp_path)
    with caplog.at_level(logging.WARNING), open_reader(bucket.as_uri(), config=settings) as reader:
        for _ in range(2):
            assert [record.value for record in reader.log("sealed", 0).records()] == [b"0", b"1"]
    assert len([text for text in caplog.messages if "has no MAC" in text and "sealed-0" in text]) == 1


def test_plaintext_in_a_log_of_an_earlier_release_is_refused_until_it_is_accepted(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    bucket = earlier(tmp_path)
    with pytest.raises(
        TamperedManifestError, match=r"names a segment of layout single@1, but .*/segments/0000.* to accept"
    ):
        values(bucket, settings, "mixed")
    with pytest.raises(TamperedManifestError):
        rewrap(bucket, settings, "mixed")
    accepting = with_policy(settings, "accept")
    assert values(bucket, accepting, "mixed") == [b"0", b"1"]
    rewrap(bucket, accepting, "mixed")
    assert values(bucket, settings, "mixed") == [b"0", b"1"]


def test_no_manifest_without_a_mac_is_read_where_that_is_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    bucket = earlier(tmp_path)
    strict = with_policy(settings, "refuse")
    for topic in ("sealed", "mixed"):
        with pytest.raises(TamperedManifestError, match="settings of layout encrypted refuse"):
            values(bucket, strict, topic)
    rewrap(bucket, settings, "sealed")
    assert values(bucket, strict, "sealed") == [b"0", b"1"]


def rewrap(bucket: Path, settings: dict[str, Any], topic: str = "t") -> None:
    with tier_log(bucket, settings, topic) as log:
        log.rewrap()


@contextmanager
def tier_log(
    bucket: Path, settings: dict[str, Any], topic: str = "t", clock: ManualClock | None = None
) -> Iterator[TierLog]:
    host = open_host(read_settings(settings, {}), (), Env(clock=clock) if clock is not None else None)
    try:
        with open_tier(host, bucket.as_uri(), None, read_only=False) as tier:
            yield tier.log(*next(log_name for log_name in tier.logs() if log_name.log.topic == topic))
    finally:
        host.close()


def test_rewrapping_replaces_the_mac_of_the_old_key_by_one_of_the_new_key(
    bucket: Path, keys: Path, settings: dict[str, Any]
) -> None:
    written(keys, f'active = "second"\n[keys]\nfirst = "{FIRST}"\nsecond = "{SECOND}"\n')
    rewrap(bucket, settings)
    written(keys, f'active = "second"\n[keys]\nsecond = "{SECOND}"\n')
    assert read_root(heads(bucket)[-1])["mac"][1] == "second"
    assert values(bucket, settings) == VALUES
    before = len(heads(bucket))
    rewrap(bucket, settings)
    assert len(heads(bucket)) == before
    with pytest.raises(ConfigError, match="no key 'first'"):
        values(bucket, settings, "u")
