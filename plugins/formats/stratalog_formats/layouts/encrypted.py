"""Layout ``encrypted``: another layout's objects, each encrypted (``sealed``).

The layout below sees a sink and a range reader like any other and knows nothing of it. Each segment has a random key of
its own, which the entry holds wrapped by a key-encryption key (``keyring``). The manifest entry stays readable: names,
offsets, sizes and hashes are not secret.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, Final

from stratalog.spi import (
    ByteSource,
    CorruptObjectError,
    FileKind,
    LayoutLookup,
    ObjectInfo,
    ObjectSink,
    OpenContext,
    RangeReader,
    Section,
    SegmentInfo,
    SegmentSource,
    StorageError,
    StoredSegment,
    TierLayout,
    key,
)
from stratalog_formats.layouts.heads import Head, Notes, StoredObject, encode_head, read_head, wrapped
from stratalog_formats.layouts.keyring import KeyRing
from stratalog_formats.layouts.sealed import (
    MAX_CHUNK_BYTES,
    Envelope,
    SealedReader,
    SealedSource,
    Sealing,
    cipher_class,
    identity_of,
    new_cipher,
    unwrap,
    wrap,
)

NAME: Final = "encrypted"
VERSION: Final = 1
LABEL: Final = f"{NAME}@{VERSION}"


def _not_itself(name: str) -> str:
    return "must be another layout" if name == NAME else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptedSection(Section):
    """``[plugins.encrypted]``."""

    title: ClassVar[str] = "Tier layout encrypted"

    keys_file: str = key("keys.file", "", doc="The file with the key-encryption keys; see the format's description.")
    over: str = key("over", "single", check=_not_itself, doc="The layout whose objects are encrypted.")
    chunk_bytes: int = key(
        "chunk.bytes", 64 << 10, at_least=1 << 10, at_most=MAX_CHUNK_BYTES, doc="How much is encrypted as one."
    )


class EncryptedLayout(TierLayout):
    """Writes and reads through another layout.

    Args:
        settings: for what is written, and where the keys are.
        ring: the keys.
        layouts: finds the layout below.
    """

    def __init__(self, settings: EncryptedSection, ring: KeyRing, layouts: LayoutLookup) -> None:
        self._settings, self._ring, self._layouts = settings, ring, layouts

    def write(self, source: SegmentSource, sink: ObjectSink, section: Section | None) -> StoredSegment:
        """Store a segment under a new key.

        Raises:
            ConfigError: there is no key to write with.
            UnknownComponentError: the layout below is not installed.
        """
        label = self._layouts.label(self._settings.over)
        identity = identity_of(source.info)
        cipher, envelope = new_cipher(identity, self._ring)
        sealed = _SealingSink(sink, cipher, identity, self._settings.chunk_bytes, envelope, label)
        inner = self._layouts.by_name(self._settings.over).write(source, sealed, section)
        return wrapped(dataclasses.replace(inner, layout=label), sealed.objects, envelope, self._settings.chunk_bytes)

    def read(self, segment: StoredSegment, start: int, end: int, fetch: RangeReader) -> Iterator[memoryview]:
        """Bytes [start, end) of the ``.log`` file, through the layout below; every chunk is authenticated.

        Raises:
            ConfigError: the range is not inside the file, or the key ring lacks the key.
            CorruptObjectError: what is stored is not what was, or the entry is damaged.
        """
        notes = Notes(segment)
        reader = self._reader(notes, segment.info, fetch)
        return self._layouts.by_label(notes.over).read(notes.inner, start, end, reader)

    def read_index(self, segment: StoredSegment, kind: FileKind, fetch: RangeReader) -> bytes | None:
        """A small file, through the layout below; errors as ``read``."""
        if kind not in segment.slices:
            return None
        notes = Notes(segment)
        reader = self._reader(notes, segment.info, fetch)
        return self._layouts.by_label(notes.over).read_index(notes.inner, kind, reader)

    def discover(self, objects: Sequence[ObjectInfo], fetch: RangeReader) -> Iterator[StoredSegment]:
        """The segments that the layouts below find in the encrypted ones among ``objects``; others are passed over.

        Raises:
            ConfigError: the key ring lacks a key.
            CorruptObjectError: an object has the magic and is damaged. Pass objects one by one to go on.
        """
        heads = (head for info in objects if (head := read_head(info, fetch)) is not None)
        for identity, group in groupby(heads, lambda head: head.identity):
            by_envelope: dict[Envelope, list[Head]] = {}
            for head in group:
                by_envelope.setdefault(head.envelope, []).append(head)
            for envelope, together in by_envelope.items():
                yield from self._discovered(identity, envelope, together, fetch)

    def rewrapped(self, segment: StoredSegment) -> StoredSegment:
        """The entry with its key wrapped by the key that is active now, itself if it is so already; no object changes.

        The heads of the objects keep the old envelope: rebuilding a bucket without manifests needs the old key.

        Raises:
            ConfigError: there is no active key, or the ring lacks the key that it is wrapped by.
            CorruptObjectError: the entry is damaged.
        """
        notes, identity = Notes(segment), identity_of(segment.info)
        if notes.envelope.key_id == self._ring.active()[0]:
            return segment
        envelope = wrap(unwrap(notes.envelope, identity, self._ring, notes.file), identity, self._ring)
        renewed = wrapped(notes.inner, notes.objects, envelope, notes.chunk_bytes)
        return dataclasses.replace(renewed, layout=segment.layout)

    def _reader(self, notes: Notes, info: SegmentInfo, fetch: RangeReader) -> RangeReader:
        identity = identity_of(info)
        cipher = cipher_class()(unwrap(notes.envelope, identity, self._ring, notes.file))
        return _Decrypting(cipher, identity, notes.chunk_bytes, notes.objects, fetch)

    def _discovered(
        self, identity: bytes, envelope: Envelope, heads: Sequence[Head], fetch: RangeReader
    ) -> Iterator[StoredSegment]:
        """The segments in objects that one segment's key encrypts."""
        head = heads[0]
        objects = {found.key: StoredObject(found.number, found.size_bytes) for found in heads}
        cipher = cipher_class()(unwrap(envelope, identity, self._ring, head.key))
        infos = [ObjectInfo(found.key, found.size_bytes) for found in heads]
        read = _Decrypting(cipher, identity, head.chunk_bytes, objects, fetch)
        for inner in self._layouts.by_label(head.over).discover(infos, read):
            named = {key: objects.get(key) or objects.get("") for key in inner.keys}
            if identity_of(inner.info) != identity or None in named.values():
                raise CorruptObjectError("it is another segment's, or objects of it are missing", head.key)
            known = {key: found for key, found in named.items() if found is not None}
            yield dataclasses.replace(wrapped(inner, known, envelope, head.chunk_bytes), layout=LABEL)


