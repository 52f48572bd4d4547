"""Bulk writing to a tier: segments are built and uploaded by tasks, and named by one root a log.

A task gives records the offsets that they get if nobody else writes: from the tier's end on. What begins there at the
commit as well is published as it is; anything else is copied to the offsets behind it, in segments as large as the
topic's settings allow, and what was copied is deleted.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Final, Self

from stratalog.config.files import Settings
from stratalog.config.topic import TopicConfig
from stratalog.env import Env
from stratalog.epochs.cache import EpochCache
from stratalog.errors import (
    ConfigError,
    FencedEpochError,
    OffsetsOutOfOrderError,
    StorageError,
    UnknownTopicError,
)
from stratalog.log.tiered import producers_at
from stratalog.model.names import TopicId, TopicPartition
from stratalog.producers.snapshot import encode_snapshot
from stratalog.reading.open import open_host, open_tier
from stratalog.reading.parts import ComponentHost
from stratalog.segment.components import Components
from stratalog.segment.framing import walk
from stratalog.spi.cleanup import RecordFilter
from stratalog.spi.layouts import StoredSegment
from stratalog.spi.segments import SegmentStore
from stratalog.tier.bulk import Appending, EndMovedError, Replacing, check_alone, digest_of, is_unused
from stratalog.tier.fetch import RemoteSegment
from stratalog.tier.log import TierLog
from stratalog.tier.root import Root, TopicNote, WriteMark
from stratalog.tier.tier import Tier
from stratalog.writing.anew import MAGIC, StagedPart, Standing, recode_part, rewrite_part
from stratalog.writing.bulk import BulkWriter
from stratalog.writing.encode import Encoder
from stratalog.writing.tierstage import Place, TierStage, entries_of
from stratalog.writing.tiertopics import TierTopics
from stratalog.writing.values import Published, Rewritten, Span, StagedSegment

_TRIES: Final = 8  # of one commit, while others append to the log
_TIDY_EVERY: Final = 64  # versions


class TierWriter(BulkWriter):
    """As ``BulkWriter``, of a tier. Made by ``TierWriter.open``.

    Args:
        host: opens components; taken over.
        tier: taken over.
        staging: where the folder for temporary files is made; None: where the system has them.
        take_over: whether to write to logs that an engine wrote to last.
    """

    def __init__(self, host: ComponentHost, tier: Tier, *, staging: str | None, take_over: bool) -> None:
        self._host, self._tier, self._staging, self._take_over = host, tier, staging, take_over
        self._opened = ExitStack()
        self._opened.callback(host.close)
        self._opened.enter_context(tier)
        self._topics = TierTopics(host, tier)
        self._temporary: SegmentStore | None = None

    @classmethod
    def open(
        cls,
        location: str,
        settings: Settings,
        options: Mapping[str, object],
        *,
        staging: str | None = None,
        take_over: bool = False,
        env: Env,
    ) -> Self:
        """Open a tier; errors as ``WriteTarget.open``, and ConfigError if it cannot be shared by several writers."""
        host = open_host(settings, (), env)
        try:
            tier = open_tier(host, location, options, read_only=False)
        except BaseException:
            host.close()
            raise
        return cls(host, tier, staging=staging, take_over=take_over)

    # --- topics --------------------------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, int]:
        """As ``BulkWriter.topics``."""
        return {found.name: found.partitions for found in self._topics.all()}

    def partitions(self, topic: str) -> int:
        """As ``BulkWriter.partitions``."""
        return self._topics.get(topic).partitions

    def config(self, topic: str) -> TopicConfig:
        """As ``BulkWriter.config``."""
        return self._topics.get(topic).config

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, object] | None = None) -> None:
        """As ``BulkWriter.create_topic``."""
        self._topics.create(topic, partitions, config or {})

    # --- staging -------------------------------------------------------------------------------------------------

    def stage(
        self, log: TopicPartition, *, base_offset: int | None = None, compression: str | None = None
    ) -> TierStage:
        """As ``BulkWriter.stage``."""
        place = self._place(log, compression, keep_offsets=base_offset is not None)
        root = place.remote.root
        end = root.end_offset if root is not None else 0
        start = end if base_offset is None else base_offset
        return TierStage(place, self._temporaries(), start, keep_offsets=base_offset is not None)

    def _place(self, log: TopicPartition, compression: str | None = None, *, keep_offsets: bool = False) -> Place:
        remote = self._remote(log)
        root, config = remote.root, self._topics.get(log.topic).config
        parts = self._host.parts(config)
        told = (
            root if root is not None else self._topics.get(log.topic).root
        )  # what an engine has of it may not be here yet
        epoch = check_alone(told, take_over=self._take_over)
        epochs = EpochCache(root.leader_epochs if root is not None else ())
        if not keep_offsets or not epochs.entries:
            epochs = epochs.assign(epoch, root.end_offset if root is not None else 0)
        snapshot = None if keep_offsets else _snapshot(remote, parts)
        return Place(remote, Encoder.of(parts, config, compression), epoch, epochs, snapshot)

    def _remote(self, log: TopicPartition) -> TierLog:
        found = self._topics.get(log.topic)
        if not 0 <= log.partition < found.partitions:
            raise UnknownTopicError(f"topic {log.topic} has {found.partitions} partitions: there is no {log}")
        remote = self._tier.log(log, found.topic_id)
        remote.refresh()
        return remote

    def _temporaries(self) -> SegmentStore:
        if self._temporary is None:
            folder = tempfile.TemporaryDirectory(prefix="stratalog-", dir=self._staging, ignore_cleanup_errors=True)
            path = self._opened.enter_context(folder)
            self._temporary = self._opened.enter_context(self._host.segment_store(path, read_only=False))
            self._temporary.acquire()
        return self._temporary

    # --- publishing ----------------------------------------------------------------------------------------------

    def append(
        self,
        log: TopicPartition,
        staged: Sequence[StagedSegment],
        mark: WriteMark | None = None,
        *,
        keep_offsets: bool = False,
    ) -> Published:
        """As ``BulkWriter.append``."""
        entries = entries_of(staged)
        remote = self._remote(log)
        if not entries:
            end = remote.root.end_offset if remote.root is not None else 0
            return Published(log, end, end, 0, 0)
        for _ in range(_TRIES):
            root = remote.root
            if mark is not None and root is not None and root.number_of(mark.writer) >= mark.number:
                remote.discard(entries)
                return Published(log, root.end_offset, root.end_offset, 0, 0, duplicate=True)
            place = self._place(log)
            _check_epoch(staged, place)
            start = _start(root, entries, keep_offsets=keep_offsets)
            placed = self._placed(place, staged, start, keep_offsets=keep_offsets)
            copies = [entry for entry in placed if entry not in entries]
            remote.check_stored(entry for entry in placed if entry in entries)
            wanted = Appending(entries=tuple(placed), log_start=start, mark=mark, topic=self._note(root, log.topic))
            try:
                remote.append(wanted, leader_epoch=place.leader_epoch)
            except (EndMovedError, FencedEpochError) as error:
                remote.discard(copies)
                if isinstance(error, FencedEpochError):
                    raise
                remote.refresh()
                continue
            remote.discard([entry for entry in entries if entry not in placed])
            self._tidy(remote)
            return _published(log, placed, start)
        raise EndMovedError(f"{log} was appended to by others {_TRIES} times while this was published: try again")

    def _tidy(self, remote: TierLog) -> None:
        """Now and then, superseded roots go: no engine does it for a log that lives in the tier alone."""
        root = remote.root
        if root is not None and root.version % _TIDY_EVERY == 0:
            history_ms = self._host.settings.engine.tier_history_ms
            with contextlib.suppress(StorageError):  # it is done again later
                remote.collect(history_ms=history_ms, with_orphans=False)

    def _note(self, root: Root | None, topic: str) -> TopicNote | None:
        """For the first root of a partition of which an engine never moved anything here."""
        found = self._topics.get(topic)
        return TopicNote(found.partitions, found.note.config if found.note else {}) if root is None else None

    def _placed(
        self, place: Place, staged: Sequence[StagedSegment], start: int, *, keep_offsets: bool
    ) -> list[StoredSegment]:
        """The segments at the offsets that they will have: as they are, as far as these fit; the others copied."""
        placed, at = list[StoredSegment](), start
        entries = entries_of(staged)
        while len(placed) < len(entries) and entries[len(placed)].info.base_offset == at:
            placed.append(entries[len(placed)])
            at = placed[-1].info.end_offset
        left = entries[len(placed) :]
        if not left:
            return placed
        if keep_offsets:
            raise OffsetsOutOfOrderError(
                f"{place.remote.log} ends at {at}, and what keeps its offsets goes on at {left[0].info.base_offset}"
            )
        with TierStage(place, self._temporaries(), at, keep_offsets=False) as stage:
            for entry in left:
                for data in _batches(place, entry):
                    stage.add_encoded(data)
            return [*placed, *entries_of(stage.finish())]

    def span(self, log: TopicPartition, start: int = 0, end: int | None = None) -> Span | None:
        """As ``BulkWriter.span``."""
        remote = self._remote(log)
        root = remote.root
        if root is None:
            return None
        epoch = check_alone(root, take_over=self._take_over)
        limit = root.end_offset if end is None else end
        held = [
            entry
            for entry in remote.entries(start, limit, root)
            if entry.info.base_offset >= start and entry.info.end_offset <= limit
        ]
        if not held:
            return None
        borders = (*(entry.info.base_offset for entry in held), held[-1].info.end_offset)
        return Span(log, remote.topic_id, borders[0], borders[-1], borders, epoch, digest_of(held))

    def rewrite(
        self,
        span: Span,
        part: tuple[int, int],
        filters: Sequence[RecordFilter],
        *,
        now_ms: int,
        keeps_tombstones: bool = False,
    ) -> Rewritten:
        """As ``BulkWriter.rewrite``."""
        at, entries, root = self._standing(span, part)
        return rewrite_part(
            StagedPart(at, entries),
            part,
            filters,
            first_dirty_offset=root.first_dirty_offset,
            now_ms=now_ms,
            keeps_tombstones=keeps_tombstones,
        )

    def recode(
        self, span: Span, part: tuple[int, int], *, compression: str | None = None, layout: str | None = None
    ) -> Rewritten:
        """As ``BulkWriter.recode``."""
        at, entries, _ = self._standing(span, part)
        if layout is not None:
            at.config = at.config.replaced({"tier.layout": layout}, "layout")
        encoder = Encoder.of(at.parts, at.config.replaced({"record.version": MAGIC}, "recode"), compression)
        return recode_part(StagedPart(at, entries), part, encoder, recompress=compression is not None)

    def _standing(self, span: Span, part: tuple[int, int]) -> tuple[Standing, list[StoredSegment], Root]:
        """Where a part is written anew, the segments from its first one on, and the head."""
        if not {*part} <= {*span.borders}:
            raise ConfigError(f"[{part[0]}, {part[1]}) of {span.log} does not begin and end with segments of the span")
        place = self._place(span.log, keep_offsets=True)
        root = place.remote.root
        if place.remote.topic_id != span.topic_id or root is None:
            raise StorageError(f"topic {span.log.topic} was deleted since this was planned")
        entries = place.remote.entries(part[0], root.end_offset, root)
        if not entries or not {*part} <= {entries[0].info.base_offset, *(entry.info.end_offset for entry in entries)}:
            raise StorageError(f"the tier has other segments of {span.log} than when this was planned: begin again")
        encoder = place.encoder
        at = Standing(place.remote, place.leader_epoch, encoder.parts, encoder.config, self._temporaries())
        return at, entries, root

    def replace(
        self,
        span: Span,
        staged: Sequence[StagedSegment],
        *,
        reason: str,
        first_dirty_offset: int | None = None,
        keeps_others: bool = False,
    ) -> Published:
        """As ``BulkWriter.replace``."""
        entries = tuple(sorted(entries_of(staged), key=lambda entry: entry.info.base_offset))
        _check_covers(span, entries, keeps_others=keeps_others)
        remote = self._tier.log(span.log, span.topic_id)
        remote.refresh()
        epoch = check_alone(remote.root, take_over=self._take_over)
        if epoch != span.leader_epoch:
            raise FencedEpochError(f"{span.log} was planned in leader epoch {span.leader_epoch}, it is {epoch} by now")
        remote.check_stored(entries)
        remote.replace(
            Replacing(
                entries=entries,
                span=(span.start, span.end),
                digest=span.digest,
                keeps_others=keeps_others,
                first_dirty_offset=first_dirty_offset,
                reason=reason,
            ),
            leader_epoch=epoch,
        )
        return _published(span.log, entries, entries[0].info.base_offset)

    def discard(self, staged: Iterable[StagedSegment]) -> None:
        """As ``BulkWriter.discard``."""
        by_log: dict[tuple[TopicPartition, TopicId], list[StagedSegment]] = {}
        for found in staged:
            by_log.setdefault((found.log, found.topic_id), []).append(found)
        for name, group in by_log.items():
            remote = self._tier.log(*name)
            remote.refresh()
            with contextlib.suppress(
                FencedEpochError
            ):  # then what was written stays, and no root of ours comes any more
                remote.settle(leader_epoch=check_alone(remote.root, take_over=False))
                remote.discard(entries_of(group))

    def close(self) -> None:
        """As ``BulkWriter.close``."""
        self._opened.close()


def _check_epoch(staged: Sequence[StagedSegment], place: Place) -> None:
    for found in staged:
        if found.leader_epoch != place.leader_epoch:
            raise FencedEpochError(
                f"{found.log} was written in leader epoch {found.leader_epoch}, it is {place.leader_epoch} by now: what was "
                "written is not published; begin again"
            )


def _check_covers(span: Span, entries: Sequence[StoredSegment], *, keeps_others: bool) -> None:
    """Raise OffsetsOutOfOrderError unless the entries cover a span, or whole segments of it."""
    bounds = [(entry.info.base_offset, entry.info.end_offset) for entry in entries]
    if keeps_others:
        wrong = (
            not bounds
            or not {*span.borders}.issuperset(chain(*bounds))
            or list(chain(*bounds)) != sorted(chain(*bounds))
        )
    else:
        wrong = [span.start, *(end for _, end in bounds)] != [*(start for start, _ in bounds), span.end]
    if wrong:
        what = "whole segments of that" if keeps_others else "just that, without a gap"
        raise OffsetsOutOfOrderError(f"what replaces [{span.start}, {span.end}) of {span.log} does not cover {what}")


def _start(root: Root | None, entries: Sequence[StoredSegment], *, keep_offsets: bool) -> int:
    """Where what is appended begins."""
    if root is None or is_unused(root):
        return entries[0].info.base_offset if keep_offsets else 0
    return root.end_offset


def _snapshot(remote: TierLog, parts: Components) -> bytes:
    """What producers had done where the tier ends; who appends here adds none."""
    view = remote.view()
    return encode_snapshot(producers_at(view, view.end_offset, parts).entries())


def _batches(place: Place, entry: StoredSegment) -> Iterator[bytearray]:
    """All batches of a stored segment, their CRC compared."""
    segment = RemoteSegment(entry, place.remote.fetcher)
    for chunk in walk(segment, 0, place.encoder.parts):
        first, last = chunk.tables[0], chunk.tables[-1]
        yield bytearray(chunk.data[first.position[0] : last.position[-1] + last.size_bytes[-1]])


def _published(log: TopicPartition, entries: Sequence[StoredSegment], start: int) -> Published:
    end = entries[-1].info.end_offset
    return Published(log, start, end, len(entries), sum(entry.info.size_bytes for entry in entries))
