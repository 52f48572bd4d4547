"""Layout ``encrypted``: it encrypts each object of another layout, the inner layout (see ``sealed``).

The inner layout gets a sink that encrypts and a range reader that decrypts. Each segment has its own random key. The
manifest entry contains this key, encrypted with a key-encryption key (``keyring``). The entry itself is not encrypted:
names, offsets, sizes and hashes are not secret. The manifests of such logs are authenticated with keys derived from the
key-encryption keys (``KeyRingMac``).
"""

from __future__ import annotations

import dataclasses
import hmac
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from stratalog.errors import CorruptObjectError, StorageError
from stratalog.spi import (
    ByteSource,
    FileKind,
    LayoutLookup,
    ManifestAuthenticator,
    ObjectInfo,
    ObjectSink,
    OpenContext,
    RangeReader,
    Section,
    SegmentSource,
    StoredSegment,
    TierLayout,
    Unauthenticated,
)
from stratalog_formats.layouts.heads import Head, Notes, StoredObject, encode_head, object_name, read_head, wrap_entry
from stratalog_formats.layouts.keyring import KeyRing
from stratalog_formats.layouts.sealed import (
    FIRST_VERSION,
    Envelope,
    Identity,
    SealedSource,
    Sealing,
    cipher_class,
    identity_of,
    new_cipher,
    read_sealed,
    unwrap,
    wrap,
)
from stratalog_formats.layouts.sealed import VERSION as SEALED_VERSION
from stratalog_formats.layouts.sections import EncryptedSection

if TYPE_CHECKING:
    import pyarrow  # noqa: ICN001 - only for type checkers

NAME: Final = "encrypted"
VERSION: Final = SEALED_VERSION
FIRST_LABEL: Final = f"{NAME}@{FIRST_VERSION}"
_MAC_KEY: Final = b"stratalog-manifest-key-1\0"


