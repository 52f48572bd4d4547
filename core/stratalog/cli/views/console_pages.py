"""Pages of the console and their addresses. A page reads the current state of the logs, and at most a part of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import Any, Final, TypeVar

import click

from stratalog import __version__
from stratalog.cli.contents.decoders import STYLES
from stratalog.cli.contents.values import Style
from stratalog.cli.parameters import Start, start_of
from stratalog.cli.views.browse import AvroText, Query, read_page, show_record
from stratalog.cli.views.console_server import Application
from stratalog.cli.views.overview import Detail, GroupLag, collect_log, tier_log
from stratalog.cli.views.page import bounds_of, render
from stratalog.client.committed_offsets import CommittedOffsets, lag
from stratalog.env.clock import Clock
from stratalog.errors import ConfigError, OffsetOutOfRangeError, PluginImportError, StorageError, UnknownTopicError
from stratalog.model.names import TopicPartition, unknown_topic
from stratalog.model.offsets import Isolation
from stratalog.reading.reader import Reader
from stratalog.tier.tier_log import TierLog
from stratalog.tier.upkeep.tier_diff import SegmentDifference, differences

T = TypeVar("T")

_TOPICS: Final = 100  # topics on one page
_PARTITIONS: Final = 10
_GROUP_ROWS: Final = 100
_COMMITS: Final = 50
_DIFFERENCES: Final = 500
_MOST_NUMBER: Final = 1 << 31
_PARAMETERS: Final = ("page", "from", "to", "key", "hex", "decoder", "isolation")
_STATUS: Final = {400: "Wrong request", 404: "Not found", 500: "Cannot be read"}
_REFRESH_PAUSE: Final = 10  # pause before the next refresh, as a multiple of the last refresh's duration


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one page of a long list. ``number`` is the page number, from 0."""

    rows: Sequence[Any]
    number: int
    total: int
    size: int

    @property
    def has_next(self) -> bool:
        """True if a further page of the list follows."""
        return (self.number + 1) * self.size < self.total


def part_of(rows: Sequence[T], query: Mapping[str, str], size: int) -> Part:
    """Return page ``query["page"]`` (from 0) of a list, with at most ``size`` rows; the first page if it is ""."""
    text = query["page"] or "0"
    if not text.isdecimal() or int(text) >= _MOST_NUMBER:
        raise ConfigError(f"{text!r} is not the number of a page")
    number = int(text)
    return Part(rows[number * size : (number + 1) * size], number, len(rows), size)


