"""``stratalog erase``: erase all records of a key, and print a proof."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TextIO

import click

from stratalog.cleaning.erase.erasure_report import EraseResult
from stratalog.cli.options import LogPlace, json_option, place_options
from stratalog.cli.output import Output
from stratalog.cli.parameters import typed_bytes

_OF_SEGMENTS = ("part", "base_offset", "end_offset", "records", "bytes_before", "bytes_after", "sha256_after")
_REMNANTS = ("topic", "partition", "kind", "where", "until_ms", "reason")


@click.command()
@click.argument("topic")
@click.option("--key", "-k", required=True, help="The whole key, as text (UTF-8), or with --hex as hexadecimal digits.")
@click.option("--hex", "is_hex", is_flag=True, help="The value of --key is hexadecimal digits.")
@click.option("--dry-run", is_flag=True, help="Show the segments that contain the key. Change nothing.")
@click.option(
    "--check", "proof", type=click.File(encoding="utf-8"),
    help="Erase nothing. FILENAME is a proof (the output of --json). Check that each remnant that it lists is gone.",
)  # fmt: skip
@place_options
@json_option
def erase(
    place: LogPlace, output: Output, topic: str, key: str, *, is_hex: bool, dry_run: bool, proof: TextIO | None
) -> int:
    """Erase all records of a key from TOPIC, on local disk and in the tier. Other records keep their offsets.

    The command rewrites every segment that contains such a record. It prints a proof: the rewritten segments with the
    SHA-256 hashes of their batches, and the remnants, which are files and objects that may still contain the key. Keep
    the output of --json for --check.

    The exit code is 1 if the erasure ended early, or if readers may still find the key, for example in a damaged
    segment. Repair damaged segments with `stratalog verify --repair`, then run the command again. With --check, the
    exit code is 1 if a remnant still exists, if a segment is damaged, or if a segment has a record of the key from
    before the erasure.
    """
    key_bytes = _bytes_of(key, is_hex=is_hex)
    if proof is not None:
        if dry_run:
            raise click.UsageError("--check changes nothing: leave out --dry-run")
        return _check(place, output, topic, key_bytes, proof)
    with output.bytes_progress("erasing") as progress, place.engine() as engine:
        results = engine.erase(topic, key_bytes, dry_run=dry_run, progress=progress)
        if output.as_json:
            for result in results:
                output.item(engine.proof_of(result, key_bytes))
    if not output.as_json:
        _show(output, results, dry_run=dry_run)
    return 0 if all(result.is_complete for result in results) else 1


def _show(output: Output, results: Sequence[EraseResult], *, dry_run: bool) -> None:
    segments = [
        (*result.log, *(getattr(part, name) for name in _OF_SEGMENTS)) for result in results for part in result.segments
    ]
    output.table("would be rewritten" if dry_run else "rewritten", ("topic", "partition", *_OF_SEGMENTS), segments)
    remnants = [(*result.log, *dataclasses.astuple(part)) for result in results for part in result.remnants]
    output.table("may still hold the key", _REMNANTS, remnants)
    for result in results:
        if result.error is not None:
            output.note(f"{result.log}: {result.error}")


def _check(place: LogPlace, output: Output, topic: str, key: bytes, proof: TextIO) -> int:
    proofs = _proofs(proof)
    if any(entry.get("topic") != topic for entry in proofs):
        raise click.BadParameter(f"{proof.name} is a proof about other topics than {topic}", param_hint="--check")
    with place.engine() as engine:
        checks = [engine.check_erasure(entry, key) for entry in proofs]
    rows = [
        *((check.topic, check.partition, *dataclasses.astuple(entry)) for check in checks for entry in check.remnants),
        *(
            (check.topic, check.partition, "segment", label, -1, "a segment holds the key: run stratalog erase again")
            for check in checks
            for label in check.holding
        ),
    ]
    output.table("still there", _REMNANTS, rows)
    if not rows:
        output.note("each remnant that this proof names is gone, and no segment holds the key")
    return 1 if rows else 0


def _proofs(proof: TextIO) -> list[dict[str, object]]:
    text = f"{proof.name} is not a proof that `stratalog erase --json` printed"
    try:
        proofs = [json.loads(line) for line in proof if line.strip()]
    except ValueError as error:
        raise click.BadParameter(f"{text} ({error})", param_hint="--check") from error
    if not proofs or not all(isinstance(item, dict) for item in proofs):
        raise click.BadParameter(text, param_hint="--check")
    return proofs


def _bytes_of(text: str, *, is_hex: bool) -> bytes:
    if not is_hex:
        return typed_bytes(text)
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not written in hexadecimal digits", param_hint="--key") from error
