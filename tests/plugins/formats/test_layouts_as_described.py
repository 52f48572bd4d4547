"""Objects of tier layouts, parsed by the rules of docs/formats/tier.md alone, without the code of the layouts.

Objects in buckets must stay readable. If a reader and a writer change together, every other test passes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from stratalog.spi import CodecTable, Env, StoredSegment, TierLayout
from stratalog.testing.contracts.made_segments import MemoryObjects
from stratalog.testing.contracts.tier_layout import DATA, FILES, a_segment
from stratalog_formats.layouts.chunked import ChunkedLayout
from stratalog_formats.layouts.encrypted import EncryptedLayout
from stratalog_formats.layouts.keyring import KeyRing
from stratalog_formats.layouts.parquet import ParquetLayout
from stratalog_formats.layouts.plain import PlainLayout
from stratalog_formats.layouts.sections import ChunkedSection, EncryptedSection, ParquetSection
from stratalog_formats.layouts.single import SingleLayout

CHUNK: Final = 4096
KEY: Final = bytes(range(32))
BELOW: Final[dict[str, TierLayout]] = {
    "single": SingleLayout(5_000),
    "plain": PlainLayout(5_000),
    "chunked": ChunkedLayout(5_000, ChunkedSection(chunk_bytes=CHUNK)),
    "parquet": ParquetLayout(CodecTable(), 1 << 20, ParquetSection(row_group_bytes=5 * CHUNK)),
}
# Order of the small files in an object.
ORDER: Final = ("index", "timeindex", "txnindex", "snapshot", "leader-epochs", "extra")


class Lookup:
    """The table of layouts that the engine passes to a layout which stores its files with another layout."""

    def label(self, name: str) -> str:
        return f"{name}@1"

    def by_name(self, name: str) -> TierLayout:
        return BELOW[name]

    def by_label(self, label: str) -> TierLayout:
        return BELOW[label.partition("@")[0]]


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def ended(data: bytes, magic: bytes) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes before the JSON at the end of an object, and the parsed JSON."""
    size, actual_magic = struct.unpack(">Q8s", data[-16:])
    assert actual_magic == magic
    document = json.loads(data[-16 - size : -16])
    assert canonical(document) == data[-16 - size : -16]
    return data[: -16 - size], document


def entry_in(data: bytes) -> tuple[bytes, dict[str, Any]]:
    """Check the hash of a footer, and return the bytes before it and its entry."""
    before, footer = ended(data, b"STLGSEG1")
    assert set(footer) == {"entry", "format", "sha256"}
    assert (footer["format"], footer["sha256"]) == (1, hashlib.sha256(canonical(footer["entry"])).hexdigest())
    return before, footer["entry"]


def small_files() -> bytes:
    by_name = {str(kind): data for kind, data in FILES.items()}
    assert set(by_name) == set(ORDER)
    return b"".join(by_name[name] for name in ORDER)


def check_single(objects: Mapping[str, bytes]) -> None:
    (data,) = objects.values()
    assert entry_in(data)[0] == DATA + small_files()


def check_plain(objects: Mapping[str, bytes]) -> None:
    by_suffix = {key.rpartition(".")[2]: data for key, data in objects.items()}
    names = {"log": DATA, **{str(kind): data for kind, data in FILES.items()}}
    names["epochs"] = names.pop("leader-epochs")
    before, entry = entry_in(by_suffix.pop("entry"))
    assert (before, by_suffix) == (b"", names)
    assert entry["extra"]["objects"] == [key for key in objects if key.endswith(".entry")]


