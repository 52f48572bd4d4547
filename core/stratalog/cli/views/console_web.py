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
            given = {name: bottle.request.query.getunicode(name, "").strip() for name in _PARAMETERS}
            try:
                return make(given, **arguments)
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

    def other_failure(error: Any) -> str:
        is_missing = error.status_code == 404
        return pages.failure(
            _STATUS.get(error.status_code, "Error"),
            "There is no such page." if is_missing else "The page failed; the console printed the error.",
        )

    web.default_error_handler = other_failure
    web.route(
        "/style.css", "GET", lambda: bottle.HTTPResponse(style, headers={"Content-Type": "text/css; charset=utf-8"})
    )
    page("/", lambda given: pages.topics(_number(given["page"])))
    page("/groups", lambda given: pages.groups(_number(given["page"])))
    page("/topics/<topic>", lambda given, topic: pages.topic(topic, _number(given["page"])))
    log = "/topics/<topic>/<partition:int>"
    page(log, lambda _, topic, partition: pages.partition(TopicPartition(topic, partition)))
    page(
        f"{log}/records",
        lambda given, topic, partition: pages.records(
            TopicPartition(topic, partition), _query(given), given["decoder"], given
        ),
    )
    page(
        f"{log}/records/<offset:int>",
        lambda given, topic, partition, offset: pages.record(
            TopicPartition(topic, partition), offset, given["decoder"]
        ),
    )
    page(f"{log}/history", lambda _, topic, partition: pages.history(TopicPartition(topic, partition)))
    page(
        f"{log}/changes",
        lambda given, topic, partition: pages.changes(
            TopicPartition(topic, partition), _version(given["from"]), _version(given["to"])
        ),
    )
    application: Application = web
    return application


def _number(text: str) -> int:
    """Parse the number of a page, from 0; an empty text means 0. Raise ConfigError for anything else."""
    if not text.isdecimal() or int(text) >= _MOST_NUMBER:
        if text:
            raise ConfigError(f"{text!r} is not the number of a page")
        return 0
    return int(text)


def _version(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < _MOST_NUMBER:
        raise ConfigError(f"{text!r} is not a version of a manifest")
    return int(text)


def _query(given: Mapping[str, str]) -> Query:
    start = start_of(given["from"]) if given["from"] else Start()
    isolation = Isolation.of(given["isolation"]) if given["isolation"] else Isolation.READ_UNCOMMITTED
    key: bytes | None = given["key"].encode() if given["key"] else None
    if key is not None and given["hex"]:
        try:
            key = bytes.fromhex(given["key"].removeprefix("0x"))
        except ValueError:
            raise ConfigError(f"{given['key']!r} is not a key in hex digits") from None
    return Query(start, key, isolation)
