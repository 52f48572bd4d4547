"""MACs of roots for a layout of a plugin: which roots have a MAC, its fields, and refused roots without one."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from sim_objects import SimObjectStore
from stratalog.errors import ConfigError, CorruptManifestError, PluginError, TamperedManifestError
from stratalog.log.read.tier_view import RemoteView
from stratalog.spi.layouts import ManifestAuthenticator, Unauthenticated
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID
from stratalog.tier.manifest.root import Root, RootMac
from stratalog.tier.manifest.root_codec import encode_root, parse_root
from stratalog.tier.store.log_listing import TierLogName
from stratalog.tier.store.object_keys import log_prefix, manifest_key
from stratalog.tier.takeover.take_over import has_log
from stratalog.tier.tier_log import TierLog
from tier_bed import PairLayout, TierBed, offload

PREFIX = log_prefix(LOG, TOPIC_ID)


class Keys(ManifestAuthenticator):
    """Authenticator whose keys are their own ids."""

    def __init__(self, active: str, *other_keys: str) -> None:
        self.active, self.known = active, {active, *other_keys}

    def key_id(self) -> str:
        return self.active

    def mac(self, key_id: str, data: bytes) -> bytes:
        if key_id not in self.known:
            raise ConfigError(f"there is no key {key_id}")
        return hashlib.sha256(key_id.encode() + data).digest()

    def is_required(self, label: str) -> bool:
        return label != "pair@1"


class KeyedLayout(PairLayout):
    def __init__(self, keys: Keys | None) -> None:
        self.keys = keys

    def authenticator(self) -> ManifestAuthenticator | None:
        return self.keys


@pytest.fixture
def keyed() -> TierBed:
    """Return a tier with three segments, whose roots have MACs."""
    bed = TierBed(layout=KeyedLayout(Keys("a")), layout_version=2)
    offload(bed.open().log(LOG, TOPIC_ID), 0, 10, 20, 30)
    return bed


def root_bytes(bed: TierBed, version: int) -> bytes:
    return SimObjectStore(bed.bucket).read(manifest_key(PREFIX, version), deadline_ns=1 << 62)


def root_of(bed: TierBed, version: int) -> Root:
    data = root_bytes(bed, version)
    return parse_root(data, LOG, TOPIC_ID, version, limit_bytes=1 << 20).root


def forge(bed: TierBed, root: Root) -> None:
    bed.bucket.write(manifest_key(PREFIX, root.version), encode_root(root))


def reader(bed: TierBed, keys: Keys | None = None) -> TierLog:
    bed.layout = KeyedLayout(keys or Keys("a"))
    return bed.open(read_only=True).log(LOG, TOPIC_ID)


def test_every_root_has_a_mac_from_the_first_segment_on(keyed: TierBed) -> None:
    macs = [root_of(keyed, version).mac for version in (1, 2, 3)]
    assert [(mac.layout, mac.key_id) for mac in macs if mac] == [("pair", "a")] * 3
    assert len({mac.digest for mac in macs if mac}) == 3
    assert reader(keyed).view().end_offset == 30


@pytest.mark.parametrize(
    "change",
    [
        {"reason": "another"},
        {"log_start": 5},
        {"high_watermark": 2_000},
        {"parent_sha256": "0" * 64},
        {"leader_epoch": 4},
        {"created_ms": 1},
        {"mac": RootMac("pair", "a", "0" * 64)},
    ],
    ids=lambda change: str(next(iter(change))),
)
def test_the_mac_covers_every_field(keyed: TierBed, change: dict[str, object]) -> None:
    forge(keyed, replace(root_of(keyed, 3), **change))  # type: ignore[arg-type]  # values of any field
    with pytest.raises(TamperedManifestError, match="MAC"):
        reader(keyed).view()


def test_a_root_without_a_mac_does_not_follow_one_with_a_mac(keyed: TierBed) -> None:
    """The entries of the forged root have a layout version that is allowed without a MAC."""
    log = reader(keyed)
    log.view()
    root = root_of(keyed, 3)
    older = tuple(replace(entry, layout="pair@1") for entry in root.entries)
    head_hash = hashlib.sha256(root_bytes(keyed, 3)).hexdigest()
    commits = (*root.recent_commits, "f" * 32)
    forge(
        keyed,
        replace(
            root,
            version=4,
            entries=older,
            commit_id="f" * 32,
            recent_commits=commits,
            parent_sha256=head_hash,
            mac=None,
        ),
    )
    with pytest.raises(CorruptManifestError, match="does not continue version 3"):
        log.refresh()


def test_a_root_without_a_mac_names_no_segment_that_needs_one(keyed: TierBed) -> None:
    forge(keyed, replace(root_of(keyed, 3), mac=None))
    with pytest.raises(TamperedManifestError, match=r"pair@2 file=.*/manifest/0{19}3"):
        reader(keyed).view()


def test_a_writer_without_the_key_commits_nothing(keyed: TierBed) -> None:
    keyed.layout = KeyedLayout(None)
    log = keyed.open().log(LOG, TOPIC_ID)
    with pytest.raises(ConfigError, match="authenticated by layout pair"):
        log.claim("without a key")
    assert keyed.bucket.keys(f"{PREFIX}manifest/")[-1] == manifest_key(PREFIX, 3)


def test_a_log_that_joins_its_tier_again_refuses_one_that_was_rolled_back(keyed: TierBed) -> None:
    """The log was opened while the store was unavailable; its note is about version 3."""
    identity = reader(keyed).view().identity
    SimObjectStore(keyed.bucket).delete([manifest_key(PREFIX, 3)], deadline_ns=1 << 62)
    log = reader(keyed)
    log.expect(3, identity)
    log.assume(RemoteView())
    for _ in range(2):
        with pytest.raises(TamperedManifestError, match=r"the newest root is version 2.*about version 3"):
            log.rejoin()


def test_a_root_that_was_read_before_is_compared_at_once_and_never_again(keyed: TierBed) -> None:
    """A later root may break the rule: the layout of the topic may change to one without a key."""
    log = reader(keyed)
    identity = log.view().identity
    log.expect(3, identity)
    with pytest.raises(TamperedManifestError, match=r"the newest root is version 3.*about version 4"):
        log.expect(4, identity)
    assert log.refresh().version == 3


def test_superseded_roots_are_collected_without_their_key(keyed: TierBed) -> None:
    keyed.layout = KeyedLayout(Keys("b", "a"))
    log = keyed.open().log(LOG, TOPIC_ID)
    log.rewrap()
    keyed.layout = KeyedLayout(Keys("b"))
    keyed.clock.advance_ms(10 * 3_600_000)
    report = keyed.open().log(LOG, TOPIC_ID).collect()
    assert report.roots == 3
    assert reader(keyed, Keys("b")).view().end_offset == 30


def test_a_deleted_topic_stays_deleted_when_its_last_root_gets_a_mac_of_another_key(keyed: TierBed) -> None:
    keyed.open().log(LOG, TOPIC_ID).delete(leader_epoch=0, reason="a test")
    keyed.layout = KeyedLayout(Keys("b", "a"))
    keyed.open().log(LOG, TOPIC_ID).rewrap()
    log = reader(keyed, Keys("b"))
    assert log.view().is_deleted
    assert not has_log(log)
    keyed.layout = KeyedLayout(Keys("b"))
    keyed.clock.advance_ms(10 * 3_600_000)
    keyed.open().log(LOG, TOPIC_ID).collect()
    assert keyed.bucket.keys(PREFIX) == []


def test_a_topic_that_left_the_tier_is_not_attached_after_its_last_root_gets_a_mac_of_another_key(
    keyed: TierBed,
) -> None:
    keyed.open().log(LOG, TOPIC_ID).clear(30, leader_epoch=0, reason="a test")
    keyed.layout = KeyedLayout(Keys("b", "a"))
    keyed.open().log(LOG, TOPIC_ID).rewrap()
    log = reader(keyed, Keys("b"))
    assert log.root is not None
    assert log.root.mac is not None
    assert log.root.mac.key_id == "b"
    assert not has_log(log)


def test_an_interrupted_rebuild_can_continue_after_its_root_got_a_mac_of_another_key(keyed: TierBed) -> None:
    entries = root_of(keyed, 3).entries
    for version in (1, 2, 3):
        keyed.bucket.objects.pop(manifest_key(PREFIX, version))
    keyed.open().log(LOG, TOPIC_ID).add_rebuilt(entries[:1], 0, entries[-1].info.end_offset, leader_epoch=1)
    keyed.layout = KeyedLayout(Keys("b", "a"))
    tier = keyed.open()
    tier.log(LOG, TOPIC_ID).rewrap()
    assert tier.lost() == (TierLogName(LOG, TOPIC_ID),)


def test_a_log_without_an_encrypted_layout_has_roots_without_a_mac() -> None:
    bed = TierBed()
    offload(bed.open().log(LOG, TOPIC_ID), 0, 10)
    assert root_of(bed, 1).mac is None
    assert b'"format_version":3' in root_bytes(bed, 1)


def test_settings_may_refuse_every_log_without_a_mac() -> None:
    bed = TierBed(layout=KeyedLayout(None))
    offload(bed.open().log(LOG, TOPIC_ID), 0, 10)
    strict = Keys("a")
    assert reader(bed, strict).view().end_offset == 10
    strict.unauthenticated = Unauthenticated.REFUSE
    with pytest.raises(TamperedManifestError, match="refuse"):
        reader(bed, strict).view()


@pytest.mark.parametrize(
    ("forgets", "reason"),
    [(False, "another value for the previous manifest root"), (True, "the same value for two manifest roots")],
)
def test_a_layout_whose_macs_no_reader_could_check_commits_no_root(
    monkeypatch: pytest.MonkeyPatch, *, forgets: bool, reason: str
) -> None:
    """Otherwise a later correct release of the layout would refuse the newest root, and with it the log."""
    if forgets:
        monkeypatch.setattr(Keys, "mac", lambda *_: bytes(32))
    bed = TierBed(layout=KeyedLayout(Keys("a")), layout_version=2)
    log = bed.open().log(LOG, TOPIC_ID)
    offload(log, 0, 10)
    monkeypatch.setattr(Keys, "mac", lambda *_: bytes(32))
    with pytest.raises(PluginError, match=f"mac returned {reason}"):
        offload(log, 10, 20)
