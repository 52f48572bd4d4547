from __future__ import annotations

import base64
import copy
import dataclasses
import json
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stratalog.errors import (
    ConfigError,
    CorruptObjectError,
    PluginImportError,
    StorageError,
    StoreError,
    UnknownComponentError,
)
from stratalog.registry.component_kinds import TIER_LAYOUTS
from stratalog.registry.resolve import Catalogue, Offer
from stratalog.spi import (
    Buffer,
    ByteSource,
    Env,
    EpochEntry,
    FileKind,
    ObjectInfo,
    Provider,
    StoredSegment,
    TierLayout,
)
from stratalog.testing.contracts import TierLayoutContract
from stratalog.testing.contracts.made_segments import MemoryObjects, OddChunks
from stratalog.testing.contracts.tier_layout import DATA, FILES, a_segment, joined
from stratalog.tier.store.layout_table import LayoutTable
from stratalog_formats.layouts import sealed
from stratalog_formats.layouts.chunked import ChunkedLayout
from stratalog_formats.layouts.encrypted import EncryptedLayout
from stratalog_formats.layouts.keyring import KeyRing
from stratalog_formats.layouts.plain import PlainLayout
from stratalog_formats.layouts.sections import ChunkedSection, EncryptedSection
from stratalog_formats.layouts.single import SingleLayout

CHUNK = 2048
FIRST, SECOND = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
MakeLayout = Callable[..., EncryptedLayout]


def layout_table(*names: str) -> LayoutTable:
    layouts: dict[str, TierLayout] = {
        "single": SingleLayout(5_000),
        "plain": PlainLayout(5_000),
        "chunked": ChunkedLayout(5_000, ChunkedSection(chunk_bytes=4096)),
    }

    def offer(name: str) -> Offer[Provider[TierLayout]]:
        return Offer(Provider[TierLayout](name=name, open=lambda _: layouts[name]), "testing")

    catalogue = Catalogue(TIER_LAYOUTS, [offer(name) for name in names or layouts])
    return LayoutTable(catalogue, lambda provider: layouts[provider.name])


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.toml"
    file.write_text(f'active = "first"\n[keys]\nfirst = "{FIRST}"\n', encoding="utf-8")
    file.chmod(0o600)
    return file


@pytest.fixture
def make_layout(keys: Path) -> MakeLayout:
    def make(over: str = "single", *names: str) -> EncryptedLayout:
        section = EncryptedSection(keys_file=str(keys), over=over, chunk_bytes=CHUNK)
        return EncryptedLayout(section, KeyRing(str(keys), Env().files), layout_table(*names))

    return make


@pytest.fixture
def layout(make_layout: MakeLayout) -> EncryptedLayout:
    return make_layout()


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def stored(layout: EncryptedLayout, objects: MemoryObjects) -> StoredSegment:
    return layout.write(a_segment(), objects, None)


class Encrypted(TierLayoutContract):
    over: str

    @pytest.fixture
    def layout(self, make_layout: MakeLayout) -> TierLayout:
        return make_layout(self.over)

    def test_discovery_is_not_skipped(self, layout: TierLayout, stored: StoredSegment, objects: MemoryObjects) -> None:
        entries = list(layout.discover(objects.infos(), objects.fetch))
        assert entries == [dataclasses.replace(stored, layout="encrypted@2")]


class TestOverSingle(Encrypted):
    over = "single"


class TestOverPlain(Encrypted):
    over = "plain"


class TestOverChunked(Encrypted):
    over = "chunked"


# --- secrecy -----------------------------------------------------------------------------------------------------


def test_nothing_of_a_file_is_in_the_bucket(stored: StoredSegment, objects: MemoryObjects) -> None:
    assert stored.keys == set(objects.objects)
    for data in objects.objects.values():
        assert DATA[1_000:1_016] not in data
        assert FILES[FileKind.SNAPSHOT] not in data
        assert FILES[FileKind.LEADER_EPOCHS] not in data