class ConsolePages:
    """Pages about the logs of a reader. Each method returns an HTML document. Thread-safe: requests run one at a time.

    The methods raise UnknownTopicError if the topic or partition does not exist, ConfigError for other wrong arguments,
    BadParameter for a wrong position, and StorageError if the logs cannot be read. The argument ``query`` has the values
    that the user entered, by the names of the fields; "" is a field without a value. ``query["page"]`` is the page number
    of a long list, from 0.

    Args:
        reader: the logs. A request first refreshes the reader, unless the last refresh was recent. After the request,
            the logs that it opened are closed.
        clock: clock for ages and next actions.
        avro: for each topic with Avro values, a function that converts a value to JSON.
    """

    def __init__(self, reader: Reader, clock: Clock, avro: Mapping[str, AvroText]) -> None:
        self._reader, self._clock, self._avro = reader, clock, avro
        self._lock, self._closed = threading.Lock(), False
        self._groups, self._refresh_ns = CommittedOffsets(reader), 0

    def close(self) -> None:
        """Wait for the request in progress. Later requests raise ConfigError."""
        with self._lock:
            self._closed = True

    @contextmanager
    def _lock_reader(self) -> Iterator[Reader]:
        with self._lock:
            if self._closed:
                raise ConfigError("the console is stopping")
            began_ns = self._clock.monotonic_ns()
            if began_ns >= self._refresh_ns:
                self._reader.refresh()
                ended_ns = self._clock.monotonic_ns()
                self._refresh_ns = ended_ns + _REFRESH_PAUSE * (ended_ns - began_ns)
            try:
                yield self._reader
            finally:
                for name in self._reader.partitions():
                    self._reader.release(name)

    def _render(self, template: str, title: str, **values: object) -> str:
        place = {"location": self._reader.location, "now_ms": self._clock.now_ms(), "version": __version__}
        return render(template, title=f"{title} - stratalog console", **place, **values)

    def topics(self, query: Mapping[str, str]) -> str:
        """Return a page with a list of topics."""
        with self._lock_reader() as reader:
            infos = reader.topics()
            names = sorted(infos, key=lambda topic: (topic.startswith("__"), topic))
            part = part_of([infos[name] for name in names], query, _TOPICS)
            tier_uri = "" if reader.tier is None else reader.tier.uri
        is_tier = reader.location == tier_uri  # the settings of each log are in its manifest
        return self._render("console_topics.html", "topics", part=part, tier_uri=tier_uri, is_tier=is_tier)

    def topic(self, query: Mapping[str, str], topic: str) -> str:
        """Return a page with a list of the partitions of a topic."""
        with self._lock_reader() as reader:
            info = reader.topics().get(topic)
            if info is None:
                raise unknown_topic(topic, reader.topics(), reader.location)
            part = part_of([TopicPartition(topic, partition) for partition in info.partitions], query, _PARTITIONS)
            logs = [collect_log(reader, name, self._clock.now_ms(), Detail()) for name in part.rows]
        bounds = bounds_of(logs)
        return self._render("console_topic.html", topic, topic=info, part=part, logs=logs, bounds=bounds)

    def partition(self, _query: Mapping[str, str], name: TopicPartition) -> str:
        """Return a page about a log: its segments on local disk and in the tier, leader epochs and transactions."""
        with self._lock_reader() as reader:
            reader.log(*name)
            log = collect_log(reader, name, self._clock.now_ms(), Detail())
        form = self._form(name, {}, self._style(name.topic, ""))
        return self._render("console_partition.html", str(name), log=log, bounds=bounds_of([log]), **form)

    def records(self, query: Mapping[str, str], name: TopicPartition) -> str:
        """Return a page of records. Links and the form on the page contain the query."""
        selection, style = _selection(query), self._style(name.topic, query["decoder"])
        with self._lock_reader() as reader:
            page = read_page(reader.log(*name), selection)
        rows = [show_record(name.topic, record, style, self._avro.get(name.topic)) for record in page.records]
        form = self._form(name, query, style)
        return self._render("console_records.html", f"records of {name}", page=page, rows=rows, **form)

    def record(self, query: Mapping[str, str], name: TopicPartition, offset: int) -> str:
        """Return a page with one record. Its key and value are cut only if they are very long."""
        style = self._style(name.topic, query["decoder"])
        with self._lock_reader() as reader:
            log = reader.log(*name)
            record = next(log.records(offset, offset + 1), None)
        if record is None:
            raise ConfigError(
                f"{name} has no record at offset {offset}: compaction removed it, or it is a control record"
            )
        row = show_record(name.topic, record, style, self._avro.get(name.topic), full=True)
        return self._render(
            "console_record.html",
            f"record {offset} of {name}",
            name=name,
            row=row,
            shapes=self._styles(name.topic),
            chosen=style,
        )

    def groups(self, query: Mapping[str, str]) -> str:
        """Return a page with the committed offsets and the lag of consumer groups."""
        with self._lock_reader() as reader:
            rows = [
                (group, name, committed.offset)
                for group in self._groups.groups()
                for name, committed in sorted(self._groups.committed(group).items())
            ]
            part = part_of(rows, query, _GROUP_ROWS)
            partitions = frozenset(reader.partitions())
            lags = [
                GroupLag(group, name, offset, lag(reader.log(*name).offsets(), offset) if name in partitions else None)
                for group, name, offset in part.rows
            ]
        return self._render("console_groups.html", "groups", part=part, groups=lags)

    def history(self, _query: Mapping[str, str], name: TopicPartition) -> str:
        """Return a page with the newest commits of a log in the tier."""
        with self._lock_reader() as reader:
            roots = list(islice(self._tier_log(reader, name).history(), _COMMITS))
        return self._render("console_history.html", f"history of {name}", name=name, roots=roots, limit=_COMMITS)

    def changes(self, query: Mapping[str, str], name: TopicPartition) -> str:
        """Return a page with the differences between the segments of two manifest versions of a log."""
        older, newer = _version(query["from"]), _version(query["to"])
        with self._lock_reader() as reader:
            log = self._tier_log(reader, name)
            rows: list[SegmentDifference] = list(
                islice(differences(log.view_as_of(older).segments, log.view_as_of(newer).segments), _DIFFERENCES + 1)
            )
        return self._render(
            "console_changes.html",
            f"changes of {name}",
            name=name,
            older=older,
            newer=newer,
            rows=rows[:_DIFFERENCES],
            is_cut=len(rows) > _DIFFERENCES,
        )

    def failure(self, status: str, text: str) -> str:
        """Return a page about an error. ``status`` is the title of the page."""
        return self._render("console_error.html", status, status=status, text=text)

    def _form(self, name: TopicPartition, entered: Mapping[str, str], style: Style) -> dict[str, object]:
        """Return the contents of the form for records: the values that the user entered, and the selected style."""
        fields = {field: entered.get(field, "") for field in ("from", "key", "hex", "isolation")}
        return {"name": name, "given": fields, "shapes": self._styles(name.topic), "chosen": style}

    def _styles(self, topic: str) -> list[str]:
        return [*STYLES, Style.AVRO.value] if topic in self._avro else [*STYLES]

    def _style(self, topic: str, decoder: str) -> Style:
        if not decoder:
            return Style.AVRO if topic in self._avro else Style.TEXT
        if decoder not in self._styles(topic):
            raise ConfigError(f"{decoder!r} is not a decoder: use one of {', '.join(self._styles(topic))}")
        return Style(decoder)

    @staticmethod
    def _tier_log(reader: Reader, name: TopicPartition) -> TierLog:
        log = tier_log(reader, reader.log(*name))
        if log is None:
            raise ConfigError(f"{name} has no tier here: start the console with --tier URI")
        return log


