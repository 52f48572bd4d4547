"""Random steps of producers and transaction coordinators on a log, as a script for two storage engines.

The steps include valid batches, retries, sequence gaps, stale epochs, and markers of replaced coordinators. Both
engines must accept and refuse the same steps.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from stratalog import Record
from stratalog.segment.components import Components
from stratalog.spi.formats import BatchHeader

REMEMBERED: Final = 5
SEQUENCES: Final = 1 << 31
_COMMITTED: Final = 0.6  # share of markers that commit
_TAKEN_OVER: Final = 0.2  # share of markers before which another coordinator begins
UNCOMPRESSED: Final = "none"
CODECS: Final = (UNCOMPRESSED, "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Append:
    """Step that appends one batch of a producer.

    ``accepted`` is True if the log must accept the batch, False if the log must refuse it, and None if both are
    allowed: after a restart, the log may no longer remember the earlier batch.
    """

    what: str
    topic: str
    data: bytes
    accepted: bool | None


@dataclass(frozen=True, slots=True)
class End:
    """Step that appends a transaction marker of a coordinator."""

    what: str
    topic: str
    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    accepted: bool = True


@dataclass(frozen=True, slots=True)
class Cut:
    """Step that deletes the records below one offset. ``share`` is its place between log start (0) and log end (1)."""

    what: str
    topic: str
    share: float
    accepted: bool = True


Step: TypeAlias = Append | End | Cut


@dataclass(slots=True)
class _Author:
    """Expected state of one producer."""

    producer_id: int
    transactional: bool
    sequence: int
    epoch: int = 0
    is_open: bool = False
    ended_by: int = -1  # coordinator epoch of the last marker
    sent: deque[bytes] = field(default_factory=lambda: deque(maxlen=REMEMBERED))


class ScriptWriter:
    """Generates steps for some topics. Each call of ``steps`` continues after the previous call.

    Args:
        seed: seed of all random decisions.
        topics: names of the topics. Each topic has its own producers.
        components: record formats and codecs.
        start_ms: timestamp of the first record; each later record is some milliseconds later.
    """

    def __init__(self, seed: int, topics: Sequence[str], components: Components, start_ms: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - no secret
        self._components, self._start_ms, self._now_ms = components, start_ms, start_ms
        self._coordinator_epoch = 3
        self._authors = {topic: self._new_authors() for topic in topics}

    def _new_authors(self) -> list[_Author]:
        first = self.chance.randrange(1 << 40)
        return [
            _Author(first + i, i % 2 == 1, self.chance.choice((0, 0, SEQUENCES - self.chance.randrange(1, 30))))
            for i in range(4)
        ]

    def steps(self, rounds: int) -> list[Step]:
        """Return each kind of step this many times for each topic, in random order, and one ``Cut`` for each topic."""
        kinds: list[Callable[[str], Iterator[Step]]] = [
            *([self._next] * 5),
            self._again,
            self._gap,
            self._stale,
            self._bump,
            self._bad_bump,
            self._nobody,
            self._outside,
            self._end,
            self._end,
            self._fence,
            self._late_end,
            self._old_coordinator,
        ]
        order = [(topic, kind) for topic in self._authors for kind in [*kinds * rounds, self._cut]]
        self.chance.shuffle(order)
        return [step for topic, kind in order for step in kind(topic)]

    def forget(self) -> None:
        """Expect that the log was opened again: the log then remembers at least the last batch of each producer."""
        for authors in self._authors.values():
            for author in authors:
                while len(author.sent) > 1:
                    author.sent.popleft()

    # --- steps -------------------------------------------------------------------------------------------------------

    def _next(self, topic: str) -> Iterator[Step]:
        for author in self._one(topic):
            yield self._append("next", topic, author)

    def _again(self, topic: str) -> Iterator[Step]:
        for author in self._one(topic, lambda candidate: bool(candidate.sent)):
            yield Append("again", topic, self.chance.choice(author.sent), accepted=True)

    def _gap(self, topic: str) -> Iterator[Step]:
        for author in self._one(topic, lambda candidate: bool(candidate.sent)):
            ahead = (author.sequence + self.chance.randrange(1, 50)) % SEQUENCES
            yield self._refused("gap", topic, author, ahead, author.epoch)

    def _stale(self, topic: str) -> Iterator[Step]:
        for author in self._one(topic, lambda candidate: bool(candidate.sent) and candidate.epoch > 0):
            yield self._refused("stale", topic, author, author.sequence, author.epoch - 1)

    def _bump(self, topic: str) -> Iterator[Step]:
        for author in self._one(topic, lambda candidate: bool(candidate.sent) and not candidate.is_open):
            author.epoch, author.sequence = author.epoch + 1, 0
            author.sent.clear()
            yield self._append("bump", topic, author)

    def _bad_bump(self, topic: str) -> Iterator[Step]:
        for author in self._one(topic, lambda candidate: bool(candidate.sent)):
            yield self._refused("bad bump", topic, author, self.chance.randrange(1, 9), author.epoch + 1)

    def _nobody(self, topic: str) -> Iterator[Step]:
        yield Append("nobody", topic, self._encoded(BatchHeader()), accepted=True)

    def _outside(self, topic: str) -> Iterator[Step]:
        """Yield a non-transactional batch of a producer whose transaction is open."""
        for author in self._one(topic, lambda candidate: candidate.is_open):
            yield self._refused("outside", topic, author, author.sequence, author.epoch, transactional=False)

    def _end(self, topic: str) -> Iterator[Step]:
        for author in self._one(topic, lambda candidate: candidate.transactional):
            author.is_open = False
            if not author.sent:
                author.sequence = 0  # the marker makes the producer known
            yield self._marker("end", topic, author, author.epoch)

    def _fence(self, topic: str) -> Iterator[Step]:
        """Yield a marker with the next producer epoch.

        A coordinator writes such a marker after a transaction timeout, or when a new producer with the same id starts.
        """
        for author in self._one(topic, lambda candidate: candidate.transactional):
            author.epoch, author.sequence, author.is_open = author.epoch + 1, 0, False
            author.sent.clear()
            yield self._marker("fence", topic, author, author.epoch)

    def _late_end(self, topic: str) -> Iterator[Step]:
        for author in self._one(
            topic, lambda candidate: candidate.transactional and candidate.epoch > 0 and bool(candidate.sent)
        ):
            yield self._marker("late end", topic, author, author.epoch - 1, accepted=False)

    def _cut(self, topic: str) -> Iterator[Step]:
        yield Cut("cut", topic, self.chance.random() / 2)

    def _old_coordinator(self, topic: str) -> Iterator[Step]:
        """Yield a marker of a coordinator that has been replaced."""
        for author in self._one(topic, lambda candidate: candidate.ended_by > 0):
            yield End("old coordinator", topic, author.producer_id, author.epoch, True, author.ended_by - 1, False)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _one(self, topic: str, fits: Callable[[_Author], bool] = lambda _: True) -> list[_Author]:
        """Return a list with one of the matching producers, or an empty list."""
        matching_authors = [author for author in self._authors[topic] if fits(author)]
        return [self.chance.choice(matching_authors)] if matching_authors else []

    def _append(self, title: str, topic: str, author: _Author) -> Append:
        records = self._records()
        header = _header(author, author.sequence, author.epoch, transactional=author.transactional)
        data = self._encoded(header, records)
        author.sequence = (author.sequence + len(records)) % SEQUENCES
        author.is_open = author.transactional
        author.sent.append(data)
        return Append(title, topic, data, accepted=True)

    def _refused(
        self, title: str, topic: str, author: _Author, sequence: int, epoch: int, *, transactional: bool | None = None
    ) -> Append:
        """Return an append that the log must refuse.

        All its records have the oldest timestamp. A broker rolls the segment for newer timestamps even if it then
        refuses the batch.
        """
        is_in = author.transactional if transactional is None else transactional
        header = _header(author, sequence, epoch, transactional=is_in)
        old = [record._replace(timestamp_ms=self._start_ms) for record in self._records()]
        return Append(title, topic, self._encoded(header, old), accepted=False)

    def _marker(self, title: str, topic: str, author: _Author, epoch: int, *, accepted: bool = True) -> End:
        chance = self.chance
        self._coordinator_epoch += chance.random() < _TAKEN_OVER
        if accepted:
            author.ended_by = self._coordinator_epoch
        commit = chance.random() < _COMMITTED
        return End(title, topic, author.producer_id, epoch, commit, self._coordinator_epoch, accepted)

    def _encoded(self, header: BatchHeader, records: Sequence[Record] | None = None) -> bytes:
        codec = self.chance.choice(CODECS)
        compressor = None if codec == UNCOMPRESSED else self._components.codecs.by_name(codec)
        form = self._components.formats.of(2, "", 0)
        return bytes(form.encode(records or self._records(), header, compressor, None))

    def _records(self) -> list[Record]:
        return [self._record() for _ in range(self.chance.choice((1, 1, 2, 7, 30)))]

    def _record(self) -> Record:
        chance = self.chance
        self._now_ms += chance.randrange(1000)
        texts = [None, b"", b"%d" % chance.randrange(100), chance.randbytes(chance.randrange(200)), b"word " * 40]
        return Record(
            timestamp_ms=self._now_ms - chance.randrange(500),
            key=chance.choice(texts),
            value=chance.choice(texts),
            headers=tuple((f"h{i}", chance.choice(texts)) for i in range(chance.choice((0, 0, 0, 3)))),
        )


def _header(author: _Author, sequence: int, epoch: int, *, transactional: bool) -> BatchHeader:
    return BatchHeader(
        producer_id=author.producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=transactional
    )
