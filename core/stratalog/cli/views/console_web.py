"""Addresses of the console's pages, and the responses to their errors."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import click

from stratalog.cli.views.console_pages import ConsolePages
from stratalog.cli.views.console_server import Application
from stratalog.cli.views.page import render
from stratalog.errors import ConfigError, OffsetOutOfRangeError, PluginImportError, StorageError, UnknownTopicError
from stratalog.model.names import TopicPartition

_PARAMETERS: Final = ("page", "from", "to", "key", "hex", "decoder", "isolation")
_STATUS: Final = {400: "Wrong request", 404: "Not found", 500: "Cannot be read"}


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
