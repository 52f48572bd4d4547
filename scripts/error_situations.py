"""Constructors of situations in which the code raises an error.

A situation is a function that raises the error; its argument is an empty folder. The text of the error is the same in
every run.
"""

from __future__ import annotations

import os
import random
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from stratalog import Log, open_engine
from stratalog.engine.engine import Engine
from stratalog.env import Env, SystemClock
from stratalog.errors import log_dir_error
from stratalog.producers.state import ProducerHistory
from stratalog_s3.failures import Reply, convert_reply
from stratalog_s3.secret import SecretOptions

Situation = Callable[[Path], object]


class _Clock(SystemClock):
    def now_ms(self) -> int:
        return 1_700_000_000_000


@contextmanager
def open_orders(folder: Path, *, tiered: bool = False, **config: Any) -> Iterator[tuple[Engine, Log]]:
    """Open an engine with the topic ``orders``; yield the engine and the topic's log.

    ``config`` contains settings of the topic, with underscores instead of dots.
    """
    (folder / "bucket").mkdir(exist_ok=True)
    settings = {name.replace("_", "."): value for name, value in config.items()}
    tier = (folder / "bucket").as_uri() if tiered else None
    env = Env(clock=_Clock(), chance=random.Random(1))  # noqa: S311 - ids that are the same in every run
    with open_engine(folder / "logs", tier=tier, env=env) as engine:
        if "orders" not in engine.topics():
            engine.create_topic("orders", config=settings)
        yield engine, engine.log("orders", 0)


def log_situation(*steps: Callable[[Engine, Log], object], **config: Any) -> Situation:
    """Return a situation that runs ``steps`` with an open engine and log. The last step raises the error."""

    def run(folder: Path) -> None:
        with open_orders(folder, **config) as (engine, log):
            for step in steps:
                step(engine, log)

    return run


def system_situation(number: int) -> Situation:
    """Return a situation that raises the error for an error number of the operating system."""

    def run(folder: Path) -> None:
        raise log_dir_error(OSError(number, os.strerror(number)), str(folder / "orders-0"))

    return run


def batch_of(**changes: object) -> Any:  # Any: only the fields that a check reads
    """Return the fields of a batch of a producer, with ``changes``."""
    facts = {"producer_epoch": 1, "base_sequence": 7, "is_control": False, "is_transactional": False}
    return types.SimpleNamespace(**facts | changes)


def producer_situation(batch: object, marker: object = None, **state: int) -> Situation:
    """Return a situation that raises the error for a batch, or a marker, of a producer with the history ``state``."""

    def run(_: Path) -> None:
        history = ProducerHistory(4001, **cast("Any", {"epoch": 1, "coordinator_epoch": 3, **state}))
        history.check(cast("Any", batch), cast("Any", marker), in_sequence=True)

    return run


def store_situation(code: str, status: int, text: str) -> Situation:
    """Return a situation that raises the error for an answer of S3."""

    def run(_: Path) -> None:
        raise convert_reply(Reply(code, status, text), "orders/0/manifest", "s3://bucket", SecretOptions({}))

    return run
