"""The only place where tests read private attributes of engines and logs, for tests of the room that owns the object."""

from __future__ import annotations

from stratalog import Engine, Log, Producer
from stratalog.client.clients import Clients
from stratalog.client.transaction import Transaction
from stratalog.log.state.log_state import LogState


def clients(engine: Engine) -> Clients:
    """Return the groups and transactions of an engine."""
    return engine._clients


def log_state(log: Log) -> LogState:
    """Return the state of an open log."""
    return log._state


def tell_listeners(engine: Engine) -> None:
    """Wait until all listeners have got the events so far."""
    engine._logs.notifier.drain()


def write_checkpoints(engine: Engine) -> None:
    """Store the checkpoint files of all directories."""
    engine._duties.write_checkpoints()


def transaction(producer: Producer) -> Transaction:
    """Return the open transaction of a producer."""
    assert producer._transaction is not None
    return producer._transaction
