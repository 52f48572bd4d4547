"""Encrypted objects: AES-256-GCM, chunk by chunk. An envelope is the encrypted key of a segment.

An encrypted chunk consists of the ciphertext of ``chunk_bytes`` bytes of the object, and a tag of 16 bytes. The last
chunk has the remaining bytes. An empty object has one empty chunk. Each segment has its own key. The nonce consists of
the number of the object in the segment (4 bytes) and the number of the chunk in the object (8 bytes), both big-endian.

The authenticated data of a chunk is not stored. It consists of the identity of the segment, the name of the object,
both numbers, and a flag for the last chunk. A reader therefore detects if a chunk was moved, omitted or truncated, or
if an object of an earlier upload replaced an object of a later upload. Version 1 did not authenticate leader epoch, end
offset and name.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.errors import CorruptObjectError, PluginImportError, StorageError
from stratalog.spi import Buffer, ByteSource, RangeReader, SegmentInfo
from stratalog_formats.layouts.keyring import KEY_BYTES, KeyRing
from stratalog_formats.layouts.pieces import cut

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

TAG_BYTES: Final = 16
NO_EPOCH: Final = -1
NONCE_BYTES: Final = 12
_NUMBERS: Final = struct.Struct(">IQ")
_LAST: Final = (b"\0", b"\1")
VERSION: Final = 2
FIRST_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Envelope:
    """A segment's key, encrypted with the key ``key_id``. ``wrapped`` contains nonce, ciphertext and tag in base64."""

    key_id: str
    wrapped: str


class Identity(NamedTuple):
    """Identity of a segment, for authenticated data.

    ``version`` is the version of the layout. ``text`` is a JSON list.
    """

    version: int
    text: bytes

    def of_key(self, key_id: str) -> bytes:
        """Return the authenticated data for the segment's key when the key ``key_id`` encrypts it."""
        return b"stratalog-envelope-%d\0" % self.version + json.dumps(key_id).encode("ascii") + self.text

    def of_chunks(self, name: str) -> bytes:
        """Return the authenticated data of all chunks of an object; ``name`` is the last part of the object's key."""
        encoded_name = b"" if self.version == FIRST_VERSION else json.dumps(name).encode("ascii")
        return b"stratalog-chunk-%d\0" % self.version + self.text + encoded_name


def identity_of(info: SegmentInfo, version: int = VERSION) -> Identity:
    """Return the identity of a segment for a version of the layout.

    The identity contains topic, topic id, partition and base offset. From version 2 on, it also contains end offset and
    last leader epoch.
    """
    fields: list[object] = [info.log.topic, info.topic_id.text, info.log.partition, info.base_offset]
    if version > FIRST_VERSION:
        fields += [info.end_offset, info.leader_epochs[-1].epoch if info.leader_epochs else NO_EPOCH]
    return Identity(version, json.dumps(fields, separators=(",", ":")).encode("ascii"))


def new_cipher(identity: Identity, ring: KeyRing) -> tuple[AESGCM, Envelope]:
    """Return a cipher with a new random key, and the envelope of this key.

    The key itself is not returned, so that no local variable of a caller contains the key.
    """
    key = new_key()
    return cipher_class()(key), wrap(key, identity, ring)


def wrap(key: bytes, identity: Identity, ring: KeyRing) -> Envelope:
    """Encrypt a segment's key with the active key of the ring. ``unwrap`` accepts the envelope only for this segment."""
    key_id, master = ring.active()
    nonce = secrets.token_bytes(NONCE_BYTES)
    wrapped = nonce + cipher_class()(master).encrypt(nonce, key, identity.of_key(key_id))
    return Envelope(key_id, base64.b64encode(wrapped).decode())