def web_application(pages: ConsolePages) -> Application:
    """Return the console as a WSGI application; raise PluginImportError if bottle is not installed."""
    try:
        bottle = import_module("bottle")
    except ImportError as error:
        raise PluginImportError("the console needs bottle", "console", "stratalog[console]") from error
    web, style = bottle.Bottle(), render("style.css")

    def page(path: str, make: Callable[..., str]) -> None:
        def answer(**arguments: Any) -> Any:
            query = {name: bottle.request.query.getunicode(name, "").strip() for name in _PARAMETERS}
            if "partition" in arguments:
                arguments["name"] = TopicPartition(arguments.pop("topic"), arguments.pop("partition"))
            try:
                return make(query, **arguments)
            except (UnknownTopicError, OffsetOutOfRangeError) as error:
                return _failure(404, error)
            except (ConfigError, click.BadParameter) as error:
                return _failure(400, error)
            except (StorageError, OSError) as error:
                return _failure(500, error)

        web.route(path, "GET", answer)

    def _failure(status: int, error: Exception) -> Any:
        text = error.message if isinstance(error, click.ClickException) else str(error)
        return bottle.HTTPResponse(pages.failure(_STATUS[status], text), status)

    def report_failure(error: Any) -> str:
        is_missing = error.status_code == 404
        return pages.failure(
            _STATUS.get(error.status_code, "Error"),
            "There is no such page." if is_missing else "The page failed; the console printed the error.",
        )

    web.default_error_handler = report_failure
    web.route(
        "/style.css", "GET", lambda: bottle.HTTPResponse(style, headers={"Content-Type": "text/css; charset=utf-8"})
    )
    page("/", pages.topics)
    page("/groups", pages.groups)
    page("/topics/<topic>", pages.topic)
    log = "/topics/<topic>/<partition:int>"
    page(log, pages.partition)
    page(f"{log}/records", pages.records)
    page(f"{log}/records/<offset:int>", pages.record)
    page(f"{log}/history", pages.history)
    page(f"{log}/changes", pages.changes)
    application: Application = web
    return application


def _version(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < _MOST_NUMBER:
        raise ConfigError(f"{text!r} is not a version of a manifest")
    return int(text)


def _selection(parameters: Mapping[str, str]) -> Query:
    start = start_of(parameters["from"]) if parameters["from"] else Start()
    isolation = Isolation.of(parameters["isolation"]) if parameters["isolation"] else Isolation.READ_UNCOMMITTED
    key: bytes | None = parameters["key"].encode() if parameters["key"] else None
    if key is not None and parameters["hex"]:
        try:
            key = bytes.fromhex(parameters["key"].removeprefix("0x"))
        except ValueError:
            raise ConfigError(f"{parameters['key']!r} is not a key in hex digits") from None
    return Query(start, key, isolation)
