"""Backpressure on appends to a tiered log: local disk has reached its limit because the tier does not keep up."""

from __future__ import annotations

from typing import Final

from stratalog.errors import LocalLimitError
from stratalog.log.state.log_state import LogState
from stratalog.model.events import Backpressure

_LOOK_MS: Final = 200  # poll interval of a waiting append, in addition to notifications


def local_bytes(state: LogState) -> int:
    """Return the total size of the ``.log`` files on local disk. The caller holds the log's lock."""
    return sum(segment.size_bytes for segment in state.writes.segments)


def is_above_limit(state: LogState, more_bytes: int = 0) -> bool:
    """Return True if a tiered log's local bytes plus ``more_bytes`` exceed ``local.hard.limit.bytes``.

    The result is False without a tier or without a limit. The caller holds the log's lock.
    """
    limit = state.settings.config.local_hard_limit_bytes
    return limit >= 0 and state.settings.remote is not None and local_bytes(state) + more_bytes > limit


def wait_for_room(state: LogState, size_bytes: int) -> bool:
    """Apply ``tier.outage.policy`` if an append of ``size_bytes`` would exceed ``local.hard.limit.bytes``.

    The caller holds the log's lock; a wait releases the lock. Listeners are notified once each time a log exceeds its
    limit.

    Returns:
        True if the call waited: other threads may have appended in the meantime. False if the limit is not exceeded, or
        if the policy is ``grow``.

    Raises:
        LocalLimitError: the policy is ``reject``, or it is ``block`` and no room became free within
            ``tier.outage.block.ms``.
        StorageError: during the wait, the log was closed, went out of service, or became a follower.
    """
    if not is_above_limit(state, size_bytes):
        state.tier.relieve()
        return False
    limit, policy = state.settings.config.local_hard_limit_bytes, state.settings.config.tier_outage_policy
    used_bytes = local_bytes(state)
    reason = (
        f"{state.name} has {used_bytes} bytes on local disk, and an append of {size_bytes} exceeds "
        f"local.hard.limit.bytes={limit}"
    )
    if state.tier.press():
        state.notify(Backpressure(log=state.name, reason=f"{reason} tier.outage.policy={policy}"))
    if policy == "grow":
        return False
    if policy == "reject" or not _wait(state, size_bytes):
        raise LocalLimitError(f"{reason}, and the offload has not freed enough space")
    state.tier.relieve()
    return True


def _wait(state: LogState, size_bytes: int) -> bool:
    """Wait for room; return True if there was room before ``tier.outage.block.ms`` was over."""
    clock = state.settings.components.env.clock
    end_ns = clock.monotonic_ns() + state.settings.config.tier_outage_block_ms * 1_000_000
    while clock.monotonic_ns() < end_ns:
        state.tier.room.wait(_LOOK_MS / 1000)
        state.health.check_writable()
        state.role.check_leads()
        if not is_above_limit(state, size_bytes):
            return True
    return False
