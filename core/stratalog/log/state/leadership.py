"""Roles of a log: leader of an epoch, or follower of that epoch's leader. Epochs never go back.

Source: apache/kafka Partition.makeLeader, makeFollower; UnifiedLog.assignEpochStartOffset.
"""

from __future__ import annotations

from stratalog.epochs.epoch_cache import EpochCache
from stratalog.errors import ConfigError, OutOfResourcesError, StaleLeaderEpochError, StorageError
from stratalog.log.folder.folder import write_epochs
from stratalog.log.state.log_state import LogState
from stratalog.model.offsets import MAX_EPOCH


def lead(state: LogState, epoch: int) -> None:
    """Accept leader appends in ``epoch`` from now on.

    The epoch begins at the log end and is stored durably, even if nothing is ever appended in it. A follower with
    records of an earlier epoch above that offset uses it to truncate them.

    Raises:
        StaleLeaderEpochError: the epoch is below the log's, or another replica leads in it.
        StorageError: the epoch cannot be stored; the role does not change.
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
    """Accept only batches of the leader of ``epoch`` from now on, and no other appends.

    The high watermark keeps its value until the leader sends a new one.

    Raises:
        StaleLeaderEpochError: the epoch is below the log's.
        ConfigError: the epoch is above 2147483647.
    """
    with state.lock:
        state.check_writable()
        _check_epoch(state, epoch)
        if state.is_leader:
            state.given_watermark = state.view.offsets.high_watermark
        state.leader_epoch, state.is_leader = epoch, False
        state.publish()


def store_epochs(state: LogState, epochs: EpochCache) -> None:
    """Replace the log's epochs, durably. The caller holds the log's lock.

    Raises:
        OutOfResourcesError: no space or no descriptor; nothing is changed.
        StorageError: the disk failed; the log is out of service.
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
