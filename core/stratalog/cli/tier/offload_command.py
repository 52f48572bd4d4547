"""``stratalog offload``: copy closed segments to the tier."""

from __future__ import annotations

import click

from stratalog.cli.options import LogPlace, check_tier, json_option, place_options
from stratalog.cli.output import Output
from stratalog.engine.engine import Engine
from stratalog.env.progress import Progress, ProgressSum
from stratalog.errors import StorageError, StoreError
from stratalog.model.names import TopicPartition


@click.command()
@click.option("--roll", is_flag=True, help="First close every active segment.")
@place_options
@json_option
def offload(place: LogPlace, output: Output, *, roll: bool) -> int:
    """Copy the closed segments to the tier. `stratalog retention` deletes the local files later.

    Segments after the first record of an open transaction are not copied until the transaction has ended.

    The exit code is 1 if a partition failed and the other partitions were offloaded. It is 2 if the command could not
    start, or stopped because the store failed.
    """
    rows: list[tuple[object, ...]] = []
    has_failed = False
    with place.engine() as engine:
        check_tier(engine)
        with output.bytes_progress("offloading") as progress:
            part_by_log = _parts(engine, ProgressSum(progress), roll=roll)
            for name, part_progress in part_by_log.items():
                try:
                    if isinstance(part_progress, StorageError):
                        raise part_progress
                    results = engine.offload([name], progress=part_progress)
                    rows += [
                        (*result.log, result.segments, result.size_bytes, result.tier_end, "") for result in results
                    ]
                except StoreError:
                    raise  # the store would fail for the other partitions, too
                except StorageError as error:
                    has_failed = True
                    rows.append((*name, 0, 0, None, str(error)))
    output.table("offloaded", ("topic", "partition", "segments", "bytes", "tier_end_offset", "error"), rows)
    return 1 if has_failed else 0


def _parts(engine: Engine, total_progress: ProgressSum, *, roll: bool) -> dict[TopicPartition, Progress | StorageError]:
    """Return a ``Progress`` for the offload of each log, or the error because of which the log cannot be offloaded.

    With ``roll``, first close the active segment of each log.
    """
    part_by_log = dict[TopicPartition, Progress | StorageError]()
    for name in engine.partitions():
        try:
            if roll:
                engine.log(*name).roll()
            part_by_log[name] = total_progress.part(sum(lag.size_bytes for lag in engine.tier_lag([name])))
        except StorageError as error:
            part_by_log[name] = error
    return part_by_log
