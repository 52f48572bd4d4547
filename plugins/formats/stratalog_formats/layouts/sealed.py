"""Encrypted objects: AES-256-GCM, chunk by chunk, under keys in envelopes.

Each chunk is the ciphertext of ``chunk_bytes`` of the object, the last one of what is left (of nothing, in an empty
object), with a tag of 16 bytes. Its nonce is the number of the object in the segment (4 bytes) and of the chunk in the
object (8 bytes), big-endian, under a key that one segment has for itself. Authenticated with it, and stored nowhere:
whose segment it is, the name of the object, both numbers, and whether it is the last chunk. So no chunk can be moved, left
out or cut off, and no object of an earlier upload can take the place of a later one. Version 1 left out leader epoch, end
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

from stratalog.spi import (
    Buffer,
    ByteSource,
    CorruptObjectError,
    PluginImportError,
    RangeReader,
    SegmentInfo,
    StorageError,
)
from stratalog_formats.layouts.keyring import KEY_BYTES, KeyRing
from stratalog_formats.layouts.pieces import cut

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

TAG_BYTES: Final = 16
NO_EPOCH: Final = -1
NONCE_BYTES: Final = 12
MAX_CHUNK_BYTES: Final = 16 << 20
_NUMBERS: Final = struct.Struct(">IQ")
_LAST: Final = (b"\0", b"\1")
VERSION: Final = 2
FIRST_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Envelope:
    """A segment's key, wrapped by a key-encryption key: nonce, ciphertext and tag in base64."""

    key_id: str
    wrapped: str


class Identity(NamedTuple):
    """Whose segment it is, as it is authenticated with its bytes: version of the layout, and a JSON list."""

    version: int
    text: bytes

    def of_key(self, key_id: str) -> bytes:
        """Return what is authenticated with the segment's key when key ``key_id`` wraps it."""
        return b"stratalog-envelope-%d\0" % self.version + json.dumps(key_id).encode("ascii") + self.text

    def of_chunks(self, name: str) -> bytes:
        """Return what is authenticated with every chunk of the object with this name, the last part of its key."""
        named = b"" if self.version == FIRST_VERSION else json.dumps(name).encode("ascii")
        return b"stratalog-chunk-%d\0" % self.version + self.text + named


def identity_of(info: SegmentInfo, version: int = VERSION) -> Identity:
    """Whose segment it is."""
    said: list[object] = [info.log.topic, info.topic_id.text, info.log.partition, info.base_offset]
    if version > FIRST_VERSION:
        said += [info.end_offset, info.leader_epochs[-1].epoch if info.leader_epochs else NO_EPOCH]
    return Identity(version, json.dumps(said, separators=(",", ":")).encode("ascii"))


def new_cipher(identity: Identity, ring: KeyRing) -> tuple[AESGCM, Envelope]:
    """A cipher under a new random key, and its envelope. The key itself is in no frame that calls this or goes on."""
    key = new_key()
    return cipher_class()(key), wrap(key, identity, ring)


def wrap(key: bytes, identity: Identity, ring: KeyRing) -> Envelope:
    """Wrap a segment's key by the active key of the ring; an envelope opens for its own segment only."""
    key_id, master = ring.active()
    nonce = secrets.token_bytes(NONCE_BYTES)
    wrapped = nonce + cipher_class()(master).encrypt(nonce, key, identity.of_key(key_id))
    return Envelope(key_id, base64.b64encode(wrapped).decode())


