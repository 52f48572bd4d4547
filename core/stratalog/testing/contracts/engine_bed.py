"""Engines over one log directory and one tier, and the records that they acknowledged, for ``EngineContract``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stratalog.engine.engine import Engine
from stratalog.engine.open_engine import open_engine
from stratalog.env import Env, PosixVfs, Vfs
from stratalog.errors import StorageError
from stratalog.model.records import Record
from stratalog.reading.open_reader import open_reader
from stratalog.reading.reader import Reader
from stratalog.testing.movable_clock import MovableClock

TOPIC: Final = "contract"
OTHER: Final = "other"
_SETTINGS: Final[Mapping[str, object]] = {
    "remote.storage.enable": True,
    "retention.ms": -1,
    "retention.bytes": -1,
    "local.retention.bytes": 1,
    "min.cleanable.dirty.ratio": 0,
    "file.delete.delay.ms": 0,
    "index.interval.bytes": 100,
}
_DAY_MS: Final = 86_400_000
Content = tuple[bytes | None, bytes | None]
"""Key and value of a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """Plugins, settings and stores of the engine that ``EngineContract`` opens.

    Attributes:
        plugins: argument ``plugins`` of ``open_engine``: modules with hooks, in addition to the installed plugins.
        config: argument ``config`` of ``open_engine``: settings of the engine.
        topic: settings of the topic ``contract``. They must keep every record: all keys are different.
        tier: URI of the tier; "" means a new folder.
        tier_options: options of the tier's store.
        scheme: URI scheme of the log directory; "" means the bundled segment store.
    """

    plugins: Sequence[object] = ()
    config: Mapping[str, object] = field(default_factory=dict)
    topic: Mapping[str, object] = field(default_factory=dict)
    tier: str = ""
    tier_options: Mapping[str, object] = field(default_factory=dict)
    scheme: str = ""


class EngineBed:
    """Log directory, tier and acknowledged records of engines that are opened one after the other.

    Args:
        folder: folder for the log directory and the tier.
        record: function that returns the record with a given number.

    Attributes:
        acknowledged: key and value of each acknowledged record, by topic and offset.
        data: path of the log directory.
        clock: clock of the engines.
    """

    def __init__(self, folder: Path, record: Callable[[int], Record]) -> None:
        self.acknowledged: dict[str, dict[int, Content]] = {TOPIC: {}, OTHER: {}}
        self.data, self.clock = folder / "data", MovableClock()
        self._tier, self._record, self._next = folder / "tier", record, 0
        self._tier.mkdir()

    def open(self, setup: EngineSetup, data: Path | None = None, files: Vfs | None = None) -> Engine:
        """Open an engine over the log directory, or over the directory ``data`` if it is not None."""
        path = data or self.data
        return open_engine(
            f"{setup.scheme}://{path}" if setup.scheme else path,
            tier=self._tier_of(setup),
            tier_options=setup.tier_options,
            config=dict(setup.config),
            plugins=setup.plugins,
            env=Env(clock=self.clock, files=files or PosixVfs()),
        )

    def open_reader(self, setup: EngineSetup) -> Reader:
        """Return a reader of the tier, which does not use the log directory."""
        return open_reader(
            self._tier_of(setup), tier_options=setup.tier_options, plugins=setup.plugins, config=dict(setup.config)
        )

    def filled(self, setup: EngineSetup, files: Vfs | None = None, durability: str | None = None) -> Engine:
        """Open an engine, create two topics, append records to three segments of each topic, and return the engine."""
        engine = self.open(setup, files=files)
        engine.create_topic(TOPIC, config={**_SETTINGS, **setup.topic})
        engine.create_topic(OTHER, config=_SETTINGS)
        for segment in range(3):
            if segment:
                self.roll(engine)
            self.append(engine, durability)
        return engine

    def append(self, engine: Engine, durability: str | None = None, topics: Sequence[str] = (TOPIC, OTHER)) -> None:
        """Append six records to each topic, in three batches, and add them to ``acknowledged``."""
        for topic in topics:
            for count in (1, 2, 3):
                records = [self._record(self._next + number) for number in range(count)]
                self._next += count
                base = engine.log(topic, 0).append(records, durability).base_offset
                self.acknowledged[topic] |= {
                    base + row: (record.key, record.value) for row, record in enumerate(records)
                }

    @staticmethod
    def roll(engine: Engine) -> None:
        """Close the active segment of each log."""
        for topic in (TOPIC, OTHER):
            engine.log(topic, 0).roll()

    def evict(self, engine: Engine) -> None:
        """Close the active segments, offload all closed segments, and apply retention, which deletes local copies."""
        self.roll(engine)
        engine.offload()
        engine.apply_retention()

    def maintain(self, engine: Engine) -> None:
        """Run offload, retention, compaction, extra indexes and object deletion one by one, now and a day later.

        Raises:
            StorageError: the first error; the remaining calls are not made.
        """
        for errors in self.maintained(engine):
            for error in errors:
                raise error

    def maintained(self, engine: Engine) -> Iterator[list[StorageError]]:
        """Run the calls of ``maintain`` one by one, now and a day later, and yield the errors of each call."""
        duties: tuple[Callable[[], object], ...] = (
            engine.offload,
            engine.apply_retention,
            engine.run_cleaner,
            engine.make_extra_indexes,
            engine.collect,
            engine.run_duties,
        )
        for moved_ms in (0, _DAY_MS):
            self.clock.advance_ms(moved_ms)
            for duty in duties:
                yield errors_of(duty)

    def check(self, source: Engine | Reader) -> None:
        """Read each topic whole, from each offset, and by some keys. Fail unless they equal ``acknowledged``."""
        for topic, expected in self.acknowledged.items():
            log = source.log(topic, 0)
            assert {record.offset: _content(record) for record in log.records()} == expected
            for number, (offset, (key, _)) in enumerate(expected.items()):
                assert _content(next(log.records(offset))) == expected[offset]
                if number % 5 == 0 and key is not None:
                    assert [record.offset for record in log.records_with_key(key)] == [offset]

    def _tier_of(self, setup: EngineSetup) -> str:
        return setup.tier or self._tier.as_uri()


def errors_of(call: Callable[[], object]) -> list[StorageError]:
    """Return the StorageError that ``call`` raises, or the StorageErrors in the results that it returns."""
    try:
        results = call()
    except StorageError as error:
        return [error]
    result_errors = [getattr(result, "error", None) for result in results] if isinstance(results, tuple) else []
    return [error for error in result_errors if isinstance(error, StorageError)]


def _content(record: Record) -> Content:
    return (None if record.key is None else bytes(record.key), None if record.value is None else bytes(record.value))
