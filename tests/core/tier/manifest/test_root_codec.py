from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stratalog.errors import CorruptManifestError, StorageError, UnknownComponentError
from stratalog.model.names import TopicPartition
from stratalog.model.segment_info import FileKind, ObjectSlice
from stratalog.spi.layouts import StoredSegment
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID, made_segment
from stratalog.tier.manifest.entry_tree import next_root
from stratalog.tier.manifest.json_fields import canonical, sha256_of
from stratalog.tier.manifest.root import (
    RECENT_COMMITS,
    Change,
    ChangeKind,
    Head,
    Root,
    TopicNote,
    WriteMark,
    object_keys,
)
from stratalog.tier.manifest.root_codec import (
    AUTHENTICATED_VERSION,
    UNSEALED_VERSION,
    encode_root,
    new_root,
    parse_root,
    seal,
)
from stratalog.tier.store.object_keys import log_prefix, manifest_key
from tier_bed import TierBed

LIMIT_BYTES = 1 << 20


def entry(base_offset: int, end_offset: int) -> StoredSegment:
    source = made_segment(base_offset, end_offset)
    key = f"{log_prefix(LOG, TOPIC_ID)}segments/{base_offset:020d}-0-{end_offset:032x}.seg"
    return StoredSegment(
        source.info, "pair@1", {FileKind.LOG: ObjectSlice(key, 0, source.info.size_bytes)}, sha256_of(b"bytes")
    )


def after(head: Head | None, *, number: int = 1, epoch: int = 0, **changes: Any) -> Root:
    change = Change(
        **{
            "kind": ChangeKind.OFFLOAD,
            "reason": "a test",
            "added": () if head else (entry(0, 10), entry(10, 30)),
            "log_start": 0,
            "high_watermark": 30,
            **changes,
        }
    )
    return next_root(
        head,
        change,
        pages=TierBed().pages(),
        log=LOG,
        topic_id=TOPIC_ID,
        commit_id=f"{number:032x}",
        leader_epoch=epoch,
        created_ms=7,
    )


def parsed(data: bytes, version: int = 1, limit_bytes: int = LIMIT_BYTES) -> Head:
    return parse_root(data, LOG, TOPIC_ID, version, limit_bytes=limit_bytes)


def test_a_root_reads_back_as_it_was_written() -> None:
    root = after(None)
    head = parsed(encode_root(root))
    assert head.root == root
    assert head.sha256 == sha256_of(encode_root(root))
    assert root.end_offset == 30
    assert len(object_keys(root.entries)) == 2


@pytest.mark.parametrize(
    "wrong",
    [{"log_start": 15.0}, {"high_watermark": True}, {"reason": 5}, {"topic": TopicNote(0, {})}, {"version": 0}],
)
def test_a_root_that_no_reader_would_take_is_not_committed(wrong: dict[str, Any]) -> None:
    """A log start of 15.0 was once committed. After that, neither readers nor the engine could open the log."""
    root = after(None)
    assert parsed(new_root(root)).root == root
    with pytest.raises(StorageError, match="a note was not stored, because it could not be read back"):
        new_root(replace(root, **wrong))


def test_the_bytes_are_canonical() -> None:
    data = encode_root(after(None, reason="déjà vu"))
    assert data == json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode()
    assert data.isascii()


def test_each_root_names_the_one_before_it_and_the_last_commits() -> None:
    head: Head | None = None
    for number in range(1, RECENT_COMMITS + 3):
        root = after(head, number=number)
        assert root.parent_sha256 == (head.sha256 if head else "")
        head = parsed(encode_root(root), number)
    assert head is not None
    assert head.root.version == RECENT_COMMITS + 2
    assert head.root.recent_commits == tuple(f"{number:032x}" for number in range(3, RECENT_COMMITS + 3))


