"""What appends do when local disk holds as much of a tiered log as it may, because the tier does not take it."""

from __future__ import annotations

from typing import Final

from stratalog.errors import LocalLimitError
from stratalog.log.state.log_state import LogState
from stratalog.model.events import Backpressure

_LOOK_MS: Final = 200  # how often a waiting append looks again, whatever it was told


def local_bytes(state: LogState) -> int:
    """Of the ``.log`` files on local disk; under the log's lock."""
    return sum(segment.size_bytes for segment in state.segments)


def is_above_limit(state: LogState, more_bytes: int = 0) -> bool:
    """Whether the local part of a tiered log, with ``more_bytes``, is above local.hard.limit.bytes; under the lock."""
    limit = state.config.local_hard_limit_bytes
    return limit >= 0 and state.remote is not None and local_bytes(state) + more_bytes > limit


def wait_for_room(state: LogState, size_bytes: int) -> bool:
    """Do what ``tier.outage.policy`` says before an append of this size; under the log's lock, which a wait lets go.

    Listeners are told once, when a log gets above its limit, and again after it was below.

    Returns:
        Whether it waited, so that others may have appended meanwhile.

    Raises:
        LocalLimitError: appends are refused, or there was no room in time.
    """
    if not is_above_limit(state, size_bytes):
        state.is_pressed = False
        return False
    limit, policy = state.config.local_hard_limit_bytes, state.config.tier_outage_policy
    held_bytes = local_bytes(state)
    reason = f"{state.log} has {held_bytes} bytes on local disk, {size_bytes} more come, local.hard.limit.bytes={limit}"
    if not state.is_pressed:
        state.is_pressed = True
        state.notify(Backpressure(log=state.log, reason=f"{reason} tier.outage.policy={policy}"))
    if policy == "grow":
        return False
    if policy == "reject" or not _waited(state, size_bytes):
        raise LocalLimitError(f"{reason}: the tier has not taken enough of it")
    state.is_pressed = False
    return True


def _waited(state: LogState, size_bytes: int) -> bool:
    """Whether there was room before the time was over."""
    clock = state.parts.env.clock
    end_ns = clock.monotonic_ns() + state.config.tier_outage_block_ms * 1_000_000
    while clock.monotonic_ns() < end_ns:
        state.room.wait(_LOOK_MS / 1000)
        state.check_writable()
        state.check_leads()
        if not is_above_limit(state, size_bytes):
            return True
    return False
