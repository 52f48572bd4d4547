"""The note about the tier in a log's folder. tests/core/engine/open/test_offline_tier.py tests its use by an engine."""

from __future__ import annotations

import itertools
import threading
from typing import cast

import pytest

from inside import log_state
from log_bed import LogBed
from stratalog.log.folder.tier_note import read_note
from stratalog.log.read.tier_view import RemoteLog, RemoteView
from stratalog.model.batches import Buffer


class GrowingTier:
    """A tier whose version is higher each time it is read."""

    is_assumed = False

    def __init__(self) -> None:
        self._versions = itertools.count(1)

    def view(self) -> RemoteView:
        return RemoteView(next(self._versions))


def test_an_older_reading_of_the_tier_does_not_replace_a_later_note(
    bed: LogBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention, cleaning and offload write notes on different threads. An older note must not replace a newer one."""
    with bed:
        state = log_state(bed.open())
        tier, remote = state.tier, cast(RemoteLog, GrowingTier())
        other_thread = threading.Thread(target=tier.save_note, args=(remote,))
        replace = state.files.replace_small

        def replace_late(name: str, data: Buffer) -> None:
            """Run the other thread between the check and the write, unless the lock prevents it."""
            if threading.current_thread() is not other_thread:
                other_thread.start()
                if not tier.noting.locked():
                    other_thread.join()
            replace(name, data)

        monkeypatch.setattr(state.files, "replace_small", replace_late)
        tier.save_note(remote)
        other_thread.join()
        note = read_note(state.files)
        assert note is not None
        assert note.version == tier.noted_version == 2
        monkeypatch.undo()