def test_an_empty_tier_ends_at_its_log_start() -> None:
    root = after(None, added=(), log_start=5, high_watermark=0)
    assert parsed(encode_root(root)).root.end_offset == 5


@pytest.mark.parametrize(
    "wanted",
    [
        {"added": (entry(0, 10), entry(11, 30))},
        {"added": (entry(0, 10), entry(9, 30))},
        {"added": (entry(10, 30), entry(0, 10))},
        {"log_start": -1},
        {"high_watermark": 29},
        {"added": (entry(5, 5),)},
        {"added": (replace(entry(0, 30), slices={}),)},
        {"added": (replace(entry(0, 30), sha256="none"),)},
        {"added": (replace(entry(0, 30), layout=""),)},
        {"added": (replace(entry(0, 30), slices={FileKind.LOG: ObjectSlice("elsewhere/object", 0, 1)}),)},
        {"first_dirty_offset": -1},
        {"epoch": -1},
        {"number": -1},
    ],
    ids=str,
)
def test_a_root_that_breaks_its_promises_is_not_made(wanted: dict[str, Any]) -> None:
    with pytest.raises(StorageError, match="is not valid"):
        after(None, **wanted)


@pytest.mark.parametrize(
    "wanted",
    [
        {"epoch": 4},
        {"log_start": 9},
        {"added": (entry(10, 20),)},
        {"high_watermark": 39},
    ],
    ids=str,
)
def test_epoch_and_bounds_never_decrease_along_the_chain(wanted: dict[str, Any]) -> None:
    before = after(None, epoch=5, added=(entry(10, 30),), log_start=10, high_watermark=40)
    head = Head(before, sha256_of(encode_root(before)))
    steady: dict[str, Any] = {"epoch": 5, "log_start": 10, "high_watermark": 40}
    assert after(head, number=2, **steady).version == 2
    with pytest.raises(StorageError, match="is not valid"):
        after(head, number=2, **{**steady, **wanted})


def body_of(root: Root) -> dict[str, Any]:
    """Return all fields of a root except ``body_sha256``."""
    value: dict[str, Any] = json.loads(encode_root(root))
    del value["body_sha256"]
    return value


