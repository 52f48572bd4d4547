"""A repair of a manifest is interrupted by a kill or a power loss: the next repair completes it without data loss."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from log_bed import LogBed
from stratalog.config.engine_settings import EngineConfig, Limits
from stratalog.config.topic import TopicConfig
from stratalog.env import PosixVfs
from stratalog.errors import StorageError
from stratalog.registry.component_kinds import TIER_LAYOUTS
from stratalog.registry.registry import Registry
from stratalog.registry.resolve import Catalogue, Offer
from stratalog.segment.components import Components
from stratalog.segment.finding import Finding, FindingKind
from stratalog.spi import Env, ObjectStore, Provider, TierLayout
from stratalog.testing.contracts.made_segments import LOG, TOPIC_ID, made_segment
from stratalog.testing.power_loss import PowerLossVfs
from stratalog.tier.manifest import entry_tree
from stratalog.tier.store.layout_table import LayoutTable
from stratalog.tier.store.store import TierStore
from stratalog.tier.tier import Tier
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.tier_check import TierLogCheck
from stratalog.tier.upkeep.tier_repair import TierRepair
from stratalog_formats.layouts.single import SingleLayout

OpenStore = Callable[..., ObjectStore]
SEGMENTS: Final = 14
BYTES: Final = [b"[%d, %d) " % (base, base + 10) * 9 for base in range(0, 10 * SEGMENTS, 10)]
CHANGES: Final = frozenset({"create", "write", "sync", "rename", "remove", "link", "sync folder"})
POWER_SHARE: Final = 0.15  # share of the changes before which a power loss is simulated


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_tree, "PAGE_ITEMS", 2)
    monkeypatch.setattr(entry_tree, "INLINE_PAGES", 2)


@pytest.fixture
def components(tmp_path: Path) -> Iterator[Components]:
    with LogBed(tmp_path / "parts", Registry.load(), topic=TopicConfig()) as bed:
        yield bed.components


class UnsyncedVfs(PosixVfs):
    """File system that does not sync, for tests without a power loss."""

    def sync(self, descriptor: int) -> None:
        del descriptor

    def sync_folder(self, path: str) -> None:
        del path


def layouts() -> LayoutTable:
    layout = SingleLayout(1 << 20)
    offer: Provider[TierLayout] = Provider(name="single", open=lambda _: layout)
    return LayoutTable(Catalogue(TIER_LAYOUTS, [Offer(offer, "testing")]), lambda _: layout)


class Place:
    """A bucket in a folder, which tests write and read."""

    def __init__(self, bucket: Path, open_store: OpenStore) -> None:
        self.bucket, self._open_store = bucket, open_store

    def log(self, env: Env | None = None) -> TierLog:
        """Open the log of the tier with empty caches."""
        world = env or Env(files=UnsyncedVfs())
        limits, config = replace(Limits(), prefetch_bytes=0), EngineConfig()
        store = TierStore(self._open_store(f"file://{self.bucket}", env=world), world, config, limits)
        return Tier.open(store, layouts(), env=world, limits=limits, config=config).log(LOG, TOPIC_ID)

    def files(self, kind: str) -> list[Path]:
        return sorted(self.bucket.glob(f"*/0/{kind}/*"))

    def fill(self) -> None:
        offload(self.log(), SEGMENTS)

    def read(self) -> list[bytes]:
        view = self.log().view()
        return [bytes(segment.read(0, segment.size_bytes)) for segment in view.segments]


def offload(log: TierLog, count: int) -> None:
    sources = [made_segment(10 * number, 10 * number + 10, data=BYTES[number]) for number in range(count)]
    log.offload(sources, layout="single", leader_epoch=0, log_start=0, high_watermark=10 * SEGMENTS)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: Final[dict[str, Callable[[Place], list[Path]]]] = {
    "a page": lambda place: place.files("pages")[1:2],
    "every page": lambda place: place.files("pages"),
    "the head": lambda place: place.files("manifest")[-1:],
    "the last three roots": lambda place: place.files("manifest")[-3:],
    "a root of long ago": lambda place: place.files("manifest")[4:5],
    "every root": lambda place: place.files("manifest"),
    "the head and a page that it names": lambda place: [place.files("manifest")[-1], place.files("pages")[0]],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.long
def test_a_repair_that_ends_anywhere_can_be_repeated(
    tmp_path: Path, open_store: OpenStore, components: Components, damage: str
) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    place = Place(bucket, open_store)
    place.fill()
    for path in DAMAGES[damage](place):
        flip(path)
    chance = random.Random(damage)  # noqa: S311 - a failure is replayed
    states: list[Path] = []

    def before(operation: str) -> None:
        if operation not in CHANGES:
            return
        state = tmp_path / f"state-{len(states)}-{operation.replace(' ', '-')}"
        if operation in {"rename", "remove", "link"}:  # other changes are not visible to a reader
            shutil.copytree(bucket, state)
            states.append(state)
        if chance.random() < POWER_SHARE:
            lost = state.with_name(f"{state.name}-power")
            files.leave(lost, chance)
            states.append(lost)

    files = PowerLossVfs(bucket, before)
    assert all(repair.done for repair in TierRepair(place.log(Env(files=files))).manifest())
    files.before = None
    assert place.read() == BYTES
    assert states
    for state in (*states, bucket):
        check_next_repair(Place(state, open_store), components)


def check_next_repair(place: Place, components: Components) -> None:
    """Check that a reader returns the first records or an error, and that another repair succeeds.

    After the repair, all records are there, and the log can be offloaded to.
    """
    try:
        contents = place.read()
    except StorageError:
        contents = []
    assert contents == BYTES[: len(contents)], place.bucket.name
    assert all(repair.done for repair in TierRepair(place.log()).manifest()), place.bucket.name
    assert place.read() == BYTES, place.bucket.name
    check = TierLogCheck(place.log(), components, contents=False)
    findings = [*check.roots(), *(item for item in check.segments() if isinstance(item, Finding)), *check.orphans()]
    assert [finding for finding in findings if finding.kind is not FindingKind.ORPHAN] == [], place.bucket.name
    log = place.log()
    end = 10 * SEGMENTS
    log.offload([made_segment(end, end + 10)], layout="single", leader_epoch=0, log_start=0, high_watermark=end + 10)
    assert len(place.read()) == SEGMENTS + 1
