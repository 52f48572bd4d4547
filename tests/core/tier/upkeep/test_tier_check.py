"""Checks of a tier: each kind of damage is found, reported with its place, and does not hide other damage."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stratalog
from log_bed import LogBed
from stratalog import Record
from stratalog.config.settings_sources import Settings
from stratalog.config.topic import TopicConfig
from stratalog.env import Env
from stratalog.env.clock import ManualClock, SystemClock
from stratalog.reading.open_reader import open_host, open_tier
from stratalog.registry.registry import Registry
from stratalog.segment.components import Components
from stratalog.segment.finding import Finding, FindingKind
from stratalog.spi.layouts import StoredSegment
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID, made_segment
from stratalog.tier.manifest import entry_tree
from stratalog.tier.manifest.json_fields import canonical
from stratalog.tier.manifest.root_codec import seal
from stratalog.tier.store.object_keys import log_prefix, manifest_key, segment_key
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.tier_check import TierLogCheck
from tier_bed import TierBed, made_segments

SMALL = {"segment.bytes": 3000, "index.interval.bytes": 500, "retention.ms": -1}
LAYOUTS = ("single", "plain", "chunked")


def findings_of(log: TierLog, components: Components, *, deep: bool = False, orphans: bool = True) -> list[Finding]:
    check = TierLogCheck(log, components, contents=deep)
    findings = list(check.roots())
    for segment_or_finding in check.segments():
        findings += [segment_or_finding] if isinstance(segment_or_finding, Finding) else check.check(segment_or_finding)
    return findings + (list(check.orphans()) if orphans else [])


class Bucket:
    """A tier in a folder that an engine filled, and methods that damage it."""

    def __init__(self, folder: Path, layout: str, before_offload: Callable[[Path], None] = lambda _: None) -> None:
        self.folder = folder / "bucket"
        self.folder.mkdir()
        uri = f"file://{self.folder}"
        with stratalog.open_engine(folder / "data", tier=uri) as engine:
            engine.create_topic("orders", config={**SMALL, "tier.layout": layout})
            log = engine.log("orders", 0)
            for number in range(36):
                log.append([Record(timestamp_ms=1000 + number, key=b"k", value=bytes([number]) * 300)])
            before_offload(folder / "data")
            engine.offload()
        clock = ManualClock(SystemClock().now_ms())  # pauses between attempts take no time
        self.host = open_host(Settings(), (), Env(clock=clock))
        self.tier = open_tier(self.host, uri, None, read_only=True)
        (name,) = self.tier.logs()
        self.log = self.tier.log(*name)
        assert self.log.root is not None
        self.entries: tuple[StoredSegment, ...] = self.log.root.entries
        self.prefix = log_prefix(*name)

    def check(self, *, deep: bool = False) -> list[Finding]:
        return findings_of(self.log, self.host.components(TopicConfig()), deep=deep)

    def cut(self, key: str, size_bytes: int) -> None:
        """Truncate an object to this size."""
        path = self.folder / key
        path.write_bytes(path.read_bytes()[:size_bytes])

    def flip(self, key: str, position: int) -> None:
        """Flip the lowest bit of a byte."""
        path = self.folder / key
        data = bytearray(path.read_bytes())
        data[position] ^= 1
        path.write_bytes(data)

    def close(self) -> None:
        self.tier.close()
        self.host.close()


@pytest.fixture(params=LAYOUTS)
def bucket(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bucket]:
    new_bucket = Bucket(tmp_path, request.param)
    yield new_bucket
    new_bucket.close()


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Bucket]:
    new_bucket = Bucket(tmp_path, "single")
    yield new_bucket
    new_bucket.close()


def test_nothing_is_wrong_with_a_sound_tier(bucket: Bucket) -> None:
    assert len(bucket.entries) > 3
    assert bucket.check() == bucket.check(deep=True) == []


def test_a_missing_object(bucket: Bucket) -> None:
    victim = bucket.entries[1]
    for key in victim.keys:
        (bucket.folder / key).unlink()
    findings = bucket.check()
    assert [(finding.kind, finding.place, finding.segment) for finding in findings] == [
        (FindingKind.MISSING, key, victim) for key in sorted(victim.keys)
    ]


def test_an_object_that_was_cut(bucket: Bucket) -> None:
    for kind, place in bucket.entries[1].slices.items():
        before = (bucket.folder / place.key).read_bytes()
        if place.size_bytes:
            bucket.cut(place.key, place.position + place.size_bytes - 1)
            findings = [finding for finding in bucket.check() if finding.kind is FindingKind.SIZE]
            assert [(finding.place, finding.segment) for finding in findings] == [(place.key, bucket.entries[1])], kind
            assert findings[0].position == place.position + place.size_bytes - 1
            (bucket.folder / place.key).write_bytes(before)


def test_a_flipped_bit_in_a_small_file(bucket: Bucket) -> None:
    victim = bucket.entries[2]
    for kind, place in victim.slices.items():
        if kind != "log" and place.size_bytes:
            bucket.flip(place.key, place.position)
            findings = bucket.check()
            assert [(finding.kind, finding.place) for finding in findings] == [(FindingKind.FILE, place.key)]
            assert kind in findings[0].text
            bucket.flip(place.key, place.position)


def test_a_flipped_bit_in_the_copy_of_an_entry(bucket: Bucket) -> None:
    victim = bucket.entries[1]
    other_keys = victim.keys - {place.key for place in victim.slices.values()}
    key = min(other_keys, default=victim.log_key)
    bucket.flip(key, (bucket.folder / key).stat().st_size - 30)
    findings = bucket.check()
    assert [(finding.kind, finding.place, finding.segment) for finding in findings] == [(FindingKind.FILE, key, victim)]
    assert "copy of the entry" in findings[0].text


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_flipped_bit_in_the_log_is_found_deep_down(bucket: Bucket, share: float) -> None:
    place = bucket.entries[0].slices[next(kind for kind in bucket.entries[0].slices if kind == "log")]
    position = place.position + int(place.size_bytes * share)
    bucket.flip(place.key, position)
    assert bucket.check() == []
    findings = bucket.check(deep=True)
    assert [(finding.kind, finding.place, finding.segment) for finding in findings] == [
        (FindingKind.LOG, place.key, bucket.entries[0])
    ]


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_an_index_that_does_not_match_the_batches_is_found_only_with_contents(
    tmp_path: Path, suffix: str, request: pytest.FixtureRequest
) -> None:
    """The entry was changed on local disk before the offload. Its format is valid, and the tier stores it unchanged."""

    def damage_disk(data: Path) -> None:
        path = data / "orders-0" / f"{0:020}.{suffix}"
        entries = bytearray(path.read_bytes())
        entries[7] ^= 1  # the position of the first entry, or its timestamp
        path.write_bytes(entries)

    bucket = Bucket(tmp_path, "single", before_offload=damage_disk)
    request.addfinalizer(bucket.close)
    assert bucket.check() == []
    (finding,) = bucket.check(deep=True)
    assert (finding.kind, finding.segment) == (FindingKind.INDEX, bucket.entries[0])
    assert finding.text.startswith(f"the {suffix} file: ")


def test_a_bad_batch_is_reported_with_its_position(single: Bucket) -> None:
    place = next(place for kind, place in single.entries[0].slices.items() if kind == "log")
    single.flip(place.key, place.size_bytes - 1)
    (finding,) = single.check(deep=True)
    assert 0 < finding.position < place.size_bytes


def test_the_log_of_another_segment_is_noticed(single: Bucket) -> None:
    first, second = single.entries[:2]
    (first_key,), (second_key,) = first.keys, second.keys
    (single.folder / first_key).write_bytes((single.folder / second_key).read_bytes())
    assert FindingKind.LOG in {finding.kind for finding in single.check(deep=True)}


def test_a_damaged_root_hides_nothing_that_the_one_before_names(single: Bucket) -> None:
    assert single.log.root is not None
    head = single.log.root.version
    single.cut(manifest_key(single.prefix, head), 100)
    (single.folder / next(iter(single.entries[0].keys))).unlink()
    assert [finding.kind for finding in single.check()] == [FindingKind.ROOT, FindingKind.MISSING]


def test_a_root_that_was_rewritten_breaks_the_chain(single: Bucket) -> None:
    """An attacker can also compute the ``body_sha256`` of the changed root."""
    path = single.folder / manifest_key(single.prefix, 2)
    value = json.loads(path.read_bytes())
    del value["body_sha256"]
    path.write_bytes(seal(canonical({**value, "created_ms": value["created_ms"] + 1})))
    findings = single.check()
    assert [finding.kind for finding in findings] == [FindingKind.ROOT]
    assert "does not follow the stored version 2" in findings[0].text


@pytest.mark.parametrize("version", [2, -1], ids=["an older one", "the head"])
def test_a_flipped_bit_is_reported_for_its_root(single: Bucket, version: int) -> None:
    """The flipped bit is in a number, so that only the hash shows the damage."""
    assert single.log.root is not None
    key = manifest_key(single.prefix, version if version > 0 else single.log.root.version)
    single.flip(key, (single.folder / key).read_bytes().index(b'"created_ms":') + 20)
    findings = single.check()
    assert [(finding.kind, finding.place) for finding in findings] == [(FindingKind.ROOT, key)]
    assert "hash" in findings[0].text


def test_a_root_that_is_missing_in_the_middle_is_reported(single: Bucket) -> None:
    (single.folder / manifest_key(single.prefix, 3)).unlink()
    findings = single.check()
    assert [finding.kind for finding in findings] == [FindingKind.ROOT]
    assert "versions 3 to 3 are missing" in findings[0].text


def test_an_orphan_is_listed(single: Bucket) -> None:
    key = segment_key(single.prefix, 5, 0, uuid.UUID(int=7))
    (single.folder / key).write_bytes(b"never committed")
    assert [(finding.kind, finding.place) for finding in single.check()] == [(FindingKind.ORPHAN, key)]


def test_objects_that_only_a_missing_root_named_are_no_orphans(tmp_path: Path, installed: Registry) -> None:
    bed = TierBed()
    log = bed.open().log(LOG, TOPIC_ID)
    log.offload(made_segments(0, 10, 20), layout="pair", leader_epoch=0, log_start=0, high_watermark=20)
    log.expire(20, leader_epoch=0, reason="a test")
    with LogBed(tmp_path, installed) as parts:
        assert findings_of(log, parts.components) == []
        del bed.bucket.objects[manifest_key(log.prefix, 2)]
        (finding,) = findings_of(log, parts.components)
    assert finding.text == "versions 2 to 2 are missing"


def test_an_upload_without_an_end_is_listed_with_the_orphans(single: Bucket) -> None:
    key = segment_key(single.prefix, 5, 0, uuid.UUID(int=7))
    name = key.rpartition("/")[2]
    (single.folder / key).with_name(f".stratalog-{'0' * 32}-{name}.tmp").write_bytes(b"half of it")
    (finding,) = single.check()
    assert (finding.kind, finding.place) == (FindingKind.ORPHAN, key)
    assert "started but not completed" in finding.text


def test_a_damaged_or_missing_page_hides_no_other(
    tmp_path: Path, installed: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_tree, "PAGE_ITEMS", 8)
    bed = TierBed()
    log = bed.open().log(LOG, TOPIC_ID)
    sources = [made_segment(base, base + 1, files={}) for base in range(20)]
    log.offload(sources, layout="pair", leader_epoch=0, log_start=0, high_watermark=1000)
    keys = bed.bucket.keys(f"{log_prefix(LOG, TOPIC_ID)}pages/")
    assert len(keys) == 2
    with LogBed(tmp_path, installed) as parts:
        assert findings_of(log, parts.components) == []
        damage(bed, keys[0])
        assert [(finding.kind, finding.place) for finding in findings_of(log, parts.components)] == [
            (FindingKind.PAGE, keys[0])
        ]
        victim = next(key for key in bed.bucket.keys("") if "/segments/00000000000000000010-" in key)
        del bed.bucket.objects[victim]
        assert [(finding.kind, finding.place) for finding in findings_of(log, parts.components)] == [
            (FindingKind.PAGE, keys[0]),
            (FindingKind.MISSING, victim),
        ]


def damage(bed: TierBed, key: str) -> None:
    data = bytearray(bed.bucket.objects[key][0])
    data[len(data) // 2] ^= 1
    bed.bucket.write(key, bytes(data))