def test_two_uploads_of_one_segment_have_nothing_in_common(layout: EncryptedLayout) -> None:
    """Each upload has its own key, so that equal records have different bytes."""
    first, second = MemoryObjects(), MemoryObjects()
    for objects in (first, second):
        layout.write(a_segment(), objects, None)
    (first_data,), (second_data,) = first.objects.values(), second.objects.values()
    assert not {first_data[position : position + 16] for position in range(0, len(DATA), 16)} & {
        second_data[position : position + 16] for position in range(0, len(DATA), 16)
    }


def test_no_key_is_in_entry_or_object_or_texts(
    keys: Path, layout: EncryptedLayout, stored: StoredSegment, objects: MemoryObjects
) -> None:
    ring = KeyRing(str(keys), Env().files)
    entry = json.dumps(stored.to_json())
    (data,) = objects.objects.values()
    assert FIRST not in entry
    assert FIRST.encode() not in data
    assert bytes([1]) * 32 not in data
    assert FIRST not in repr(ring) + repr(layout)
    for way in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError):
            way(ring)


def test_the_entry_names_what_a_reader_needs(make_layout: MakeLayout, objects: MemoryObjects) -> None:
    entry = make_layout("chunked").write(a_segment(), objects, None)
    assert entry.requires == ("chunked@1",)
    with pytest.raises(UnknownComponentError, match="chunked@1"):
        make_layout("single", "single").read(entry, 0, 10, objects.fetch)


def test_a_changed_file_is_never_encrypted_under_one_nonce_twice(layout: EncryptedLayout) -> None:
    """An attacker can decrypt two texts that are encrypted with the same key and nonce.

    So a retry of an upload with other bytes is refused.
    """

    class Changing(OddChunks):
        passes = 0

        def chunks(self, chunk_bytes: int) -> Iterator[Buffer]:
            self.passes += 1
            yield from OddChunks(DATA if self.passes == 1 else DATA[::-1]).chunks(chunk_bytes)

    twice = MemoryObjects(passes=2)  # the first attempt ends after its first chunk
    with pytest.raises(StorageError, match="changed during the upload"):
        layout.write(dataclasses.replace(a_segment(), log=Changing(DATA)), twice, None)
    assert twice.objects == {}


def test_an_object_and_its_head_are_uploaded_in_pieces_of_the_wanted_size(layout: EncryptedLayout) -> None:
    class Measured(MemoryObjects):
        def put(self, source: ByteSource, suffix: str = "seg") -> ObjectInfo:
            sizes.update(len(piece) for piece in source.chunks(100))
            return super().put(source, suffix)

    sizes = set[int]()
    layout.write(a_segment(), Measured(), None)
    assert max(sizes) == 100


# --- integrity ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["swap", "drop the last", "repeat"])
def test_chunks_are_bound_to_their_places(
    layout: EncryptedLayout, stored: StoredSegment, objects: MemoryObjects, change: str
) -> None:
    ((key, data),) = objects.objects.items()
    step = CHUNK + 16
    first, second = data[:step], data[step : 2 * step]
    changed_object = {
        "swap": second + first + data[2 * step :],
        "drop the last": data[: -step * 2],
        "repeat": first + first + data[2 * step :],
    }[change]
    objects.objects[key] = changed_object
    with pytest.raises(CorruptObjectError):
        joined(layout.read(stored, 0, len(DATA), lambda key, start, end: objects.objects[key][start:end]))


def test_an_object_is_bound_to_its_segment(
    layout: EncryptedLayout, stored: StoredSegment, objects: MemoryObjects
) -> None:
    """With the base offset of another segment, the envelope cannot be opened."""
    changed_entry = dataclasses.replace(stored, info=dataclasses.replace(stored.info, base_offset=101))
    with pytest.raises(CorruptObjectError):
        joined(layout.read(changed_entry, 0, 100, objects.fetch))


