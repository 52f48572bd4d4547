"""Contract tests of an engine with the components of a plugin."""

from __future__ import annotations

import contextlib
import logging
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from stratalog.engine.engine import Engine
from stratalog.errors import StorageError
from stratalog.model.records import Record
from stratalog.testing.contracts.engine_bed import OTHER, TOPIC, EngineBed, EngineSetup, errors_of
from stratalog.testing.power_loss import PowerLossVfs

_STATES = 6  # number of states of the disk that the test of a power loss checks
_CHANGES = frozenset({"write", "sync", "create", "rename", "truncate", "sync folder"})


class EngineContract:
    """Contract of a plugin in a whole engine: subclass it, and override the fixture ``engine_setup``.

    The tests append records, offload, evict and compact them, stop the engine in several ways and open it again. After
    each step, every record that an append acknowledged is read back. The clock of the engine is moved by days, so the
    settings must keep records regardless of their age.

    Attributes:
        entry_point: name of the plugin's entry point if the plugin is installed; ``setup_without`` blocks it.
        opens_without: False if an engine cannot open without the plugin, for example without its segment store.
        missing: text that errors or the log contain if the plugin is missing, such as its name.
        has_files: True if the log directory is a folder of files that are written through ``context.env.files``. If
            False, the tests of a killed process and of a power loss are skipped.
    """

    entry_point: str = ""
    opens_without: bool = True
    missing: str = ""
    has_files: bool = True

    @pytest.fixture
    def engine_setup(self) -> EngineSetup:
        """Return the plugins, settings and stores of the engine; overridden by the subclass."""
        raise NotImplementedError("a subclass of EngineContract must define the fixture engine_setup")

    @pytest.fixture
    def changed_setup(self, engine_setup: EngineSetup) -> EngineSetup:
        """Return the setup after an upgrade: a newer version of the plugin, or other settings. Default: no change."""
        return engine_setup

    @pytest.fixture
    def setup_without(self, engine_setup: EngineSetup) -> EngineSetup:
        """Return the setup without the plugin: by default, without ``plugins``, and with ``entry_point`` blocked."""
        config = dict(engine_setup.config)
        if self.entry_point:
            config["plugins.block"] = [self.entry_point]
        return replace(engine_setup, plugins=(), config=config)

    @pytest.fixture
    def bed(self, tmp_path: Path) -> EngineBed:
        """Return an ``EngineBed`` over a new log directory and tier."""
        return EngineBed(tmp_path, self.record)

    @staticmethod
    def record(number: int) -> Record:
        """Return record ``number``, whose key no other record has. Override the method for special records."""
        return Record(key=b"key %d" % number, value=b"value %d " % number + b"." * (number * 37 % 200))

    # --- one engine --------------------------------------------------------------------------------------------------

    def test_appended_records_are_read(self, bed: EngineBed, engine_setup: EngineSetup) -> None:
        """Records of several segments are read back: the whole log, from each offset, and by key."""
        with bed.filled(engine_setup) as engine:
            bed.check(engine)

    def test_offloaded_records_are_read(self, bed: EngineBed, engine_setup: EngineSetup) -> None:
        """An offload uploads all closed segments to the tier, and changes no record."""
        with bed.filled(engine_setup) as engine:
            bed.roll(engine)
            engine.offload()
            assert {lag.segments for lag in engine.tier_lag()} == {0}
            bed.check(engine)

    def test_evicted_records_are_read(self, bed: EngineBed, engine_setup: EngineSetup) -> None:
        """After local copies of offloaded segments are deleted, all records are read back, and appends continue."""
        with bed.filled(engine_setup) as engine:
            bed.evict(engine)
            assert engine.log(TOPIC, 0).offsets().local_log_start > 0
            bed.check(engine)
            bed.append(engine)
            bed.check(engine)

    def test_records_are_read_from_the_tier_alone(self, bed: EngineBed, engine_setup: EngineSetup) -> None:
        """A reader of the tier finds all offloaded records, without the log directory."""
        with bed.filled(engine_setup) as engine:
            bed.evict(engine)
        with bed.open_reader(engine_setup) as reader:
            bed.check(reader)

    def test_duties_delete_no_record(self, bed: EngineBed, engine_setup: EngineSetup) -> None:
        """Retention, compaction, extra indexes and the collection of objects raise no error and keep every record."""
        with bed.filled(engine_setup) as engine:
            bed.maintain(engine)
            bed.check(engine)
            bed.evict(engine)
            bed.append(engine)
            bed.maintain(engine)
            bed.check(engine)

    def test_a_verification_finds_nothing(self, bed: EngineBed, engine_setup: EngineSetup) -> None:
        """``verify`` decodes every record, locally and in the tier, and finds no damage."""
        with bed.filled(engine_setup) as engine:
            bed.roll(engine)
            engine.offload()
            bed.append(engine)
            bed.roll(engine)
            engine.make_extra_indexes()
            assert [repair for result in engine.verify(deep=True) for repair in result.repairs] == []

    # --- several engines, one after the other ------------------------------------------------------------------------

    def test_records_are_read_after_a_clean_stop(self, bed: EngineBed, engine_setup: EngineSetup) -> None:
        """An engine that is opened again has all records, in the tier and locally, and accepts appends."""
        bed.filled(engine_setup).close()
        for _ in range(2):
            with bed.open(engine_setup) as engine:
                bed.check(engine)
                bed.append(engine)
                bed.evict(engine)
                bed.append(engine)
        with bed.open(engine_setup) as engine:
            bed.check(engine)

    @pytest.mark.parametrize("evicts", [False, True], ids=["local", "evicted"])
    def test_records_are_read_after_the_process_is_killed(
        self, bed: EngineBed, engine_setup: EngineSetup, tmp_path: Path, *, evicts: bool
    ) -> None:
        """Every acknowledged record survives if the process is killed without a flush or a close."""
        self._needs_files()
        engine = bed.filled(engine_setup)
        if evicts:
            bed.evict(engine)
            bed.append(engine)
        copied_data = tmp_path / "killed"
        shutil.copytree(bed.data, copied_data)
        with bed.open(engine_setup, copied_data) as second_engine:
            bed.check(second_engine)
            bed.append(second_engine)
            bed.check(second_engine)
        with contextlib.suppress(StorageError):  # the second engine may have fenced this one
            engine.close()

    def test_durable_records_survive_a_power_loss(
        self, bed: EngineBed, engine_setup: EngineSetup, tmp_path: Path
    ) -> None:
        """After a power loss, all durable records are read back. Only records that were not durable can be missing."""
        self._needs_files()
        chance = random.Random(5)  # noqa: S311 - the same states in every run
        bed.data.mkdir()
        files = PowerLossVfs(bed.data)
        states = list[tuple[Path, int]]()

        def before(operation: str) -> None:
            if operation in _CHANGES and chance.random() < 0.1 and len(states) < _STATES:
                state = tmp_path / f"state {len(states)}"
                files.leave(state, chance)
                states.append((state, len(bed.acknowledged[TOPIC])))

        with bed.filled(engine_setup, files, "durable") as engine:
            files.before = before
            for _ in range(4):
                bed.append(engine, "durable", [TOPIC])
                engine.log(TOPIC, 0).roll()
            files.before = None
        self._check_states(bed, engine_setup, states)

    def test_evicted_records_survive_a_power_loss(
        self, bed: EngineBed, engine_setup: EngineSetup, tmp_path: Path
    ) -> None:
        """After a power loss, an engine finds the records of evicted segments in the tier, and all durable records."""
        self._needs_files()
        chance = random.Random(6)  # noqa: S311 - the same states in every run
        bed.data.mkdir()
        files = PowerLossVfs(bed.data)
        with bed.filled(engine_setup, files) as engine:
            bed.evict(engine)
            bed.append(engine, "durable")
            states = [(tmp_path / f"state {number}", len(bed.acknowledged[TOPIC])) for number in range(3)]
            for state, _ in states:
                files.leave(state, chance)
        self._check_states(bed, engine_setup, states)

    def test_records_are_read_after_an_upgrade(
        self, bed: EngineBed, engine_setup: EngineSetup, changed_setup: EngineSetup
    ) -> None:
        """An engine with ``changed_setup`` reads records that ``engine_setup`` wrote, and its own new records."""
        self._fill(bed, engine_setup)
        for _ in range(2):
            with bed.open(changed_setup) as engine:
                bed.check(engine)
                bed.append(engine)
                bed.evict(engine)
                bed.maintain(engine)
                bed.check(engine)

    # --- without the plugin ------------------------------------------------------------------------------------------

    def test_an_engine_without_the_plugin_loses_no_record(
        self, bed: EngineBed, engine_setup: EngineSetup, setup_without: EngineSetup
    ) -> None:
        """An engine without the plugin keeps every record, and its calls raise no error except StorageError."""
        self._fill(bed, engine_setup)
        if self.opens_without:
            with bed.open(setup_without) as engine:
                self._use(bed, engine)
        else:
            with pytest.raises(StorageError):
                bed.open(setup_without)
        with bed.open(engine_setup) as engine:
            bed.check(engine)
            bed.append(engine)
            bed.evict(engine)
            bed.maintain(engine)
            bed.check(engine)

    def test_an_engine_without_the_plugin_names_it(
        self, bed: EngineBed, engine_setup: EngineSetup, setup_without: EngineSetup, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Without the plugin, an error or a warning contains ``missing``."""
        self._fill(bed, engine_setup)
        caplog.clear()
        with caplog.at_level(logging.WARNING, "stratalog"):
            try:
                with bed.open(setup_without) as engine:
                    errors = self._use(bed, engine)
            except StorageError as error:
                errors = [error]
        texts = [*map(str, errors), *caplog.messages]
        assert any(self.missing in text for text in texts), texts

    # --- parts of the tests ------------------------------------------------------------------------------------------

    def _needs_files(self) -> None:
        if not self.has_files:
            pytest.skip("the log directory is not a folder of files")

    @staticmethod
    def _fill(bed: EngineBed, setup: EngineSetup) -> None:
        """Fill a log directory: older records are only in the tier, newer records are only on local disk."""
        with bed.filled(setup) as engine:
            bed.evict(engine)
            bed.append(engine)

    @staticmethod
    def _use(bed: EngineBed, engine: Engine) -> list[StorageError]:
        """Append, read, roll and run all background work on an engine without the plugin; return the errors."""
        calls: list[Callable[[], object]] = [
            *(partial(bed.append, engine, topics=[topic]) for topic in (TOPIC, OTHER)),
            lambda: list(engine.log(TOPIC, 0).records()),
            lambda: list(engine.log(TOPIC, 0).records_with_key(b"key 1")),
            lambda: bed.roll(engine),
        ]
        return [error for errors in (*map(errors_of, calls), *bed.maintained(engine)) for error in errors]

    @staticmethod
    def _check_states(bed: EngineBed, setup: EngineSetup, states: list[tuple[Path, int]]) -> None:
        """Check that an engine over each state of the disk reads the durable records, and no wrong record."""
        assert states
        expected = list(bed.acknowledged[TOPIC].items())
        for state, durable in states:
            with bed.open(setup, state) as engine:
                contents = [(record.offset, (record.key, record.value)) for record in engine.log(TOPIC, 0).records()]
                assert contents == expected[: len(contents)]
                assert durable <= len(contents)
