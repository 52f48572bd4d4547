"""Updates of the high watermark by a caller outside the engine.

Source: apache/kafka UnifiedLog.maybeIncrementHighWatermark, updateHighWatermark.
"""

from __future__ import annotations

from stratalog.errors import ConfigError
from stratalog.log.state.log_state import LogState
from stratalog.model.offsets import Watermark


def set_high_watermark(state: LogState, offset: int) -> int:
    """Move the high watermark between log start and log end, and return it. A leader's high watermark never falls.

    Raises:
        ConfigError: the log leads, and the engine moves it itself.
    """
    with state.lock:
        if state.is_leader and state.watermark is not Watermark.EXTERNAL:
            raise ConfigError(f"the engine moves the high watermark itself: watermark={state.watermark}")
        offsets = state.view.offsets
        floor = offsets.high_watermark if state.is_leader else offsets.log_start
        state.given_watermark = min(max(offset, floor), offsets.log_end)
        state.publish()
        return state.view.offsets.high_watermark
