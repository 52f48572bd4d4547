"""``stratalog console``: serve a read-only web page about a log directory or a tier."""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import Final

import click

from stratalog.cli.contents.avro import avro_text
from stratalog.cli.options import LogPlace, view_options
from stratalog.cli.output import Output
from stratalog.cli.views.browse import AvroText
from stratalog.cli.views.console_pages import ConsolePages, web_application
from stratalog.cli.views.console_server import ConsoleServer, Listener, listener
from stratalog.env.clock import SystemClock
from stratalog.errors import ConfigError
from stratalog.spi.commands import stop_event

_POLL_S: Final = 0.2


@click.command()
@click.option(
    "--listen", "address", default="127.0.0.1:8088", type=listener, metavar="HOST:PORT",
    help="Address of the page. Port 0 means any free port.",
)  # fmt: skip
@click.option(
    "--insecure", is_flag=True,
    help="Allow an address that other machines can reach. The page has no login and no encryption, and shows all "
    "records.",
)  # fmt: skip
@click.option(
    "--avro", "schemas", metavar="TOPIC=FILE.avsc", multiple=True,
    help="Schema of the Avro values of a topic; can be repeated.",
)  # fmt: skip
@click.option("--browser", is_flag=True, help="Open the page in a browser.")
@view_options
def console(place: LogPlace, address: Listener, schemas: tuple[str, ...], *, insecure: bool, browser: bool) -> None:
    """Serve a read-only web page about a log directory or a tier: topics, segments, records, groups, history.

    The command runs until Ctrl-C. It does not lock or change the logs, and can run while a broker or an engine is
    running. Every user of this machine can open the page. Other machines cannot, unless --insecure is set. The page
    loads nothing from other servers.
    """
    if not (address.is_loopback or insecure):
        raise ConfigError(
            f"other machines could read all records at {address.host}: listen at 127.0.0.1, or add --insecure"
        )
    output = Output(as_json=False)
    with stop_event() as stop, place.reader() as reader:
        pages = ConsolePages(reader, SystemClock(), dict(map(_schema, schemas)))
        try:
            server = ConsoleServer(address, web_application(pages))
        except OSError as error:
            raise ConfigError(
                f"the console cannot listen at {address.host}:{address.port}: {error.strerror or error}; choose another "
                "address with --listen HOST:PORT"
            ) from error
        with server:
            thread = threading.Thread(target=server.serve_forever, args=(_POLL_S,), name="stratalog-console")
            thread.start()
            url = address.url(server.server_port)
            output.line(f"{reader.location} is shown at {url}; press Ctrl-C to stop")
            output.flush()
            if browser:
                webbrowser.open(url)
            stop.wait()
            server.shutdown()
            thread.join()
        pages.close()


def _schema(option: str) -> tuple[str, AvroText]:
    topic, is_pair, file = option.partition("=")
    if not is_pair or not topic:
        raise click.UsageError(f"--avro {option}: give TOPIC=FILE.avsc")
    return topic, avro_text(Path(file), "console")
