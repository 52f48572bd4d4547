"""Writers of one topic in a tier, whose store fails as the test plans it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sim_objects import Faults, ObjectFault, SimBucket, SimObjectStore, no_faults, scripted_faults
from stratalog.config.settings_sources import Settings
from stratalog.env import Env
from stratalog.env.clock import ManualClock
from stratalog.model.names import TopicPartition
from stratalog.model.records import Record, RecordColumns
from stratalog.reading.component_host import ComponentHost
from stratalog.reading.tier_reader import BucketReader
from stratalog.registry.registry import Registry
from stratalog.tier.manifest.root import WriteMark
from stratalog.tier.store.store import TierStore
from stratalog.tier.tier import Tier
from stratalog.tier.tier_log import TierLog
from stratalog.writing.staged import StagedSegment
from stratalog.writing.tier_writer import TierWriter

LOG = TopicPartition("orders", 0)


@dataclass
class Bed:
    """A bucket with one topic of one partition, and any number of its writers. Each writer acts as its own process."""

    registry: Registry
    clock: ManualClock = field(default_factory=lambda: ManualClock(1_700_000_000_000))
    seed: int = 0
    store: SimObjectStore = field(init=False)

    def __post_init__(self) -> None:
        self.bucket = SimBucket(self.clock)
        with self.writer() as writer:
            writer.create_topic("orders", 1, {"segment.bytes": 3_000})

    def host(self) -> ComponentHost:
        self.seed += 1
        settings = Settings()
        settings = replace(settings, engine=replace(settings.engine, store_retries=0))
        chance = random.Random(self.seed)  # noqa: S311 - the same in every run
        return ComponentHost(self.registry, settings, Env(clock=self.clock, chance=chance))

    def tier(self, host: ComponentHost, faults: Faults = no_faults, *, read_only: bool = False) -> Tier:
        settings = host.settings
        self.store = SimObjectStore(self.bucket, faults=faults)
        return Tier.open(
            TierStore(self.store, host.env, settings.engine, settings.limits),
            host.layouts,
            env=host.env,
            limits=settings.limits,
            config=settings.engine,
            read_only=read_only,
        )

    def writer(self, *, take_over: bool = False) -> TierWriter:
        host = self.host()
        return TierWriter(host, self.tier(host), staging=None, take_over=take_over)

    def stage(self, values: Sequence[bytes], *, take_over: bool = False) -> list[StagedSegment]:
        with self.writer(take_over=take_over) as writer, writer.stage(LOG) as stage:
            stage.add(RecordColumns.from_records([Record(timestamp_ms=1, value=value) for value in values]))
            return stage.finish()

    def append(self, staged: list[StagedSegment], mark: WriteMark | None = None, **options: bool) -> None:
        with self.writer(**options) as writer:
            writer.append(LOG, staged, mark)

    def remote(self) -> TierLog:
        """Return the log in the tier, as an engine opens it."""
        host = self.host()
        tier = self.tier(host)
        (name,) = tier.logs()
        return tier.log(*name)

    def values(self) -> list[bytes | None]:
        host = self.host()
        with BucketReader("sim", host, self.tier(host, read_only=True)) as reader:
            records = list(reader.log(*LOG).records(start=0))
        assert [record.offset for record in records] == list(range(len(records)))
        return [record.value for record in records]

    def segments(self) -> list[str]:
        return [key for key in self.bucket.keys() if "/segments/" in key]  # noqa: SIM118 - a method, not of a dict


def after(requests: int, fault: ObjectFault) -> Callable[[SimObjectStore], None]:
    """Return a function that plans a fault of a store: ``fault`` for the request after this many requests."""

    def arm(store: SimObjectStore) -> None:
        store.faults = scripted_faults({store.counts.total() + requests: fault})

    return arm
