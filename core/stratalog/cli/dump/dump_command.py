"""``stratalog dump``: show the contents of files of logs and tiers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from stratalog.cli.contents.decoders import DECODERS, internal_topic
from stratalog.cli.dump import state_dump
from stratalog.cli.dump.file_dump import DumpRun, FileDump
from stratalog.cli.dump.index_dump import dump_digest, dump_extras, dump_index
from stratalog.cli.dump.kinds import Identified, Kind, identify, leading_offset, sort_files
from stratalog.cli.dump.log_dump import dump_log
from stratalog.cli.dump.source import open_source
from stratalog.cli.dump.tier_dump import dump_cached, dump_manifest, dump_object, dump_page
from stratalog.cli.options import count_option, json_option
from stratalog.cli.output import Output
from stratalog.cli.parameters import NamedPath
from stratalog.config.settings_sources import Settings
from stratalog.errors import ConfigError, CorruptionError, StorageError
from stratalog.reading.open_reader import open_host

_SMALL: Final = {
    Kind.SNAPSHOT: state_dump.dump_snapshot,
    Kind.EXTRA: dump_extras,
    Kind.DIGEST: dump_digest,
    Kind.CACHED: dump_cached,
    Kind.LEADER_EPOCHS: state_dump.dump_epochs,
    Kind.OFFSETS: state_dump.dump_offsets,
    Kind.PARTITION_METADATA: state_dump.dump_partition_metadata,
    Kind.META_PROPERTIES: state_dump.dump_meta_properties,
    Kind.CLEAN_SHUTDOWN: state_dump.dump_clean_shutdown,
    Kind.TOPICS: state_dump.dump_topics,
    Kind.TIER_NOTE: state_dump.dump_tier_note,
    Kind.MARKS: state_dump.dump_marks,
    Kind.NOTE: state_dump.dump_note,
    Kind.TIER_OBJECT: dump_object,
    Kind.MANIFEST: dump_manifest,
    Kind.MANIFEST_PAGE: dump_page,
}


@click.command()
@click.argument("files", nargs=-1, required=True, type=NamedPath(path_type=Path))
@click.option("--deep", is_flag=True, help="Also show the records in each batch, and all parts of a tier object.")
@click.option("--values", is_flag=True, help="Also show keys, values and headers of the records; implies --deep.")
@click.option(
    "--decoder", type=click.Choice(DECODERS),
    help="Decode keys and values in this way; implies --values. Default: records in the folders of Kafka's internal "
    "topics are decoded, and other bytes are shown as text if they are printable UTF-8.",
)  # fmt: skip
@click.option(
    "--kind", type=click.Choice([kind.value for kind in Kind]), metavar="KIND",
    help=f"Kind of FILES, used instead of their names: {', '.join(kind.value for kind in Kind)}.",
)  # fmt: skip
@click.option(
    "--base-offset", type=click.IntRange(0), help="Base offset of the segment, if the file's name does not contain it."
)
@count_option("batches of a log, or N entries of an index; the rest of the file is not checked")
@json_option
def dump(
    output: Output,
    files: tuple[Path, ...],
    *,
    deep: bool,
    values: bool,
    decoder: str | None,
    kind: str | None,
    base_offset: int | None,
    limit: int | None,
) -> int:
    """Show the contents of FILES, or of the files in a folder.

    \b
    Segments:     .log .index .timeindex .txnindex .snapshot .extra
                  .digest (also with suffix .deleted .cleaned .swap)
    Log folders:  leader-epoch-checkpoint, partition.metadata,
                  stratalog-tier.json, stratalog-marks.json
    Directories:  the four offset checkpoints, meta.properties,
                  .kafka_cleanshutdown, stratalog-topics.json,
                  stratalog-inventory.json
    Tiers:        segment objects (.seg), manifest roots, pages (.page),
                  files of the cache on local disk

    Each batch is one line: position and size (bytes), magic, offsets, records, codec, leader epoch, largest timestamp
    (UTC), CRC, and attributes that are set. If a file is damaged, the command shows the batches before the damage, then
    the damage, and continues with the next file.

    The exit code is 1 if a file is corrupt, and 2 if a file could not be read.
    """  # noqa: D301 - \b prevents click from wrapping the lines
    shows_values = values or decoder is not None
    given_kind = None if kind is None else Kind(kind)
    errors: list[StorageError] = []
    with open_host(Settings()) as host:
        run = DumpRun(host, output, deep or shows_values, shows_values, decoder, limit)
        for number, path in enumerate(_paths(output, files, everything=given_kind is not None)):
            if number:
                output.line("")
            try:
                _dump_file(run, path, given_kind, base_offset)
            except StorageError as error:
                errors.append(error)
    if errors:
        first_error, *further_errors = errors
        for further in further_errors:
            first_error.add_note(str(further))
        raise first_error
    return 1 if run.has_corruption else 0


def _paths(output: Output, files: tuple[Path, ...], *, everything: bool) -> Iterator[Path]:
    """Yield ``files``, but instead of a folder the files in it. Print a note about omitted files and folders."""
    for path in files:
        if not path.is_dir():
            yield path
            continue
        names = [entry.name for entry in path.iterdir() if entry.is_file()]
        shown_names, unknown_names = (sorted(names), []) if everything else sort_files(names)
        for name in shown_names:
            yield path / name
        if unknown_names:
            output.note(
                f"left out, because their names do not show their kind: {', '.join(unknown_names)}; name them with --kind "
                "KIND"
            )
        folders = sum(entry.is_dir() for entry in path.iterdir())
        if folders:
            output.note(f"left out: {folders} folders in {path}; name a folder to show its files")


def _dump_file(run: DumpRun, path: Path, given_kind: Kind | None, given_base_offset: int | None) -> None:
    identified = identify(path.name)
    if given_kind is not None:
        identified = Identified(given_kind, leading_offset(path.name))
    with open_source(run.host.env.files, path) as source:
        if identified is None:
            names = ", ".join(kind.value for kind in Kind)
            raise ConfigError(f"the name of {path} does not show its kind: add --kind KIND ({names})")
        file, (kind, base_offset) = FileDump(run, source), identified
        if given_base_offset is not None:
            base_offset = given_base_offset
        try:
            if kind is Kind.LOG:
                base = "" if base_offset is None else f", base offset {base_offset}"
                file.title(f"log, {source.size_bytes} bytes{base}")
                dump_log(file, base_offset, internal_topic(path))
            elif kind in _SMALL:
                _SMALL[kind](file)
            else:
                dump_index(file, kind, base_offset)
        except CorruptionError as error:
            file.corrupt(error)