def unwrap(envelope: Envelope, identity: Identity, ring: KeyRing, file: str) -> bytes:
    """Return the decrypted key of a segment. ``file`` is the key of an object, for errors.

    Raises:
        CorruptObjectError: the envelope is damaged or belongs to another segment, or the ring's key with this id has
            changed.
    """
    # The key has no local name, because a traceback may show the values of local names.
    cipher = cipher_class()(ring.key(envelope.key_id))
    try:
        data = base64.b64decode(envelope.wrapped, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != NONCE_BYTES + KEY_BYTES + TAG_BYTES:
        raise CorruptObjectError("the encrypted data key is damaged", file)
    return decrypt(cipher, data[:NONCE_BYTES], data[NONCE_BYTES:], identity.of_key(envelope.key_id), file, 0)


def cipher_class() -> type[AESGCM]:
    """Return the class AESGCM of ``cryptography``."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an extra
    except ImportError as error:
        text = f"encryption needs cryptography ({error})"
        raise PluginImportError(text, "formats", "stratalog[encryption]") from error
    return AESGCM


def new_key() -> bytes:
    """Return a random key of 32 bytes from the operating system.

    ``Env`` is not used, because a test can repeat its numbers.
    """
    return secrets.token_bytes(KEY_BYTES)


def decrypt(cipher: AESGCM, nonce: bytes, data: Buffer, associated: bytes, file: str, position: int) -> bytes:
    """Decrypt ``data``, and check its tag and the authenticated data ``associated``.

    Raises:
        CorruptObjectError: the bytes or the authenticated data were changed, or the key is wrong.
    """
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra

    try:
        return cipher.decrypt(nonce, data, associated)
    except InvalidTag as error:
        raise CorruptObjectError(
            "the object is damaged, moved, or encrypted with another key", file, position
        ) from error


@dataclass(frozen=True, slots=True)
class Sealing:
    """Encryption parameters of one object.

    ``identity`` is a result of ``Identity.of_chunks``. ``number`` is the object's number in the segment.
    """

    cipher: Any  # AESGCM; its package is an extra
    identity: bytes
    number: int
    chunk_bytes: int

    def chunk_count(self, size_bytes: int) -> int:
        """Return the number of chunks of an object of ``size_bytes``; at least 1."""
        return max(1, -(-size_bytes // self.chunk_bytes))

    def nonce(self, chunk: int) -> bytes:
        """Return the nonce of a chunk: the number of the object, and the number of the chunk in the object."""
        return _NUMBERS.pack(self.number, chunk)

    def associated_data(self, chunk: int, *, last: bool) -> bytes:
        """Return the authenticated data of a chunk: the identity, the nonce, and the flag ``last``."""
        return self.identity + self.nonce(chunk) + _LAST[last]


class SealedSource:
    """Byte source that encrypts an object while the object is read. Each iteration of ``chunks`` yields the same bytes.

    If ``source`` yields other bytes than before, ``chunks`` raises StorageError, because one nonce must never encrypt
    two contents.
    """

    def __init__(self, source: ByteSource, sealing: Sealing, head: bytes) -> None:
        self._source, self._sealing, self._head = source, sealing, head
        self._tags = list[bytes]()  # tags of all chunks that were encrypted so far
        self.size_bytes = stored_bytes(source.size_bytes, sealing.chunk_bytes) + len(head)

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """Yield the encrypted object, then the head, in pieces of at most ``chunk_bytes``.

        Raises:
            StorageError: ``source`` yields other bytes than in an earlier iteration.
        """
        last = self._sealing.chunk_count(self._source.size_bytes) - 1
        for number, chunk in enumerate(_at_least_one(cut(self._source, self._sealing.chunk_bytes))):
            sealed = self._encrypt_chunk(number, chunk, last=number == last)
            for start in range(0, len(sealed), chunk_bytes):
                yield memoryview(sealed)[start : start + chunk_bytes]
        for start in range(0, len(self._head), chunk_bytes):
            yield memoryview(self._head)[start : start + chunk_bytes]

    def _encrypt_chunk(self, number: int, chunk: bytes, *, last: bool) -> bytes:
        sealing = self._sealing
        sealed: bytes = sealing.cipher.encrypt(sealing.nonce(number), chunk, sealing.associated_data(number, last=last))
        tag = sealed[-TAG_BYTES:]
        if number < len(self._tags):
            if self._tags[number] != tag:
                raise StorageError("a file of the segment changed during the upload")
        else:
            self._tags.append(tag)
        return sealed


def read_sealed(sealing: Sealing, size_bytes: int, key: str, start: int, end: int, fetch: RangeReader) -> bytes:
    """Return bytes [start, end) of the unencrypted object with this key. An empty range needs no request.

    ``size_bytes`` is the size of the object before encryption.

    Raises:
        CorruptObjectError: the object ends before ``end``, or its bytes were changed.
    """
    if start >= end:
        return b""
    if end > size_bytes:
        raise CorruptObjectError(f"the range ends at byte {end}, but the object has {size_bytes} bytes", key, end)
    size, first, stop = sealing.chunk_bytes, start // sealing.chunk_bytes, -(-end // sealing.chunk_bytes)
    position, stored_end = stored_range(start, end, size_bytes, size)
    data = memoryview(fetch(key, position, stored_end))
    if len(data) != stored_end - position:
        raise CorruptObjectError(
            f"{stored_end - position} bytes were requested, but {len(data)} were received", key, position
        )
    last = sealing.chunk_count(size_bytes) - 1
    parts = []
    for number in range(first, stop):
        chunk_start = (number - first) * (size + TAG_BYTES)
        sealed = data[chunk_start : chunk_start + size + TAG_BYTES]
        associated = sealing.associated_data(number, last=number == last)
        parts.append(decrypt(sealing.cipher, sealing.nonce(number), sealed, associated, key, position + chunk_start))
    return b"".join(parts)[start - first * size : end - first * size]


def _at_least_one(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the chunks, or one empty chunk if there is none."""
    yield next(chunks, b"")
    yield from chunks


def stored_range(start: int, end: int, size_bytes: int, chunk_bytes: int) -> tuple[int, int]:
    """Return the stored range of the chunks that contain bytes [start, end) of an object of ``size_bytes`` bytes."""
    step = chunk_bytes + TAG_BYTES
    first = start // chunk_bytes * step
    if start == end:
        return first, first
    return first, min(-(-end // chunk_bytes) * step, stored_bytes(size_bytes, chunk_bytes))


def stored_bytes(size_bytes: int, chunk_bytes: int) -> int:
    """Return the encrypted size of an object of ``size_bytes`` bytes, without the head.

    An empty object has one chunk.
    """
    return size_bytes + max(1, -(-size_bytes // chunk_bytes)) * TAG_BYTES