def changed(change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return a root that was changed before ``body_sha256`` was computed: the hash is right, the content is wrong."""
    value = body_of(after(None))
    change(value)
    return seal(canonical(value))


def older(root: Root) -> bytes:
    """Return the root in the earlier format, which has no ``body_sha256``."""
    return canonical({**body_of(root), "format_version": UNSEALED_VERSION})


def set_to(name: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda root: root.update({name: value})


LIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "format": set_to("format", "something"),
    "no format": lambda root: root.pop("format"),
    "version is true": set_to("version", True),
    "version is text": set_to("version", "1"),
    "version is a fraction": set_to("version", 1.0),
    "another version": set_to("version", 2),
    "another topic": set_to("topic", "payments"),
    "a topic that is none": set_to("topic", "../up"),
    "another partition": set_to("partition", 1),
    "another topic id": set_to("topic_id", "AAAAAAAAAAAAAAAAAAAAAg"),
    "a topic id that is none": set_to("topic_id", "short"),
    "a page is an object": set_to("pages", [{}]),
    "a page is a short row": set_to("pages", [[0, 1]]),
    "pages without entries": set_to("pages", [[0, 0, 10, 1, 1, 0, 0, 9, 0, "0" * 64]]),
    "fewer segments than entries": set_to("segments", 1),
    "more bytes than entries": set_to("size_bytes", 1 << 40),
    "a start offset inside": set_to("start_offset", 5),
    "epochs that fall": set_to("leader_epochs", [[4, 0], [3, 10]]),
    "an epoch above the end": set_to("leader_epochs", [[0, 31]]),
    "entries are an object": set_to("entries", {}),
    "an entry is a number": set_to("entries", [1]),
    "an entry is empty": set_to("entries", [{}]),
    "a parent though it is the first": set_to("parent_sha256", "0" * 64),
    "commit id": set_to("commit_id", "x"),
    "recent commits of others": set_to("recent_commits", ["f" * 32]),
    "no recent commits": set_to("recent_commits", []),
    "a recent commit is a number": set_to("recent_commits", [1]),
    "log start below 0": set_to("log_start", -1),
    "a field that the next root would lose": set_to("later", 1),
    "nothing": lambda root: root.clear(),
    "format version is missing": lambda root: root.pop("format_version"),
    "created is missing": lambda root: root.pop("created_ms"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_root_with_wrong_content_is_corrupt_and_named(lie: str) -> None:
    with pytest.raises(CorruptManifestError) as caught:
        parsed(changed(LIES[lie]))
    assert caught.value.file == manifest_key(log_prefix(LOG, TOPIC_ID), 1)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"format": NaN}', b'{"version": ' + b"9" * 5000 + b"}"],
    ids=lambda data: repr(data[:20]),
)
def test_an_object_that_is_no_root_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptManifestError):
        parsed(data)


def test_every_cut_and_every_flipped_bit_of_a_root_is_noticed() -> None:
    """No later root contains the hash of the newest root, so the root needs a hash of its own.

    A damaged root must not count as a root of a newer release either.
    """
    data = encode_root(
        after(None, reason="déjà vu", topic=TopicNote(4, {"retention.ms": 7}), mark=WriteMark("query", 3))
    )
    assert b"\\u00e9" in data, "of which the digits may be written in capitals, by one bit, and mean the same"
    for size in range(len(data)):
        with pytest.raises(CorruptManifestError):
            parsed(data[:size])
    flipped = bytearray(data)
    for position in range(len(data)):
        for bit in range(8):
            flipped[position] ^= 1 << bit
            with pytest.raises(CorruptManifestError):
                parsed(bytes(flipped))
            flipped[position] ^= 1 << bit
    assert parsed(bytes(flipped)).sha256 == sha256_of(data)


def test_the_hash_comes_first_and_covers_all_bytes_after_it() -> None:
    data = encode_root(after(None))
    hash_digits, _, body = data.removeprefix(b'{"body_sha256":"').partition(b'",')
    assert hash_digits.decode() == sha256_of(b"{" + body) == sha256_of(canonical(body_of(after(None))))


def test_a_root_from_before_roots_had_a_hash_is_read_and_built_on() -> None:
    root = after(None)
    head = parsed(older(root))
    assert head.root == root
    following = encode_root(after(head, number=2))
    assert parsed(following, 2).root.parent_sha256 == sha256_of(older(root))
    assert following.startswith(b'{"body_sha256":')


@pytest.mark.parametrize(
    "data",
    [
        canonical(body_of(after(None))),
        seal(older(after(None))),
        seal(encode_root(after(None))),
        json.dumps(json.loads(encode_root(after(None)))).encode(),
    ],
    ids=["none", "in the older format", "two of them", "of other bytes that mean the same"],
)
def test_a_hash_where_it_may_not_be_or_none_where_it_must_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptManifestError):
        parsed(data)


def test_a_newer_format_is_unsupported_and_not_corrupt() -> None:
    with pytest.raises(UnknownComponentError, match="unsupported manifest format"):
        parsed(changed(set_to("format_version", AUTHENTICATED_VERSION + 1)))


def test_a_root_above_the_limit_is_not_parsed() -> None:
    data = encode_root(after(None))
    assert parsed(data, limit_bytes=len(data)).root.version == 1
    with pytest.raises(CorruptManifestError, match="larger than"):
        parsed(data, limit_bytes=len(data) - 1)


def test_a_root_of_another_log_is_refused() -> None:
    with pytest.raises(CorruptManifestError, match="orders-0"):
        parse_root(encode_root(after(None)), TopicPartition("orders", 1), TOPIC_ID, 1, limit_bytes=LIMIT_BYTES)
