"""Durability: which bytes have reached the disk for good, and making more of them do.

Source: apache/kafka UnifiedLog.flush.
"""

from __future__ import annotations

from stratalog.errors import ClosedError, StorageError
from stratalog.log.state import LogState


def flush(state: LogState) -> int:
    """Make everything written durable; the new recovery point.

    Order: the segments' logs and indexes, then the folder that names them, then the recovery point. A sync that fails
    takes the log out of service and is not tried again.

    Raises:
        ClosedError: the log is closed.
        StorageError: what took the log out of service.
    """
    with state.lock:
        if state.closed:
            raise ClosedError(f"log {state.log} is closed")
        if state.failure is not None:
            raise state.failure.with_traceback(None)
        end = state.log_end
        if state.recovery_point >= end and not state.folder_dirty:
            return state.recovery_point
        try:
            for segment in state.segments:
                if segment.end_offset > state.recovery_point or segment is state.segments[-1]:
                    segment.log.sync()
                    for index in segment.indexes().values():
                        index.sync()
            if state.folder_dirty:
                state.files.sync()
                state.folder_dirty = False
        except StorageError as error:
            state.failure = error
            raise
        state.recovery_point = end
        state.publish()
        return end