def test_an_earlier_upload_does_not_take_the_place_of_a_later_one(
    layout: EncryptedLayout, stored: StoredSegment, objects: MemoryObjects
) -> None:
    """Both uploads are of the same segment. Under the name of the later object, the earlier one cannot be decrypted.

    This holds even with the envelope and the manifest entry of the earlier upload.
    """
    earlier = json.dumps(dataclasses.replace(stored, layout="encrypted@2").to_json())
    (old_key,) = objects.objects
    later = layout.write(a_segment(), objects, None)
    (new_key,) = set(objects.objects) - {old_key}
    objects.objects[new_key] = objects.objects[old_key]
    moved_entry = StoredSegment.from_json(json.loads(earlier.replace(old_key, new_key)))
    for entry in (later, moved_entry):
        with pytest.raises(CorruptObjectError, match=new_key):
            joined(layout.read(entry, 0, len(DATA), objects.fetch))
    (info,) = (info for info in objects.infos() if info.key == new_key)
    with pytest.raises(CorruptObjectError, match="stored under another name"):
        list(layout.discover([info], objects.fetch))


@pytest.mark.parametrize("change", [{"end_offset": 7_777}, {"leader_epochs": (EpochEntry(9, 0),)}])
def test_an_object_is_bound_to_end_offset_and_leader_epoch(
    layout: EncryptedLayout, stored: StoredSegment, objects: MemoryObjects, change: dict[str, Any]
) -> None:
    changed_entry = dataclasses.replace(stored, info=dataclasses.replace(stored.info, **change))
    with pytest.raises(CorruptObjectError):
        joined(layout.read(changed_entry, 0, 100, objects.fetch))


def test_a_range_costs_one_request_of_whole_chunks(
    layout: EncryptedLayout, stored: StoredSegment, objects: MemoryObjects
) -> None:
    objects.reads.clear()
    assert joined(layout.read(stored, CHUNK + 5, 2 * CHUNK + 5, objects.fetch)) == DATA[CHUNK + 5 : 2 * CHUNK + 5]
    ((_, start, end),) = objects.reads
    assert (start, end) == (CHUNK + 16, 3 * (CHUNK + 16))


# --- keys --------------------------------------------------------------------------------------------------------


def rotate(keys: Path, *, keep_first: bool) -> None:
    first_key_line = f'first = "{FIRST}"\n' if keep_first else ""
    keys.write_text(f'active = "second"\n[keys]\n{first_key_line}second = "{SECOND}"\n', encoding="utf-8")


def test_a_rotation_needs_no_restart(
    layout: EncryptedLayout, stored: StoredSegment, objects: MemoryObjects, keys: Path
) -> None:
    rotate(keys, keep_first=True)
    new = layout.write(a_segment(data=DATA[::-1]), objects, None)
    assert b'"second"' in objects.objects[new.slices[FileKind.LOG].key]
    assert joined(layout.read(stored, 0, len(DATA), objects.fetch)) == DATA
    assert joined(layout.read(new, 0, len(DATA), objects.fetch)) == DATA[::-1]


def test_rewrapping_replaces_the_old_key_without_changing_an_object(
    layout: EncryptedLayout, stored: StoredSegment, objects: MemoryObjects, keys: Path
) -> None:
    before = dict(objects.objects)
    rotate(keys, keep_first=True)
    renewed = layout.rewrapped(stored)
    rotate(keys, keep_first=False)
    assert objects.objects == before
    assert joined(layout.read(renewed, 0, len(DATA), objects.fetch)) == DATA
    assert dataclasses.replace(renewed, extra={}) == dataclasses.replace(stored, extra={})
    with pytest.raises(ConfigError, match="no key 'first'"):
        layout.read(stored, 0, 10, objects.fetch)


def test_another_key_under_the_same_id_is_noticed(
    layout: EncryptedLayout, stored: StoredSegment, objects: MemoryObjects, keys: Path
) -> None:
    keys.write_text(f'active = "first"\n[keys]\nfirst = "{SECOND}"\n', encoding="utf-8")
    with pytest.raises(CorruptObjectError):
        layout.read(stored, 0, 10, objects.fetch)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense = [",
        f'active = 1\n[keys]\nfirst = "{FIRST}"',
        f'active = "other"\n[keys]\nfirst = "{FIRST}"',
        f'active = "first"\nkeys = "{FIRST}"',
        f'active = "first"\n[keys]\nfirst = "{FIRST}AAAA"',
        f'active = "first"\n[keys]\nfirst = "!{FIRST[1:]}"',
        'active = "first"\n[keys]\nfirst = 7',
        f'active = "first"\n[keys]\nfirst = "{FIRST}',
    ],
)
def test_a_key_file_of_another_form_is_refused_and_not_shown(
    layout: EncryptedLayout, objects: MemoryObjects, keys: Path, text: str
) -> None:
    keys.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        layout.write(a_segment(), objects, None)
    assert FIRST[1:20] not in "".join(traceback.format_exception(caught.value)) + locals_of(caught.value)
    assert objects.objects == {}


