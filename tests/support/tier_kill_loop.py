"""Kills engines with a tier at any point, many times, and checks that no record is lost and no engine hangs.

Usage: tier_kill_loop.py FOLDER URI OPTIONS CYCLES SEED. The exit code is 0 if no record is lost; otherwise the program
prints what is lost. If CYCLES is 0, it kills one engine after the first request that changes the tier, the next one
after the second request, and so on, until an engine completes its work. Each engine and each check runs in a fork of
this process. The process itself opens no engine with a tier: the threads of an S3 client do not survive a fork.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import random
import select
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import s3fs  # noqa: F401 - slow to import, and each fork would

from forked import fork_with_pipe
from s3_client_data import client_data_loaded_once, load_client_data
from stratalog import Engine, Record, open_engine
from stratalog.env import Env, PosixVfs
from stratalog.env.clock import ManualClock
from stratalog.errors import FencedEpochError
from stratalog.segment.finding import Finding, FindingKind
from stratalog.tier.store.store import TierStore
from stratalog.tier.upkeep.tier_check import TierLogCheck

RETAINED_BYTES: Final = 30_000
CONFIG: Final = {
    "segment.bytes": 4000,
    "index.interval.bytes": 0,
    "file.delete.delay.ms": 0,
    "local.retention.bytes": 1,
    "retention.bytes": RETAINED_BYTES,
    "retention.ms": -1,
    "remote.storage.enable": True,
}
COMPACTED: Final = {
    "segment.bytes": 4000,
    "index.interval.bytes": 0,
    "file.delete.delay.ms": 0,
    "local.retention.bytes": 1,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": 0.01,
    "remote.storage.enable": True,
}
KEYS: Final = 7  # of the compacted topic
LEAST_STEPS: Final = 12
MOST_TOLD: Final = 250
LOOK_EVERY: Final = 5
LONGEST_WAIT_S: Final = 0.01
DAYS_MS: Final = 3 * 86_400_000  # longer than the grace time and the history


@dataclass(frozen=True, slots=True)
class Place:
    """Location of the log: a directory, and a tier."""

    folder: str
    uri: str
    options: dict[str, Any]

    def opened(self, env: Env | None = None) -> Engine:
        """Open an engine."""
        return open_engine(self.folder, tier=self.uri, tier_options=self.options, env=env)

    def opened_later(self, times: int, files: PosixVfs | None = None) -> Engine:
        """Open an engine whose clock is ``times`` periods ahead.

        Each period is longer than the grace time and the history of the tier.
        """
        clock = ManualClock(Env().clock.now_ms() + times * DAYS_MS)
        return self.opened(Env(clock=clock) if files is None else Env(clock=clock, files=files))


class ReportingFiles(PosixVfs):
    """File system that writes a message before each change, so that the parent can kill the process at any change."""

    def __init__(self, told: int) -> None:
        super().__init__()
        self._told, self.offset = told, -1

    def report(self) -> None:
        """Write ``offset``, the last acknowledged offset, to the parent."""
        os.write(self._told, self.offset.to_bytes(8, "big", signed=True))

    def write(self, descriptor: int, position: int, data: bytes | bytearray | memoryview) -> int:
        """Write a message, then the data."""
        self.report()
        return super().write(descriptor, position, data)

    def sync(self, descriptor: int) -> None:
        """Write a message, then sync."""
        self.report()
        super().sync(descriptor)

    def rename(self, old: str, new: str) -> None:
        """Write a message, then rename."""
        self.report()
        super().rename(old, new)

    def link(self, old: str, new: str) -> None:
        """Write a message, then link."""
        self.report()
        super().link(old, new)

    def remove(self, path: str) -> None:
        """Write a message, then remove."""
        self.report()
        super().remove(path)


@contextlib.contextmanager
def behind_each_write(act: Callable[[], object]) -> Iterator[None]:
    """Call ``act`` after each request that changes the tier, once the store has responded."""

    def acting(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def answered(*arguments: Any) -> Any:
            answer = method(*arguments)
            act()
            return answer

        return answered

    with contextlib.ExitStack() as stack:
        for method in (TierStore.put, TierStore.create, TierStore.delete, TierStore.abort):
            stack.enter_context(patch.object(TierStore, method.__name__, acting(method)))
        yield


def append(engine: Engine, count: int) -> int:
    """Append this many numbers to both topics. Return the offset of the last one, which is the same in both."""
    for _ in range(count):
        offset = engine.log("t", 0).offsets().log_end
        engine.log("t", 0).append([Record(value=b"%0300d" % offset)])
        while engine.log("c", 0).offsets().log_end <= offset:  # a kill may have come between the two
            number = engine.log("c", 0).offsets().log_end
            engine.log("c", 0).append([Record(key=b"%d" % (number % KEYS), value=b"%0300d" % number)])
    return offset


def pass_over(engine: Engine) -> None:
    """Run each duty once."""
    engine.offload()
    engine.apply_retention()
    engine.run_cleaner()
    engine.collect()


def work_once(place: Place, told: int, step: int) -> None:
    """Append, and run each duty once. Kill this process after the ``step``-th request that changes the tier."""
    files, steps_left = ReportingFiles(told), [step]

    def die() -> None:
        steps_left[0] -= 1
        if not steps_left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    with place.opened_later(2 * step, files) as engine:
        files.offset = append(engine, 40)
        files.report()
        with behind_each_write(die):
            pass_over(engine)


def work_for_ever(place: Place, told: int, seed: int) -> None:
    """Append numbers, and run random duties: offload, retention, collection, cleaning. Never return."""
    chance, files = random.Random(seed), ReportingFiles(told)  # noqa: S311 - a run that can be repeated
    with place.opened(Env(files=files)) as engine, behind_each_write(files.report):
        duties: tuple[Callable[[], object], ...] = (
            engine.offload,
            engine.apply_retention,
            engine.collect,
            engine.run_cleaner,
        )
        while True:
            for _ in range(chance.randrange(1, 30)):
                files.offset = append(engine, 1)
                files.report()
            for duty in chance.sample(duties, 2):
                duty()
                files.report()


def kill_at(place: Place, step: int) -> tuple[bool, int]:
    """Run an engine up to a step. Return True if it was killed at the step, and its last acknowledged offset."""
    child, reading = fork_with_pipe(lambda writing: work_once(place, writing, step))
    last = -1
    while message := os.read(reading, 8):
        last = max(last, int.from_bytes(message, "big", signed=True))
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) and os.waitstatus_to_exitcode(status):
        raise AssertionError(f"step {step}: the engine failed")
    return os.WIFSIGNALED(status), last


def kill_one(place: Place, chance: random.Random) -> int:
    """Run an engine up to a random step, and kill it. Return the last offset that it acknowledged, or -1."""
    seed = chance.randrange(1 << 30)

    def work(writing: int) -> None:
        try:
            work_for_ever(place, writing, seed)
        except FencedEpochError:  # a slow server has carried out the last request of the previous engine only now
            while True:
                os.write(writing, b"\xff" * 8)

    child, reading = fork_with_pipe(work)
    last = -1
    for _ in range(chance.randrange(MOST_TOLD)):
        last = max(last, int.from_bytes(os.read(reading, 8) or b"\xff", "big", signed=True))
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    poll.poll(chance.random() * LONGEST_WAIT_S * 1000)  # the next step may be a request, which writes no message
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    while message := os.read(reading, 8):
        last = max(last, int.from_bytes(message, "big", signed=True))
    os.close(reading)
    if not os.WIFSIGNALED(status):
        raise AssertionError(f"seed {seed}: the engine ended by itself, code {os.waitstatus_to_exitcode(status)}")
    return last


def in_fork(look: Callable[[], str]) -> str:
    """Run a check in a forked process, and return its findings; "" if there are none."""

    def work(writing: int) -> None:
        try:
            story = look()
        except BaseException:  # noqa: BLE001 - the caller reports it
            story = traceback.format_exc()
        os.write(writing, story.encode()[:60_000])

    child, reading = fork_with_pipe(work)
    with os.fdopen(reading, "rb") as pipe:
        story = pipe.read().decode()
    os.waitpid(child, 0)
    return story


def create_topics(place: Place) -> str:
    """Create the topics, and return ""."""
    with place.opened() as engine:
        engine.create_topic("t", config=CONFIG)
        engine.create_topic("c", config=COMPACTED)
    return ""


def check_pass(place: Place, told: int) -> str:
    """Run each duty once. Return a description of lost records and missing objects; "" if there are none."""
    try:
        return _check_pass(place, told)
    except FencedEpochError:  # as above; the next engine finds the result of the late request
        return _check_pass(place, told)


def _check_pass(place: Place, acknowledged: int) -> str:
    with place.opened() as engine:
        pass_over(engine)
        return _lost(engine, acknowledged) or _flaws(engine, {FindingKind.ORPHAN})


def check_days_later(place: Place, told: int, times: int = 1) -> str:
    """Open an engine with a later clock, run each duty, and check the log and the tier. Return the findings.

    At this time, no root may exist that refers to a missing object, and no object that no root refers to.
    """
    with place.opened_later(times) as engine:
        append(engine, 1)
        for name in ("t", "c"):
            engine.log(name, 0).roll()
        pass_over(engine)
        return _lost(engine, told) or _flaws(engine, set())


def _lost(engine: Engine, acknowledged: int) -> str:
    log = engine.log("t", 0)
    offsets, values = log.offsets(), [int(record.value or b"-1") for record in log.records()]
    if values != list(range(offsets.log_start, offsets.log_end)) or offsets.log_end <= acknowledged:
        return (
            f"told {acknowledged}, there are {offsets.log_start} to {offsets.log_end}: {values[:3]} ... {values[-3:]}"
        )
    retained_bytes = sum(segment.size_bytes for segment in log.segments())
    if offsets.log_start and retained_bytes < RETAINED_BYTES:
        return f"retention left {retained_bytes} bytes, from offset {offsets.log_start} on"
    return _superseded_wrongly(engine, acknowledged)


def _superseded_wrongly(engine: Engine, acknowledged: int) -> str:
    """Return "" if the newest value of each key exists and no value is invented; otherwise a description."""
    log = engine.log("c", 0)
    end, latest = log.offsets().log_end, dict[bytes, int]()
    for record in log.records():
        if int(record.value or b"-1") != record.offset:
            return f"the record at {record.offset} says {record.value!r}"
        latest[record.key or b""] = record.offset
    expected = {b"%d" % (number % KEYS): number for number in range(max(0, end - KEYS), end)}
    return (
        ""
        if latest == expected and end > acknowledged
        else f"told {acknowledged}, the newest values are {latest}, and not {expected}"
    )


def _flaws(engine: Engine, harmless: set[FindingKind]) -> str:
    """Return the findings of a deep check of the tier, without the harmless kinds."""
    assert engine.tier is not None
    findings = list[Finding]()
    for name in ("t", "c"):
        log = engine.log(name, 0)
        assert log.topic_id is not None
        check = TierLogCheck(engine.tier.log(log.name, log.topic_id), log.components, contents=True)
        findings += check.roots()
        for item in check.segments():
            findings += [item] if isinstance(item, Finding) else check.check(item)
        findings += check.orphans()
    return "; ".join(
        f"{finding.kind} {finding.place}: {finding.text}" for finding in findings if finding.kind not in harmless
    )


def each_step(place: Place) -> str:
    """Kill one engine after each request in turn, and check the tier after each kill. Return what is lost, or ""."""
    story, acknowledged, step, was_killed = in_fork(lambda: create_topics(place)), -1, 0, True
    while was_killed and not story:
        step += 1
        was_killed, last = kill_at(place, step)
        acknowledged = max(acknowledged, last)
        story = in_fork(lambda: check_days_later(place, acknowledged, 2 * step + 1))  # noqa: B023 - called at once
    if not story and step < LEAST_STEPS:
        story = f"there was nothing to kill: {step} steps"
    return f"killed behind write {step}: {story}" if story else ""


def load_once(place: Place) -> None:
    """Import all modules by one run with a tier in a folder, and load the description of S3 for a tier on S3.

    Otherwise, each fork would do this. The objects of this process are excluded from the forks' searches for garbage.
    """
    with tempfile.TemporaryDirectory() as folder:
        local = Place(f"{folder}/data", Path(folder).as_uri(), {})
        create_topics(local)
        with local.opened() as engine:
            append(engine, 40)
            pass_over(engine)
        check_days_later(local, -1)
    if place.uri.startswith("s3:"):
        import stratalog_s3.direct  # noqa: PLC0415 - imports aiobotocore
        import stratalog_s3.s3  # noqa: F401, PLC0415 - only for S3

        load_client_data()
    gc.freeze()


def main(folder: str, uri: str, options: str, cycles: int, seed: int) -> str:
    """Kill engines, and check the tier regularly. Return a description of the lost records, or ""."""
    place, chance, acknowledged = Place(folder, uri, json.loads(options)), random.Random(seed), -1  # noqa: S311 - the same
    load_once(place)
    if not cycles:
        return each_step(place)
    counts = Counter[str]()
    story = in_fork(lambda: create_topics(place))
    for cycle in range(cycles):
        if story:
            break
        acknowledged = max(acknowledged, kill_one(place, chance))
        counts["kills"] += 1
        if cycle % LOOK_EVERY == LOOK_EVERY - 1:
            story = in_fork(lambda: check_pass(place, acknowledged))  # noqa: B023 - called at once
    story = story or in_fork(lambda: check_days_later(place, acknowledged))
    return f"seed {seed}, after {counts['kills']} kills: {story}" if story else ""


if __name__ == "__main__":
    with client_data_loaded_once(), patch.object(os, "fsync", os.fstat):  # a killed process loses no written bytes
        sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])) or 0)
