"""Changes of a log's role and of its high watermark.

Source: apache/kafka Partition.makeLeader, makeFollower; UnifiedLog.assignEpochStartOffset,
maybeIncrementHighWatermark, updateHighWatermark.
"""

from __future__ import annotations

from stratalog.errors import ConfigError, FencedEpochError, StaleLeaderEpochError
from stratalog.log.load.tier_at_opening import check_not_taken
from stratalog.log.state.log_state import LogState
from stratalog.model.offsets import Watermark


def lead(state: LogState, epoch: int) -> None:
    """Implement ``Log.lead``, which documents the argument and errors.

    The epoch is stored even if nothing is ever appended in it. A follower with records of an earlier epoch above the
    start of ``epoch`` uses the stored epoch to truncate these records.
    """
    role = state.role
    with state.lock:
        state.health.check_writable()
        role.check_epoch(epoch)
        if not role.is_leader and epoch == role.leader_epoch:
            raise StaleLeaderEpochError(f"log {state.name} follows another leader in epoch {epoch}")
        with state.health.guard("a change of the leader epoch"):  # the log must lead in the epoch that is stored
            state.writes.set_epochs(state.writes.epochs.assign(epoch, state.log_end))
            role.lead(epoch)
        state.publish()


def follow(state: LogState, epoch: int) -> None:
    """Implement ``Log.follow``, which documents the argument and errors.

    The high watermark keeps its value until the leader sends a new one.
    """
    with state.lock:
        state.health.check_writable()
        state.role.check_epoch(epoch)
        state.role.follow(epoch, state.view.offsets.high_watermark)
        state.publish()


def set_high_watermark(state: LogState, offset: int) -> int:
    """Implement ``Log.set_high_watermark``, which documents the argument, the result and errors."""
    role = state.role
    with state.lock:
        if role.is_leader and role.watermark is not Watermark.EXTERNAL:
            raise ConfigError(f"the engine moves the high watermark itself: watermark={role.watermark}")
        offsets = state.view.offsets
        floor = offsets.high_watermark if role.is_leader else offsets.log_start
        role.set_watermark(min(max(offset, floor), offsets.log_end))
        state.publish()
        return state.view.offsets.high_watermark


def rejoin_tier(state: LogState, leader_epoch: int) -> None:
    """Use the tier again after an outage of its store. Readers see the tier even if this function raises.

    The caller has read the tier's newest manifest root. If ``watermark`` is ``external``, a log with fewer records than
    the tier accepts no more appends of a leader, and no error is raised. A closed log does not change.

    Args:
        state: state of a log that was opened without its tier.
        leader_epoch: leader epoch of the newest manifest root; -1 if there is none.

    Raises:
        FencedEpochError: another engine took the log over in the meantime.
    """
    role = state.role
    with state.lock:
        remote, epochs = state.settings.remote, state.writes.epochs.entries
        if state.health.closed or remote is None:
            return
        try:
            tier_view = remote.view()
            if role.is_replicated:
                if tier_view.within(epochs).end_offset > state.log_end:
                    role.step_down()
                return
            check_not_taken(state.name, tier_view, epochs, state.log_end)
            if leader_epoch > role.leader_epoch:
                raise FencedEpochError(
                    f"{state.name} was taken over in leader epoch {leader_epoch} while its tier was unavailable; this "
                    f"engine has {role.leader_epoch}"
                )
        finally:
            state.publish()
