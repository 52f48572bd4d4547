"""Addresses of the console's pages, and the query parameters that they accept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

import click

from stratalog.cli.parameters import Start, start_of
from stratalog.cli.views.browse import Query
from stratalog.cli.views.console_pages import ConsolePages
from stratalog.cli.views.console_server import Application
from stratalog.cli.views.page import render
from stratalog.errors import ConfigError, OffsetOutOfRangeError, PluginImportError, StorageError, UnknownTopicError
from stratalog.model.names import TopicPartition
from stratalog.model.offsets import Isolation

_MOST_NUMBER: Final = 1 << 31
_PARAMETERS: Final = ("page", "from", "to", "key", "hex", "decoder", "isolation")
_STATUS: Final = {400: "Wrong request", 404: "Not found", 500: "Cannot be read"}


def web_application(pages: ConsolePages) -> Application:
    """Return the console as a WSGI application.

    Raises:
        PluginImportError: bottle is not installed.
    """
    try:
        bottle = import_module("bottle")
    except ImportError as error:
        raise PluginImportError("the console needs bottle", "console", "stratalog[console]") from error
    web, style = bottle.Bottle(), render("style.css")

    def page(path: str, make: Callable[..., str]) -> None:
        def answer(**arguments: Any) -> Any:
            query = {name: bottle.request.query.getunicode(name, "").strip() for name in _PARAMETERS}
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
    page("/", lambda query: pages.topics(_number(query["page"])))
    page("/groups", lambda query: pages.groups(_number(query["page"])))
    page("/topics/<topic>", lambda query, topic: pages.topic(topic, _number(query["page"])))
    log = "/topics/<topic>/<partition:int>"
    page(log, lambda _, topic, partition: pages.partition(TopicPartition(topic, partition)))
    page(
        f"{log}/records",
        lambda query, topic, partition: pages.records(
            TopicPartition(topic, partition), _query(query), query["decoder"], query
        ),
    )
    page(
        f"{log}/records/<offset:int>",
        lambda query, topic, partition, offset: pages.record(
            TopicPartition(topic, partition), offset, query["decoder"]
        ),
    )
    page(f"{log}/history", lambda _, topic, partition: pages.history(TopicPartition(topic, partition)))
    page(
        f"{log}/changes",
        lambda query, topic, partition: pages.changes(
            TopicPartition(topic, partition), _version(query["from"]), _version(query["to"])
        ),
    )
    application: Application = web
    return application


def _number(text: str) -> int:
    """Parse a page number, from 0. "" means 0. Raise ConfigError for any other text."""
    if not text.isdecimal() or int(text) >= _MOST_NUMBER:
        if text:
            raise ConfigError(f"{text!r} is not the number of a page")
        return 0
    return int(text)


def _version(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < _MOST_NUMBER:
        raise ConfigError(f"{text!r} is not a version of a manifest")
    return int(text)


def _query(parameters: Mapping[str, str]) -> Query:
    start = start_of(parameters["from"]) if parameters["from"] else Start()
    isolation = Isolation.of(parameters["isolation"]) if parameters["isolation"] else Isolation.READ_UNCOMMITTED
    key: bytes | None = parameters["key"].encode() if parameters["key"] else None
    if key is not None and parameters["hex"]:
        try:
            key = bytes.fromhex(parameters["key"].removeprefix("0x"))
        except ValueError:
            raise ConfigError(f"{parameters['key']!r} is not a key in hex digits") from None
    return Query(start, key, isolation)
