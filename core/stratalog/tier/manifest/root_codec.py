"""Encoding of manifest roots. Each commit writes one complete root, which contains the hash of the previous root.

A root is canonical JSON (sorted keys, no spaces, ASCII) under ``manifest/{version, 20 digits}``. The next root contains
the hash of these bytes. A root is created only if its key does not exist, and never changes. The first field is the
hash of all other fields, because the latest root has no next root whose parent hash could reveal damage.
"""

from __future__ import annotations

from typing import Any, Final

from stratalog.config.keys import INT_MAX
from stratalog.errors import CorruptManifestError, StorageError, UnknownComponentError
from stratalog.model.names import TopicId, TopicPartition
from stratalog.model.notes import readable
from stratalog.model.offsets import EpochEntry
from stratalog.spi.stored import exactly
from stratalog.tier.manifest.json_fields import JsonFields, canonical, load_object, sha256_of
from stratalog.tier.manifest.manifest_checks import contradiction
from stratalog.tier.manifest.page_codec import entry_from_json, entry_to_json, ref_from_json, ref_to_json
from stratalog.tier.manifest.root import Head, Root, RootMac, TopicNote, WriteMark
from stratalog.tier.store.object_keys import log_prefix, manifest_key

FORMAT: Final = "stratalog-manifest"
FORMAT_VERSION: Final = 3
AUTHENTICATED_VERSION: Final = 4  # of roots with a MAC
UNSEALED_VERSION: Final = 2  # of roots of earlier releases, without a hash of themselves: this release only reads them
_SEAL: Final = b'{"body_sha256":"'  # the first field, because canonical bytes have sorted keys
_SEAL_END: Final = b'",'
_HASH_DIGITS: Final = 64
_READABLE_VERSIONS: Final = (UNSEALED_VERSION, FORMAT_VERSION, AUTHENTICATED_VERSION)
_INTEGERS: Final = (
    "version", "leader_epoch", "log_start", "high_watermark", "first_dirty_offset", "start_offset", "segments",
    "size_bytes", "created_ms",
)  # fmt: skip
_TEXTS: Final = ("commit_id", "parent_sha256", "change", "reason")
_FIELDS: Final = frozenset({
    "format", "format_version", "topic", "partition", "topic_id", *_INTEGERS, *_TEXTS, "leader_epochs", "pages",
    "entries", "recent_commits", "topic_note", "marks", "history_start", "mac",
})  # fmt: skip


def encode_root(root: Root) -> bytes:
    """Return the canonical bytes of a root; the first field is the hash of the others."""
    return seal(_body(root))


def content_hash(root: Root) -> str:
    """Return the hash from which the MAC of a root is computed; ``root.mac.digest`` must be ""."""
    return sha256_of(_body(root))


def _body(root: Root) -> bytes:
    return canonical(
        {
            "format": FORMAT,
            "format_version": FORMAT_VERSION if root.mac is None else AUTHENTICATED_VERSION,
            "topic": root.log.topic,
            "partition": root.log.partition,
            "topic_id": root.topic_id.text,
            **{name: getattr(root, name) for name in (*_INTEGERS, *_TEXTS)},
            "leader_epochs": [list(entry) for entry in root.leader_epochs],
            "pages": [ref_to_json(ref) for ref in root.pages],
            "entries": [entry_to_json(entry) for entry in root.entries],
            "recent_commits": list(root.recent_commits),
            **(
                {}
                if root.topic is None
                else {"topic_note": {"partitions": root.topic.partitions, "config": dict(root.topic.config)}}
            ),
            **({"marks": [[mark.writer, mark.number] for mark in root.marks]} if root.marks else {}),
            **({"history_start": root.history_start} if root.history_start else {}),
            **({} if root.mac is None else {"mac": [root.mac.layout, root.mac.key_id, root.mac.digest]}),
        }
    )


def new_root(root: Root) -> bytes:
    """Return ``encode_root`` of a new root; raise StorageError if ``parse_root`` refuses these bytes."""
    data, key = encode_root(root), manifest_key(root.prefix, root.version)
    return readable(
        data,
        lambda root_data, _: parse_root(root_data, root.log, root.topic_id, root.version, limit_bytes=len(root_data)),
        key,
    )


def seal(body: bytes) -> bytes:
    """Return ``body``, the canonical bytes of a root without its own hash, with the hash as the first field."""
    return b"".join((_SEAL, sha256_of(body).encode(), _SEAL_END, memoryview(body)[1:]))


