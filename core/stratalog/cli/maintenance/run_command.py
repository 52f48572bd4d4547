"""``stratalog run``: run an engine with its background duties and services until a signal stops it."""

from __future__ import annotations

from importlib.util import find_spec

import click

from stratalog.cli.options import LogPlace, json_option, place_options
from stratalog.cli.output import Output
from stratalog.spi.commands import stop_event

_STATUS = ("duty", "runs", "failures", "error")


@click.command("run")
@place_options
@click.option("--metrics/--no-metrics", default=True, help="Run the service metrics.")
@json_option
def run_engine(place: LogPlace, output: Output, *, metrics: bool) -> int:
    """Run an engine: services, and background duties (sync, roll, retention, compaction, offload).

    The service `metrics` serves http://127.0.0.1:9308/metrics for Prometheus, and /healthy for health checks.
    [plugins.metrics] sets the address.

    The command runs until Ctrl-C or SIGTERM. Then it shuts down cleanly, and prints one row for each duty. The exit
    code is 1 if the last run of a duty failed.
    """
    if metrics and find_spec("prometheus_client") is None:
        output.note("metrics are not served: pip install 'stratalog[metrics]', or --no-metrics")
        metrics = False
    with stop_event() as stop, place.engine(("metrics",) if metrics else ()) as engine:
        engine.start()
        output.note(f"{len(engine.partitions())} logs are open; press Ctrl-C to stop")
        stop.wait()
        output.note("stopping")
        status = engine.duties()
    output.table(
        "duties",
        _STATUS,
        [(duty.name, duty.runs, duty.failures, duty.error if duty.failing else "") for duty in status],
    )
    return 1 if any(duty.failing for duty in status) else 0
