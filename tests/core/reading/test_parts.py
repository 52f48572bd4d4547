"""Components of one engine, opened by whichever of its threads needs them first."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence

from stratalog.config.files import read_settings
from stratalog.reading.open import open_host
from stratalog.spi import Action, CleanupPolicy, LogSummary, OpenContext, Provider, TopicConfig, hookimpl


class Nothing(CleanupPolicy):
    """Wants nothing."""

    def plan(self, log: LogSummary, config: TopicConfig, now_ms: int) -> Sequence[Action]:
        del log, config, now_ms
        return ()


class Slow:
    """Offers a policy; another thread asks for it while it is being opened."""

    def __init__(self) -> None:
        self.opened = 0
        self.asks = threading.Thread(target=self.ask)
        self.began = threading.Event()
        self.found = list[CleanupPolicy]()
        self.host = open_host(read_settings({}, {}), [self], None)

    @hookimpl
    def stratalog_cleanup_policies(self) -> Iterable[Provider[CleanupPolicy]]:
        return (Provider(name="slow", open=self.open),)

    def open(self, context: OpenContext) -> CleanupPolicy:
        del context
        self.opened += 1
        if self.opened == 1:
            self.asks.start()
            self.began.wait()
            if not self.is_held():
                self.asks.join()
        return Nothing()

    def is_held(self) -> bool:
        """Whether the other thread has to wait for this one."""
        taken = list[bool]()
        other = threading.Thread(target=lambda: taken.append(self.host._opening.acquire(blocking=False)))
        other.start()
        other.join()
        return not taken[0]

    def ask(self) -> None:
        self.began.set()
        self.found.append(self.host.policy("slow"))


def test_threads_that_need_a_component_first_open_it_once() -> None:
    """Retention and cleaning begin together, and ask for the policies of the same topics."""
    slow = Slow()
    with contextlib.closing(slow.host):
        first = slow.host.policy("slow")
        slow.asks.join()
    assert slow.found == [first]
    assert slow.opened == 1