def locals_of(error: BaseException | None) -> str:
    """Return the local variables in the frames of an error and of its causes, except those of this test file."""
    text = ""
    while error is not None:
        frames = traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__), capture_locals=True)
        text += str([frame.locals for frame in frames if frame.filename != __file__])
        error = error.__cause__ or error.__context__
    return text


def test_no_key_is_in_a_frame_of_an_error(
    layout: EncryptedLayout,
    stored: StoredSegment,
    objects: MemoryObjects,
    keys: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some programs log the values of local variables with each error."""

    def shown(call: Callable[[], object]) -> str:
        with pytest.raises(StorageError) as caught:
            call()
        return locals_of(caught.value)

    monkeypatch.setattr(sealed, "new_key", lambda: b"~" * 32)
    full = MemoryObjects()
    monkeypatch.setattr(full, "put", lambda *_: (_ for _ in ()).throw(StoreError("the store is full", "key")))
    text = shown(lambda: layout.write(a_segment(), full, None))
    assert "sealed" in text
    keys.write_text(f'active = "second"\n[keys]\nsecond = "{FIRST}"\n', encoding="utf-8")
    text += shown(lambda: layout.read(stored, 0, 10, objects.fetch))
    keys.write_text(f'active = "first"\n[keys]\nfirst = "{SECOND}"\n', encoding="utf-8")
    text += shown(lambda: layout.read(stored, 0, 10, objects.fetch))
    for secret in (FIRST, SECOND, repr(b"\1" * 32), repr(b"\2" * 32), repr(b"~" * 32)):
        assert secret not in text


def test_a_missing_key_file_is_reported_at_the_first_write(objects: MemoryObjects, tmp_path: Path) -> None:
    for path, message in (("", "keys.file"), (str(tmp_path / "none"), "cannot be read")):
        layout = EncryptedLayout(EncryptedSection(), KeyRing(path, Env().files), layout_table())
        with pytest.raises(ConfigError, match=message):
            layout.write(a_segment(), objects, None)


def test_without_the_library_only_encrypted_objects_are_refused(
    layout: EncryptedLayout, stored: StoredSegment, objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    unencrypted = MemoryObjects()
    SingleLayout(5_000).write(a_segment(), unencrypted, None)
    assert list(layout.discover(unencrypted.infos(), unencrypted.fetch)) == []
    for call in (
        lambda: layout.write(a_segment(), MemoryObjects(), None),
        lambda: layout.read(stored, 0, 10, objects.fetch),
        lambda: list(layout.discover(objects.infos(), objects.fetch)),
    ):
        with pytest.raises(PluginImportError, match=r"stratalog\[encryption\]"):
            call()


def test_the_layout_cannot_store_its_files_with_itself() -> None:
    with pytest.raises(ConfigError):
        EncryptedSection.from_mapping({"over": "encrypted"}, "[plugins.encrypted]")


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o620, 0o602, 0o666])
def test_a_key_file_that_others_can_read_or_replace_is_refused(
    layout: EncryptedLayout, stored: StoredSegment, objects: MemoryObjects, keys: Path, mode: int
) -> None:
    keys.chmod(mode)
    for call in (lambda: layout.write(a_segment(), objects, None), lambda: layout.read(stored, 0, 10, objects.fetch)):
        with pytest.raises(ConfigError, match="can read or replace the key file") as caught:
            call()
        assert f"chmod 600 {keys}" in str(caught.value)
    keys.chmod(0o600)
    assert joined(layout.read(stored, 0, len(DATA), objects.fetch)) == DATA