class EncryptedLayout(TierLayout):
    """Tier layout that encrypts the objects of another layout. ``settings`` apply to new segments and to manifests."""

    def __init__(self, settings: EncryptedSection, ring: KeyRing, layouts: LayoutLookup) -> None:
        self._settings, self._ring, self._layouts = settings, ring, layouts

    @property
    def takes_uncompressed(self) -> bool:
        """``takes_uncompressed`` of the inner layout."""
        return self._layouts.by_name(self._settings.over).takes_uncompressed

    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        """Store a segment, encrypted with a new random key."""
        label = self._layouts.label(self._settings.over)
        identity = identity_of(source.info)
        cipher, envelope = new_cipher(identity, self._ring)
        sealed = _SealingSink(sink, cipher, identity, self._settings.chunk_bytes, envelope, label)
        inner = self._layouts.by_name(self._settings.over).write(source, sealed, section)
        return wrap_entry(
            dataclasses.replace(inner, layout=label), sealed.objects, envelope, self._settings.chunk_bytes
        )

    def read(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        """Yield bytes [start, end) of the ``.log`` file, decrypted and authenticated, through the inner layout."""
        layout, inner, read = self._open_inner(segment, fetch)
        return layout.read(inner, start, end, read)

    def read_index(self, segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
        """Return an index or another small file, decrypted and authenticated; None if the segment does not have it."""
        if kind not in segment.slices:
            return None
        layout, inner, read = self._open_inner(segment, fetch)
        return layout.read_index(inner, kind, read)

    def read_arrow(
        self, segment: StoredSegment, start: int, end: int, columns: Sequence[str] | None, fetch: RangeReader
    ) -> Iterator[pyarrow.RecordBatch] | None:
        """Return the result of the inner layout: Arrow batches, or None."""
        layout, inner, read = self._open_inner(segment, fetch)
        return layout.read_arrow(inner, start, end, columns, read)

    def check(self, segment: StoredSegment, fetch: RangeReader) -> None:
        """Run the check of the inner layout on the decrypted objects."""
        layout, inner, read = self._open_inner(segment, fetch)
        layout.check(inner, read)

    def discover(self, objects: Sequence[ObjectInfo], fetch: RangeReader) -> Iterator[StoredSegment]:
        """Yield the segments that the inner layouts find in the encrypted objects. Skip objects that are not encrypted.

        The objects of one segment must follow each other.

        Raises:
            ConfigError: the key ring cannot return a key.
            CorruptObjectError: an object has the magic bytes and is damaged, or belongs to another segment. To find the
                other segments, pass the objects of each segment separately.
            PluginError: an inner layout or ``cryptography`` is not installed.
        """
        heads = (head for info in objects if (head := read_head(info, fetch)) is not None)
        for identity, group in groupby(heads, lambda head: head.identity):
            by_envelope: dict[Envelope, list[Head]] = {}
            for head in group:
                by_envelope.setdefault(head.envelope, []).append(head)
            for envelope, envelope_heads in by_envelope.items():
                yield from self._discover_group(identity, envelope, envelope_heads, fetch)

    def rewrapped(self, segment: StoredSegment) -> StoredSegment:
        """Return the manifest entry with the segment's key encrypted by the active key.

        Return ``segment`` if nothing changes.

        No object changes. A rebuild without manifests needs the old key-encryption key, because the heads of the
        objects contain the segment's key encrypted by the old key.
        """
        notes, identity = Notes(segment), _identity(segment)
        if notes.envelope.key_id == self._ring.active()[0]:
            return segment
        envelope = wrap(unwrap(notes.envelope, identity, self._ring, notes.file), identity, self._ring)
        renewed = wrap_entry(notes.inner, notes.objects, envelope, notes.chunk_bytes)
        return dataclasses.replace(renewed, layout=segment.layout)

    def authenticator(self) -> ManifestAuthenticator | None:
        """Return an authenticator of manifests with the keys of the ring; None if no key file is configured."""
        return (
            KeyRingMac(self._ring, Unauthenticated(self._settings.unauthenticated))
            if self._settings.keys_file
            else None
        )

    def _open_inner(self, segment: StoredSegment, fetch: RangeReader) -> tuple[TierLayout, StoredSegment, RangeReader]:
        """Return the inner layout of a segment, the manifest entry in it, and a reader of the decrypted objects."""
        notes, identity = Notes(segment), _identity(segment)
        cipher = cipher_class()(unwrap(notes.envelope, identity, self._ring, notes.file))
        read = _Decrypting(cipher, identity, notes.chunk_bytes, notes.objects, fetch)
        return self._layouts.by_label(notes.inner_label), notes.inner, read

    def _discover_group(
        self, identity: Identity, envelope: Envelope, heads: Sequence[Head], fetch: RangeReader
    ) -> Iterator[StoredSegment]:
        """Yield the segments in the objects of ``heads``, all encrypted with the key in ``envelope``."""
        first_head = heads[0]
        objects = {head.key: StoredObject(head.number, head.size_bytes) for head in heads}
        cipher = cipher_class()(unwrap(envelope, identity, self._ring, first_head.key))
        infos = [ObjectInfo(head.key, head.size_bytes) for head in heads]
        names = {head.key: head.name for head in heads}
        read = _Decrypting(cipher, identity, first_head.chunk_bytes, objects, fetch, names)
        for inner in self._layouts.by_label(first_head.inner_label).discover(infos, read):
            inner_objects = {key: objects.get(key) or objects.get("") for key in inner.keys}
            if identity_of(inner.info, identity.version) != identity or None in inner_objects.values():
                raise CorruptObjectError(
                    "the object belongs to another segment, or objects are missing", first_head.key
                )
            present_objects = {key: stored for key, stored in inner_objects.items() if stored is not None}
            yield dataclasses.replace(
                wrap_entry(inner, present_objects, envelope, first_head.chunk_bytes),
                layout=f"{NAME}@{identity.version}",
            )


@dataclass(frozen=True, slots=True)
class _Decrypting:
    """Range reader over the encrypted objects of one segment. It returns decrypted bytes."""

    cipher: Any  # AESGCM; its package is an extra
    identity: Identity
    chunk_bytes: int
    objects: Mapping[str, StoredObject]
    fetch: RangeReader
    # Name of each object by its key. It is needed for objects outside of their tier, whose key is "".
    names: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, key: str, start: int, end: int) -> bytes:
        stored_object = self.objects.get(key)
        if stored_object is None:
            raise CorruptObjectError("the entry does not describe its encryption", key)
        name = self.names.get(key) or object_name(key)
        sealing = Sealing(self.cipher, self.identity.of_chunks(name), stored_object.number, self.chunk_bytes)
        return read_sealed(sealing, stored_object.size_bytes, key, start, end, self.fetch)


class _SealingSink:
    """Sink that encrypts the objects of the inner layout, and numbers them in the order of ``put``."""

    def __init__(
        self, sink: ObjectSink, cipher: Any, identity: Identity, chunk_bytes: int, envelope: Envelope, inner_label: str
    ) -> None:
        self._sink, self._cipher, self._identity = sink, cipher, identity
        self._chunk_bytes, self._envelope, self._inner_label = chunk_bytes, envelope, inner_label
        self.objects: dict[str, StoredObject] = {}

    def key(self, suffix: str = "seg") -> str:
        """Return the key that the next ``put`` with this suffix uses."""
        return self._sink.key(suffix)

    def put(self, source: ByteSource, suffix: str = "seg") -> ObjectInfo:
        """Encrypt and upload one object. Return its info with the size before encryption.

        Raise StorageError if the upload failed, a retry read other bytes, or the stored object has another key or size.
        """
        stored_object = StoredObject(len(self.objects), source.size_bytes)
        key = self._sink.key(suffix)
        name = object_name(key)
        sealing = Sealing(self._cipher, self._identity.of_chunks(name), stored_object.number, self._chunk_bytes)
        head = encode_head(self._inner_label, self._identity, self._envelope, self._chunk_bytes, stored_object, name)
        sealed = SealedSource(source, sealing, head)
        info = self._sink.put(sealed, suffix)
        if info.key != key:
            raise StorageError(f"the object must be stored as {key}, but is stored as {info.key}")
        if info.size_bytes != sealed.size_bytes:
            raise StorageError(
                f"{sealed.size_bytes} bytes were written, but {info.size_bytes} are stored: key={info.key}"
            )
        self.objects[info.key] = stored_object
        return dataclasses.replace(info, size_bytes=source.size_bytes)


class KeyRingMac(ManifestAuthenticator):
    """Manifest authenticator that uses HMAC-SHA-256, with keys that are derived from the keys of a ring.

    Attributes:
        unauthenticated: rule for manifests without a MAC, from the setting ``manifest.unauthenticated``.
    """

    def __init__(self, ring: KeyRing, unauthenticated: Unauthenticated) -> None:
        self._ring, self.unauthenticated = ring, unauthenticated

    def key_id(self) -> str:
        """Return the id of the active key."""
        return self._ring.active()[0]

    def mac(self, key_id: str, data: bytes) -> bytes:
        """Return the MAC (32 bytes) of ``data`` with the key ``key_id``."""
        return hmac.digest(hmac.digest(self._ring.key(key_id), _MAC_KEY, "sha256"), data, "sha256")

    def is_required(self, label: str) -> bool:
        """Return False for version 1 of this layout, for which earlier releases wrote no MAC; otherwise True."""
        return label != FIRST_LABEL


def _identity(segment: StoredSegment) -> Identity:
    """Return the identity of a segment for the version in ``segment.layout``; for the current version if it is ""."""
    return identity_of(segment.info, FIRST_VERSION if segment.layout == FIRST_LABEL else VERSION)


def open_encrypted(context: OpenContext) -> TierLayout:
    """Return the layout with the settings of ``[plugins.encrypted]``.

    The key file and ``cryptography`` are needed only when an encrypted object is read or written.
    """
    section = context.section if isinstance(context.section, EncryptedSection) else EncryptedSection()
    return EncryptedLayout(section, KeyRing(section.keys_file, context.env.files), context.layouts)