def parse_root(data: bytes, log: TopicPartition, topic_id: TopicId, version: int, *, limit_bytes: int) -> Head:
    """Return the root of this log and version that ``data`` encodes, and its hashes. The MAC is not checked.

    Raises:
        CorruptManifestError: ``data`` is too large, damaged, not a root, or belongs to another log or version. The
            error names the key.
    """
    key = manifest_key(log_prefix(log, topic_id), version)
    if len(data) > limit_bytes:
        raise CorruptManifestError(f"manifest root is larger than {limit_bytes} bytes", key, limit_bytes)
    body = _unseal(data, key)
    fields = load_object(body or data, key)
    if fields.get("format") != FORMAT:
        raise CorruptManifestError("this is not a manifest root", key)
    try:
        format_version = fields.integer("format_version")
        root = _root_from(fields) if format_version in _READABLE_VERSIONS else None
    except (KeyError, TypeError, ValueError, RecursionError, StorageError) as error:
        raise CorruptManifestError(f"this is not a manifest root ({error})", key) from error
    if (body is None) != (format_version <= UNSEALED_VERSION):
        fault = "has no hash of its own" if body is None else "must not have a hash of its own"
        raise CorruptManifestError(f"a root of format {format_version} {fault}", key)
    if root is None:
        raise UnknownComponentError(
            f"unsupported manifest format {format_version} (key={key}): this release reads up to "
            f"{AUTHENTICATED_VERSION}; install the release that wrote it"
        )
    if (root.mac is not None) != (format_version == AUTHENTICATED_VERSION):
        fault = "has no MAC" if root.mac is None else "must not have a MAC"
        raise CorruptManifestError(f"a root of format {format_version} {fault}", key)
    if (root.log, root.topic_id, root.version) != (log, topic_id, version):
        raise CorruptManifestError(f"this is version {root.version} of {root.log} {root.topic_id}", key)
    violation = contradiction(root)
    if violation:
        raise CorruptManifestError(f"manifest root contradicts itself: {violation}", key)
    if root.mac is None:
        return Head(root, sha256_of(data))
    unsigned_fields = fields.replace("mac", [root.mac.layout, root.mac.key_id, ""])
    return Head(root, sha256_of(data), sha256_of(canonical(unsigned_fields)))


def _unseal(data: bytes, key: str) -> bytes | None:
    """Check the hash in the first field of a root, and return the bytes that it covers; None if there is no hash."""
    # The hash is checked for every format version: otherwise a damaged root could look like one of a newer release.
    if not data.startswith(_SEAL):
        return None
    body = b"{" + data[len(_SEAL) + _HASH_DIGITS + len(_SEAL_END) :]
    if seal(body) != data:
        raise CorruptManifestError("the manifest root has another hash than it states", key)
    return body


def _root_from(fields: JsonFields) -> Root:
    fields.check_names(_FIELDS)
    log = TopicPartition(fields.text("topic"), fields.integer("partition"))
    topic_id = TopicId(fields.text("topic_id"))
    values: dict[str, Any] = {name: fields.integer(name) for name in _INTEGERS}  # Any: fields of two types
    values |= {name: fields.text(name) for name in _TEXTS}
    return Root(
        log=log,
        topic_id=topic_id,
        leader_epochs=tuple(_epoch(item) for item in fields.items("leader_epochs")),
        pages=tuple(ref_from_json(row) for row in fields.items("pages")),
        entries=tuple(entry_from_json(entry, log, topic_id) for entry in fields.items("entries")),
        recent_commits=tuple(exactly(str, item, "recent_commits") for item in fields.items("recent_commits")),
        topic=_note_from(fields.get("topic_note")),
        marks=tuple(_mark(item) for item in exactly(list, fields.get("marks") or [], "marks")),
        history_start=exactly(int, fields.get("history_start") or 0, "history_start"),
        mac=_mac(fields.get("mac")),
        **values,
    )


def _note_from(value: object) -> TopicNote | None:
    if value is None:
        return None
    fields = JsonFields(exactly(dict, value, "topic_note"))
    fields.check_names({"partitions", "config"})
    partitions = fields.integer("partitions")
    if not 1 <= partitions <= INT_MAX:
        raise ValueError(f"topic_note has {partitions} partitions")
    return TopicNote(partitions, exactly(dict, fields.get("config"), "config"))


def _mark(item: object) -> WriteMark:
    writer, number = exactly(list, item, "marks")
    return WriteMark(exactly(str, writer, "marks"), exactly(int, number, "marks"))


def _mac(value: object) -> RootMac | None:
    if value is None:
        return None
    layout, key_id, digest = (exactly(str, item, "mac") for item in exactly(list, value, "mac"))
    return RootMac(layout, key_id, digest)


def _epoch(item: object) -> EpochEntry:
    epoch, start_offset = (exactly(int, number, "leader_epochs") for number in exactly(list, item, "leader_epochs"))
    return EpochEntry(epoch, start_offset)
