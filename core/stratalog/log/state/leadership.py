"""Roles of a log: leading in an epoch, or following whoever leads in it. Epochs never go back.

Source: apache/kafka Partition.makeLeader, makeFollower; UnifiedLog.assignEpochStartOffset.
"""

from __future__ import annotations

from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import ConfigError, OutOfResourcesError, StaleLeaderEpochError, StorageError
from stratalog.log.folder.folder import write_epochs
from stratalog.log.state.log_state import LogState
from stratalog.model.offsets import MAX_EPOCH


def lead(state: LogState, epoch: int) -> None:
    """Take appends in ``epoch`` from now on.

    It begins at the log end, durably, even if nothing is ever appended in it: a follower with records of an earlier epoch
    beyond that learns from it what to cut.

    Raises:
        StaleLeaderEpochError: the epoch is below the log's, or another one leads in it.
        StorageError: the epoch cannot be stored; the role is as before.
    """
    with state.lock:
        state.check_writable()
        _check_epoch(state, epoch)
        if not state.is_leader and epoch == state.leader_epoch:
            raise StaleLeaderEpochError(f"log {state.log} follows another leader in epoch {epoch}")
        store_epochs(state, state.epochs.assign(epoch, state.log_end))
        state.leader_epoch, state.is_leader = epoch, True
        state.publish()


def follow(state: LogState, epoch: int) -> None:
    """Take batches of the leader of ``epoch`` from now on, and no other appends.

    The high watermark stays, and moves by what the leader says.

    Raises:
        StaleLeaderEpochError: the epoch is below the log's.
        ConfigError: it is above 2147483647.
    """
    with state.lock:
        state.check_writable()
        _check_epoch(state, epoch)
        if state.is_leader:
            state.given_watermark = state.view.offsets.high_watermark
        state.leader_epoch, state.is_leader = epoch, False
        state.publish()


def store_epochs(state: LogState, epochs: EpochCache) -> None:
    """Make these the log's epochs, durable on return; under the log's lock.

    Raises:
        OutOfResourcesError: no space or no descriptor; all is as before.
        StorageError: what takes the log out of service.
    """
    if epochs == state.epochs:
        return
    try:
        write_epochs(state.files, epochs)
    except OutOfResourcesError:
        raise
    except StorageError as error:
        state.fail(error)
        raise
    state.epochs = epochs


def _check_epoch(state: LogState, epoch: int) -> None:
    if epoch > MAX_EPOCH:
        raise ConfigError(f"a leader epoch has 32 bits: {epoch}")
    if epoch < state.leader_epoch:
        raise StaleLeaderEpochError(f"log {state.log} is in leader epoch {state.leader_epoch}, not in {epoch}")