@dataclass(frozen=True, slots=True)
class _Decrypting:
    """A range reader over the objects of one segment as the layout below stored them."""

    cipher: Any  # AESGCM, of an extra
    identity: bytes
    chunk_bytes: int
    objects: Mapping[str, StoredObject]
    fetch: RangeReader

    def __call__(self, key: str, start: int, end: int) -> bytes:
        found = self.objects.get(key)
        if found is None:
            raise CorruptObjectError("the entry does not say how it is encrypted", key)
        sealing = Sealing(self.cipher, self.identity, found.number, self.chunk_bytes)
        return SealedReader(sealing, found.size_bytes, self.fetch).read(key, start, end)


class _SealingSink:
    """Encrypts what the layout below puts; objects are numbered in the order in which they are put."""

    def __init__(
        self, sink: ObjectSink, cipher: Any, identity: bytes, chunk_bytes: int, envelope: Envelope, over: str
    ) -> None:
        self._sink, self._cipher, self._identity = sink, cipher, identity
        self._chunk_bytes, self._envelope, self._over = chunk_bytes, envelope, over
        self.objects: dict[str, StoredObject] = {}

    def key(self, suffix: str = "seg") -> str:
        """The key that the next ``put`` with this suffix will use."""
        return self._sink.key(suffix)

    def put(self, source: ByteSource, suffix: str = "seg") -> ObjectInfo:
        """Upload one object, encrypted; its size is told as the layout below knows it."""
        found = StoredObject(len(self.objects), source.size_bytes)
        sealing = Sealing(self._cipher, self._identity, found.number, self._chunk_bytes)
        head = encode_head(self._over, self._identity, self._envelope, self._chunk_bytes, found)
        sealed = SealedSource(source, sealing, head)
        info = self._sink.put(sealed, suffix)
        if info.size_bytes != sealed.size_bytes:
            raise StorageError(f"{sealed.size_bytes} bytes were put and {info.size_bytes} stored: key={info.key}")
        self.objects[info.key] = found
        return dataclasses.replace(info, size_bytes=source.size_bytes)


def open_encrypted(context: OpenContext) -> TierLayout:
    """The layout with the settings of ``[plugins.encrypted]``.

    Neither keys nor ``cryptography`` are needed before an encrypted object is met: whoever goes through all layouts, to
    rebuild or to dump, opens this one, too.
    """
    section = context.section if isinstance(context.section, EncryptedSection) else EncryptedSection()
    return EncryptedLayout(section, KeyRing(section.keys_file, context.env.files), context.layouts)
