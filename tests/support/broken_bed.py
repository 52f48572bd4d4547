"""An engine whose components all come from one third-party plugin, of which one method breaks the contract."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import stratalog_compaction
import stratalog_formats
import stratalog_local
import stratalog_s3
from broken_parts import PARTS, Breaker, Fault, broken
from extra_indexes import IndexCalls, KeySet
from stratalog import Engine, Record, open_engine
from stratalog.errors import ClosedError, StorageError
from stratalog.model.events import SegmentRolled
from stratalog.registry import component_kinds
from stratalog.registry.component_kinds import ComponentKind
from stratalog.spi import BatchHeader, CodecTable, OpenContext, Provider, SegmentStore, Service, hookimpl
from stratalog_formats.records.batches import BatchFormat

DISTRIBUTION: Final = "acme-parts"
SOURCE: Final = "import broken_bed\n" + "".join(
    f"{hook} = broken_bed.{hook}\n"
    for hook in [*(f"stratalog_{kind}" for kind in PARTS), "stratalog_on_segment_rolled"]
)
LISTENER: Final = "listener.stratalog_on_segment_rolled"
TOPIC: Final = "t"  # compressed, with a tier
PLAIN: Final = "plain"
_END_S: Final = 60  # ends a test that would otherwise never end, in seconds
_BESIDE_S: Final = 5  # for a step that waits for no other thread
_CALL: Final = "stratalog-call-"  # name prefix of threads of calls with a deadline
_DEADLINE_MS: Final = 1_000  # deadline of calls that hang; correct calls take less, even on a busy machine
_STOP_MS: Final = 200
_CONFIG: Final = {
    "remote.storage.enable": True,
    "cleanup.policy": "compact,delete",
    "compression.type": "zstd",
    "index.extra": "keys",
    "local.retention.bytes": 1,
    "retention.ms": -1,
    "retention.bytes": -1,
    "min.cleanable.dirty.ratio": 0,
    "file.delete.delay.ms": 0,
}
_BLOCKED: Final = ["formats", "local", "s3", "compaction", "telemetry", "gateway", "spark"]
_TITLES: Final = {
    found.component: found.title for found in vars(component_kinds).values() if isinstance(found, ComponentKind)
}
_used = [Breaker()]
_stores: list[SegmentStore] = []


class Outcome(enum.StrEnum):
    """The result of a broken method, for the table in ``docs/plugins.md``."""

    ERROR = "error"
    LOGGED = "logged"
    WAITS = "waits"
    ABANDONED = "abandoned"
    UNSEEN = "undetected"
    UNUSED = "unused"


class Idle(Service):
    """A service without work."""

    def start(self, engine: Engine) -> None:
        """Do nothing."""

    def stop(self, deadline_ns: int) -> None:
        """Do nothing."""


def _offered(kind: str, providers: Iterable[Provider[Any]]) -> list[Provider[Any]]:
    part = PARTS[kind][0]

    def opened(provider: Provider[Any], context: OpenContext) -> object:
        component = provider.open(context)
        if isinstance(component, SegmentStore):
            _stores.append(component)
        return broken(component, part, _used[0])

    return [dataclasses.replace(provider, open=partial(opened, provider)) for provider in providers]


@hookimpl
def stratalog_record_formats() -> list[Provider[Any]]:
    return _offered("record_formats", stratalog_formats.stratalog_record_formats())


@hookimpl
def stratalog_codecs() -> list[Provider[Any]]:
    return _offered("codecs", stratalog_formats.stratalog_codecs())


@hookimpl
def stratalog_index_formats() -> list[Provider[Any]]:
    return _offered("index_formats", stratalog_formats.stratalog_index_formats())


@hookimpl
def stratalog_extra_indexes() -> list[Provider[Any]]:
    return _offered("extra_indexes", [Provider[Any](name="keys", open=lambda _: KeySet(IndexCalls()))])


@hookimpl
def stratalog_segment_stores() -> list[Provider[Any]]:
    return _offered("segment_stores", stratalog_local.stratalog_segment_stores())


@hookimpl
def stratalog_object_stores() -> list[Provider[Any]]:
    return _offered("object_stores", stratalog_s3.stratalog_object_stores())


@hookimpl
def stratalog_tier_layouts() -> list[Provider[Any]]:
    return _offered("tier_layouts", stratalog_formats.stratalog_tier_layouts())


@hookimpl
def stratalog_cleanup_policies() -> list[Provider[Any]]:
    return _offered("cleanup_policies", stratalog_compaction.stratalog_cleanup_policies())


@hookimpl
def stratalog_services() -> list[Provider[Any]]:
    return _offered("services", [Provider[Any](name="idle", open=lambda _: Idle())])


@hookimpl
def stratalog_on_segment_rolled(event: SegmentRolled) -> None:
    _used[0].call(LISTENER, lambda: None, (event,), is_void=True)


@dataclass(eq=False)
class Bed:
    """One engine with one log in a tier, and the records that the engine acknowledged.

    Attributes:
        folder: folder of the log directory and of the bucket.
        breaker: breaks one method.
        tier: URI of the tier; "" for the bucket in ``folder``.
        tier_options: options of the tier.
        acknowledged: values of the records whose append returned, by topic and offset.
        steps: outcome of each step: "", the text of its error, or ``hangs``.
        results: return values of the steps, as text.
        untyped: errors that are not a StorageError.
        wrong_reads: topic and offset of each record that a read returned with another value.
    """

    folder: Path
    breaker: Breaker
    tier: str = ""
    tier_options: Mapping[str, object] = field(default_factory=dict)
    acknowledged: dict[tuple[str, int], bytes] = field(default_factory=dict)
    steps: dict[str, str] = field(default_factory=dict)
    results: list[str] = field(default_factory=list)
    untyped: list[str] = field(default_factory=list)
    wrong_reads: list[tuple[str, int]] = field(default_factory=list)
    _engine: Engine | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _number: int = 0
    _threads: list[threading.Thread] = field(default_factory=list)
    _killed: list[Engine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.breaker.changed = self._wake
        _used[0] = self.breaker
        (self.folder / "bucket").mkdir()

    def fill(self) -> None:
        """Append records in three segments, and offload the first two. The method is not broken yet."""
        engine = self._open()
        engine.create_topic(TOPIC, config=_CONFIG)
        engine.create_topic(PLAIN, config={"retention.ms": -1})
        engine.create_topic("other")
        log = engine.log(TOPIC, 0)
        for _ in range(2):
            self._append(engine)
            log.roll()
            engine.offload()
        self._append(engine)
        engine.log("other", 0).append([Record(value=b"1"), Record(value=b"2")])

    def use(self) -> None:
        """Break the method, call each operation of the engine, and close it; each step may fail."""
        if self.breaker.fault is Fault.HANGS:  # until now nothing hung, so nothing needed a short deadline
            self._opened().close()
            while self.steps.get("open") != "":  # the machine may stand still for longer than the deadline
                self._step("open", lambda: self._open(_DEADLINE_MS), may_hang=False)
        engine = self._opened()
        self.breaker.on = True
        log, other_log = engine.log(TOPIC, 0), engine.log("other", 0)
        steps: dict[str, Callable[[], object]] = {
            "start": lambda: engine._services.start(lambda service: service.start(engine)),  # noqa: SLF001 - without the duties' threads, which make the order of calls depend on time
            "append": lambda: self._append(engine),
            "append a client's batch": lambda: self._append_encoded(engine),
            "flush": engine.flush,
            "read": lambda: self._read(engine),
            "fetch": lambda: engine.log(PLAIN, 0).fetch(0, 1_000).release(),
            "roll": log.roll,
            "append to another segment": lambda: self._append(engine),
            "roll again": log.roll,
            "extra indexes": engine.make_extra_indexes,
            "find a key": lambda: list(log.records_with_key(b"k1")),
            "find a time": lambda: log.offset_for_timestamp(1_000),
            "offload": engine.offload,
            "evict": engine.apply_retention,
            "read the tier": lambda: self._read(engine),
            "compact": engine.run_cleaner,
            "collect": engine.collect,
            "duties": engine.run_duties,
            "verify": lambda: engine.verify(deep=True),
            "metrics": engine.metrics,
            "truncate": lambda: other_log.truncate_to(1),
            "delete a topic": lambda: engine.delete_topic("other"),
            "read after all": lambda: self._read(engine),
            "append at last": lambda: self._append(engine),
        }
        if self.breaker.target.endswith("decode_arrow"):  # other methods need not wait for the import of pyarrow
            steps = {"to arrow": lambda: engine.log(PLAIN, 0).to_arrow().num_rows}
        for name, step in steps.items():
            if not self._step(name, step):
                break
        self._step("close", engine.close, may_hang=False)

    def reopen(self) -> None:
        """Abandon the engine as a killed process does, and open the directory again with the broken method."""
        engine = self._opened()
        self.breaker.on = True
        for store in _stores:
            store.close()  # the lock of a killed process is free
        self._killed.append(engine)
        deadline_ms = _DEADLINE_MS if self.breaker.fault is Fault.HANGS else 60_000
        if self._step("open", lambda: self._open(deadline_ms)) and not self.steps["open"]:
            engine = self._opened()
            if self._step("read", lambda: self._read(engine)):
                self._step("append", lambda: self._append(engine))
            self._step("close", engine.close, may_hang=False)

    def sound_records(self) -> dict[tuple[str, int], bytes]:
        """End all hanging calls, and read all records with correct components. Return the values by log and offset."""
        self.breaker.on = False
        self.breaker.gate.set()
        for thread in self._threads:
            thread.join(_END_S)  # a call that hung may still open the engine
        for thread in threading.enumerate():
            if thread.name.startswith(_CALL):  # an engine that opens too late is closed
                thread.join(_END_S)
        is_open_late = self.steps.get("open") == "" and "close" not in self.steps
        if is_open_late or self.steps.get("close"):
            self._step("close again", self._opened().close, may_hang=False)
        for store in _stores:  # a store that was never closed still has its lock
            store.close()
        _stores.clear()
        with self._open(sound=True) as engine:
            values = self._records(engine)
        for killed in self._killed:
            with contextlib.suppress(ClosedError):  # the store of the killed engine is closed: nothing can be written
                killed.close()  # this process may open a limited number of files
        return values

    def outcome(self, messages: str) -> Outcome:
        """Return the result of the broken method. ``messages`` is the text that was logged."""
        errors = " ".join(self.steps.values())
        if not self.breaker.calls:
            return Outcome.UNUSED
        if "hangs" in self.steps.values():
            return Outcome.WAITS
        if self.breaker.fault is Fault.HANGS:
            return Outcome.ABANDONED
        names = _names_component if self.breaker.fault is Fault.LIES else _names
        if names(errors, self.breaker.target):
            return Outcome.ERROR
        return Outcome.LOGGED if names(" ".join(self.results) + messages, self.breaker.target) else Outcome.UNSEEN

    def checked_outcome(self, messages: str) -> Outcome:
        """Check the result of the steps, and return the outcome of the broken method.

        No record may be lost, no close may hang, and each error must be a StorageError that names the plugin.
        """
        outcome = self.outcome(messages)
        assert self.steps.get("close") != "hangs"
        values = self.sound_records()
        assert {place: values.get(place) for place in self.acknowledged} == self.acknowledged
        assert not self.untyped
        fault = self.breaker.fault
        if fault is Fault.RAISES or (fault is Fault.TYPE and self.breaker.target != LISTENER):
            assert outcome is not Outcome.UNSEEN
        return outcome

    def _open(self, deadline_ms: int = 60_000, *, sound: bool = False) -> Engine:
        config: dict[str, object] = {
            "service.stop.ms": _STOP_MS,
            "store.retries": 0,
            "plugin.deadline.ms": deadline_ms,
            "store.deadline.ms": deadline_ms,
            "plugins.block": ["acme"] if sound else _BLOCKED,
            "services": [] if sound else ["idle"],
        }
        tier = self.tier or f"file://{self.folder / 'bucket'}"
        self._engine = open_engine(self.folder / "data", tier=tier, tier_options=self.tier_options, config=config)
        return self._engine

    def _opened(self) -> Engine:
        assert self._engine is not None
        return self._engine

    def _step(self, name: str, work: Callable[[], object], *, may_hang: bool = True) -> bool:
        """Run a step on its own thread. Return False if the step waits for a call that hangs."""
        is_over = threading.Event()

        def run() -> None:
            self.steps[name] = "hangs"
            try:
                self.results.append(repr(work()))
                self.steps[name] = ""
            except StorageError as error:
                self.steps[name] = str(error)
            except BaseException as error:  # noqa: BLE001 - the test reports it
                self.steps[name] = f"{type(error).__name__}: {error}"
                self.untyped.append(f"{name}: {error!r}")
            is_over.set()
            self._wake()

        thread = threading.Thread(target=run, name=f"step {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

        def is_decided() -> bool:
            return is_over.is_set() or (may_hang and thread in self.breaker.hung)

        with self._changed:
            self._changed.wait_for(lambda: is_decided() or (may_hang and self._hangs_beside()), _END_S)
            self._changed.wait_for(is_decided, _BESIDE_S if may_hang else 0)
        return is_over.is_set()

    def _hangs_beside(self) -> bool:
        """Return True if a call hangs on a thread without a deadline. The step may wait for such a thread."""
        return any(not thread.name.startswith(_CALL) for thread in list(self.breaker.hung))

    def _append(self, engine: Engine) -> None:
        for _ in range(2):
            self._number += 1
            value = b"%d-" % self._number + b"v" * 300
            record = Record(key=b"k%d" % self._number, value=value, timestamp_ms=1_000)
            for topic in (TOPIC, PLAIN):
                self.acknowledged[topic, engine.log(topic, 0).append([record]).base_offset] = value

    def _append_encoded(self, engine: Engine) -> None:
        self._number += 1
        value = b"%d-client" % self._number
        record = Record(key=b"k%d" % self._number, value=value, timestamp_ms=1_000)
        batch = BatchFormat(CodecTable()).encode([record], BatchHeader(), None, None)
        for topic in (TOPIC, PLAIN):
            self.acknowledged[topic, engine.log(topic, 0).append_as_leader(batch).base_offset] = value

    @staticmethod
    def _records(engine: Engine) -> dict[tuple[str, int], bytes]:
        return {
            (topic, record.offset): bytes(record.value or b"")
            for topic in (TOPIC, PLAIN)
            for record in engine.log(topic, 0).records(0)
        }

    def _read(self, engine: Engine) -> None:
        values = self._records(engine)
        self.wrong_reads += [place for place in values if values[place] != self.acknowledged.get(place)]

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _names(text: str, target: str) -> bool:
    """Return True if a text names the method ``target`` of a component, and the distribution of the component."""
    method = target.rpartition(".")[2]
    return re.search(rf"{DISTRIBUTION} [^:]*\): {method} ", text) is not None or f"listener {method}" in text


def _names_component(text: str, target: str) -> bool:
    """Return True if a text names a component of the kind of ``target``, and its distribution.

    If a method returns a wrong value, the engine often detects this in the result of another method of the component.
    """
    part = target.partition(".")[0]
    title = next(
        (
            _TITLES[parts[0]]
            for parts in PARTS.values()
            if part in {component_type.__name__ for component_type in parts}
        ),
        "listener",
    )
    return re.search(rf"{title} '\w+' version \d+ \(plugin acme of {DISTRIBUTION} ", text) is not None
