"""Access to private attributes of engines and logs. Tests read private attributes only through this module."""

from __future__ import annotations

from stratalog import Engine, Log, Producer
from stratalog.client.clients import Clients
from stratalog.client.transactions.transaction import Transaction
from stratalog.log.state.log_state import LogState


def clients(engine: Engine) -> Clients:
    """Return the state of the engine's consumer groups and transactional producers."""
    return engine._clients


def log_state(log: Log) -> LogState:
    """Return the state of an open log."""
    return log._state


def tell_listeners(engine: Engine) -> None:
    """Wait until all listeners have received the events so far."""
    engine._logs.notifier.drain()


def write_checkpoints(engine: Engine) -> None:
    """Store the checkpoint files of all directories."""
    engine._duties.write_checkpoints()


def transaction(producer: Producer) -> Transaction:
    """Return the open transaction of a producer."""
    assert producer._transaction is not None
    return producer._transaction