def check_chunked(objects: Mapping[str, bytes]) -> None:
    (data,) = objects.values()
    before, entry = entry_in(data)
    notes = entry["extra"]["chunks"]
    count = -(-len(DATA) // CHUNK)
    assert (notes["chunk_bytes"], notes["index_bytes"]) == (CHUNK, 4 * count)
    assert before.endswith(small_files())
    chunks = before[: -len(small_files())]
    index = chunks[-4 * count :]
    assert hashlib.sha256(index).hexdigest() == notes["index_sha256"]
    log, position = b"", 0
    for chunk_word in struct.unpack(f">{count}I", index):
        chunk = chunks[position : position + (chunk_word & 0x7FFFFFFF)]
        log += chunk if chunk_word >> 31 else zstandard.ZstdDecompressor().decompress(chunk, max_output_size=CHUNK)
        position += len(chunk)
    assert (log, position) == (DATA, len(chunks) - len(index))


def check_parquet(objects: Mapping[str, bytes]) -> None:
    ((key, data),) = objects.items()
    assert key.endswith(".parquet")
    metadata_bytes = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - metadata_bytes :]
    assert data[:4] == footer[-4:] == b"PAR1"
    before, entry = entry_in(data[: -8 - metadata_bytes])
    notes, log = entry["extra"]["parquet"], before[: -len(small_files())]
    assert before == log + small_files()
    directory = log[-notes["directory_bytes"] :]
    assert hashlib.sha256(directory).hexdigest() == notes["directory_sha256"]
    group_list = zstandard.ZstdDecompressor().decompress(directory, max_output_size=1 << 20)
    (count,) = struct.unpack_from("<I", group_list)
    groups = list(struct.iter_unpack("<QQIII32s32s", group_list[4 : 4 + 92 * count]))
    between_bytes, between_sha256 = struct.unpack_from("<Q32s", group_list, 4 + 92 * count)
    assert group_list[4 + 92 * count + 40 :] == footer
    position = sum(group[1] for group in groups)
    assert hashlib.sha256(log[position : position + between_bytes]).digest() == between_sha256
    position += between_bytes
    rebuilt = b""
    for log_bytes, _, rows, frames_bytes, is_complete, _, sha256 in groups:
        compressed_frames = log[position : position + frames_bytes]
        assert (rows, is_complete, hashlib.sha256(compressed_frames).digest()) == (0, 0, sha256)
        kind, size, skipped = struct.unpack_from(
            "<BII", frames := zstandard.ZstdDecompressor().decompress(compressed_frames)
        )
        assert (kind, size, skipped) == (1, log_bytes, 0)
        rebuilt += frames[9:]
        position += frames_bytes
    assert (rebuilt, position) == (DATA, len(log) - len(directory))


CHECKS: Final = {"single": check_single, "plain": check_plain, "chunked": check_chunked, "parquet": check_parquet}


def written(layout: TierLayout) -> tuple[StoredSegment, dict[str, bytes]]:
    objects = MemoryObjects()
    entry = layout.write(a_segment(), objects, None)
    return entry, objects.objects


@pytest.mark.parametrize("name", CHECKS)
def test_it_is_stored_as_described(name: str) -> None:
    CHECKS[name](written(BELOW[name])[1])


@pytest.mark.parametrize("over", CHECKS)
def test_it_is_encrypted_as_described(over: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'active = "a \\"1\\""\n[keys]\n"a \\"1\\"" = "{base64.b64encode(KEY).decode()}"\n', "utf-8")
    keys.chmod(0o600)
    section = EncryptedSection(keys_file=str(keys), over=over, chunk_bytes=1024)
    entry, objects = written(EncryptedLayout(section, KeyRing(str(keys), Env().files), Lookup()))
    info, inner_objects, numbers = entry.info, dict[str, bytes](), set[int]()
    for key, data in objects.items():
        sealed, head = ended(data, b"STLGENC1")
        assert (head["format"], head["over"], head["chunk_bytes"]) == (2, f"{over}@1", 1024)
        log_place = [info.log.topic, info.topic_id.text, info.log.partition, info.base_offset]
        identity = canonical([*log_place, info.end_offset, info.leader_epochs[-1].epoch])
        assert head["name"] == key.rpartition("/")[2]
        assert head["identity"].encode() == identity
        inner_objects[key] = opened(sealed, head, key_of(head["envelope"], identity), identity)
        numbers.add(head["number"])
        assert entry.extra["encrypted"]["objects"][key] == [head["number"], len(inner_objects[key])]  # type: ignore[index]  # JSON
    assert numbers == set(range(len(objects)))
    assert entry.requires[0] == f"{over}@1"
    CHECKS[over](inner_objects)


def key_of(envelope: Mapping[str, str], identity: bytes) -> bytes:
    assert envelope["key"] == 'a "1"'
    wrapped = base64.b64decode(envelope["wrapped"])
    assert len(wrapped) == 12 + 48
    associated = b"stratalog-envelope-2\0" + json.dumps(envelope["key"]).encode() + identity
    return AESGCM(KEY).decrypt(wrapped[:12], wrapped[12:], associated)


def opened(sealed: bytes, head: Mapping[str, Any], key: bytes, identity: bytes) -> bytes:
    size, step, contents = head["size_bytes"], head["chunk_bytes"] + 16, b""
    count = max(1, -(-size // head["chunk_bytes"]))
    for number in range(count):
        nonce = struct.pack(">IQ", head["number"], number)
        is_last = bytes([number == count - 1])
        associated = b"stratalog-chunk-2\0" + identity + json.dumps(head["name"]).encode() + nonce + is_last
        contents += AESGCM(key).decrypt(nonce, sealed[number * step : (number + 1) * step], associated)
    assert len(contents) == size
    return contents