def unwrap(envelope: Envelope, identity: Identity, ring: KeyRing, file: str) -> bytes:
    """A segment's key.

    Raises:
        CorruptObjectError: the envelope is damaged, or another segment's, or the key of this id is another one now.
        ConfigError: the ring has no key of this id.
    """
    cipher = cipher_class()(ring.key(envelope.key_id))  # without a name: tracebacks may show what names stand for
    try:
        data = base64.b64decode(envelope.wrapped, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != NONCE_BYTES + KEY_BYTES + TAG_BYTES:
        raise CorruptObjectError("the envelope of its key is damaged", file)
    return opened(cipher, data[:NONCE_BYTES], data[NONCE_BYTES:], identity.of_key(envelope.key_id), file, 0)


def cipher_class() -> type[AESGCM]:
    """What makes ciphers of keys.

    Raises:
        PluginImportError: ``cryptography`` is not installed; ``stratalog[encryption]`` has it.
    """
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an extra
    except ImportError as error:
        text = f"encryption needs cryptography ({error})"
        raise PluginImportError(text, "formats", "stratalog[encryption]") from error
    return AESGCM


def new_key() -> bytes:
    """A random key; from the system and not from ``Env``, whose chance a test may repeat."""
    return secrets.token_bytes(KEY_BYTES)


def opened(cipher: AESGCM, nonce: bytes, data: Buffer, associated: bytes, file: str, position: int) -> bytes:
    """Decrypt, checked; CorruptObjectError if anything is not as it was."""
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra

    try:
        return cipher.decrypt(nonce, data, associated)
    except InvalidTag as error:
        raise CorruptObjectError("it is damaged, moved, or encrypted by another key", file, position) from error


@dataclass(frozen=True, slots=True)
class Sealing:
    """How one object is encrypted: the cipher, whose it is, its number in the segment, and how large its chunks are.

    ``identity`` is that of its chunks, as ``Identity.of_chunks`` gives it.
    """

    cipher: Any  # AESGCM, of an extra
    identity: bytes
    number: int
    chunk_bytes: int

    def chunks(self, size_bytes: int) -> int:
        """How many chunks it has; at least one."""
        return max(1, -(-size_bytes // self.chunk_bytes))

    def nonce(self, chunk: int) -> bytes:
        """Of a chunk."""
        return _NUMBERS.pack(self.number, chunk)

    def associated(self, chunk: int, *, last: bool) -> bytes:
        """What is authenticated with a chunk."""
        return self.identity + self.nonce(chunk) + _LAST[last]


class SealedSource:
    """An object on its way up, encrypted as it is read; each pass gives the same bytes.

    Raises, while it is read:
        StorageError: a pass gave other bytes than the one before, which one nonce must never encrypt.
    """

    def __init__(self, source: ByteSource, sealing: Sealing, head: bytes) -> None:
        self._source, self._sealing, self._head = source, sealing, head
        self._tags = list[bytes]()  # of all chunks that were encrypted so far
        self.size_bytes = stored_bytes(source.size_bytes, sealing.chunk_bytes) + len(head)

    def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
        """The encrypted object; pieces are of one encryption chunk at most."""
        last = self._sealing.chunks(self._source.size_bytes) - 1
        for number, plain in enumerate(_at_least_one(cut(self._source, self._sealing.chunk_bytes))):
            sealed = self._sealed(number, plain, last=number == last)
            for start in range(0, len(sealed), chunk_bytes):
                yield memoryview(sealed)[start : start + chunk_bytes]
        yield self._head

    def _sealed(self, number: int, plain: bytes, *, last: bool) -> bytes:
        sealing = self._sealing
        sealed: bytes = sealing.cipher.encrypt(sealing.nonce(number), plain, sealing.associated(number, last=last))
        tag = sealed[-TAG_BYTES:]
        if number < len(self._tags):
            if self._tags[number] != tag:
                raise StorageError("a segment's file changed while it was uploaded: it is not encrypted again")
        else:
            self._tags.append(tag)
        return sealed


class SealedReader:
    """Reads ranges of an object, decrypted and checked; a range of no bytes costs no request.

    Args:
        sealing: how it is encrypted.
        size_bytes: of the object before that.
        fetch: of what is stored.
    """

    def __init__(self, sealing: Sealing, size_bytes: int, fetch: RangeReader) -> None:
        self._sealing, self._size_bytes, self._fetch = sealing, size_bytes, fetch

    def read(self, key: str, start: int, end: int) -> bytes:
        """Bytes [start, end) of the object before it was encrypted.

        Raises:
            CorruptObjectError: the object is shorter, or what is stored is not what was.
        """
        if start >= end:
            return b""
        if end > self._size_bytes:
            raise CorruptObjectError(f"asked for byte {end} of an object of {self._size_bytes}", key, end)
        sealing = self._sealing
        size, first, stop = sealing.chunk_bytes, start // sealing.chunk_bytes, -(-end // sealing.chunk_bytes)
        position, stored_end = stored_range(start, end, self._size_bytes, size)
        data = memoryview(self._fetch(key, position, stored_end))
        if len(data) != stored_end - position:
            raise CorruptObjectError(f"asked for {stored_end - position} bytes, got {len(data)}", key, position)
        last = sealing.chunks(self._size_bytes) - 1
        parts = []
        for number in range(first, stop):
            at = (number - first) * (size + TAG_BYTES)
            sealed = data[at : at + size + TAG_BYTES]
            associated = sealing.associated(number, last=number == last)
            parts.append(opened(sealing.cipher, sealing.nonce(number), sealed, associated, key, position + at))
        return b"".join(parts)[start - first * size : end - first * size]


def _at_least_one(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The chunks, or an empty one if there is none."""
    yield next(chunks, b"")
    yield from chunks


def stored_range(start: int, end: int, size_bytes: int, chunk_bytes: int) -> tuple[int, int]:
    """Where bytes [start, end) of an object of ``size_bytes`` lie, encrypted: whole chunks."""
    step = chunk_bytes + TAG_BYTES
    first = start // chunk_bytes * step
    if start == end:
        return first, first
    return first, min(-(-end // chunk_bytes) * step, stored_bytes(size_bytes, chunk_bytes))


def stored_bytes(size_bytes: int, chunk_bytes: int) -> int:
    """How much an object of ``size_bytes`` takes, encrypted, without the head; an empty one has a chunk, too."""
    return size_bytes + max(1, -(-size_bytes // chunk_bytes)) * TAG_BYTES
