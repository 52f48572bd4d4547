"""``stratalog erase``: forget a key, with a proof."""

from __future__ import annotations

import dataclasses

import click

from stratalog.cleaning.erase import EraseResult
from stratalog.cli.options import Place, json_option, place_options
from stratalog.cli.output import Output

_SEGMENTS = (
    "topic",
    "partition",
    "base_offset",
    "end_offset",
    "records",
    "bytes_before",
    "bytes_after",
    "sha256_after",
)
_REMNANTS = ("topic", "partition", "kind", "where", "until_ms", "reason")


@click.command()
@click.argument("topic")
@click.option("--key", "-k", required=True, help="The whole key, as text (UTF-8).")
@click.option("--hex", "is_hex", is_flag=True, help="The key is written in hexadecimal digits.")
@click.option("--dry-run", is_flag=True, help="Only say which segments hold the key.")
@place_options
@json_option
def erase(place: Place, output: Output, topic: str, key: str, *, is_hex: bool, dry_run: bool) -> int:
    """Write every local segment of TOPIC that holds a record of a key anew, without these records; offsets stay.

    What is printed is the proof: which segments, with digests before and after, and what may still hold the key until
    when. The exit code is 1 if readers may still find it (in a tier, in a damaged segment): a second run goes on.
    """
    with place.engine() as engine:
        results = engine.erase(topic, _bytes_of(key, is_hex=is_hex), dry_run=dry_run)
    if output.as_json:
        for result in results:
            output.item(_proof(result))
    else:
        segments = [
            (
                *result.log,
                one.base_offset,
                one.end_offset,
                one.records,
                one.bytes_before,
                one.bytes_after,
                one.sha256_after,
            )
            for result in results
            for one in result.segments
        ]
        output.table("would be written anew" if dry_run else "written anew", _SEGMENTS, segments)
        remnants = [(*result.log, *dataclasses.astuple(one)) for result in results for one in result.remnants]
        output.table("may still hold the key", _REMNANTS, remnants)
        for result in results:
            if result.error is not None:
                output.note(f"{result.log}: {result.error}")
    return 0 if all(result.is_complete for result in results) else 1


def _proof(result: EraseResult) -> dict[str, object]:
    return {
        "topic": result.log.topic,
        "partition": result.log.partition,
        "end_offset": result.end,
        "complete": result.is_complete,
        "segments": [dataclasses.asdict(one) for one in result.segments],
        "remnants": [dataclasses.asdict(one) for one in result.remnants],
        "error": "" if result.error is None else str(result.error),
    }


def _bytes_of(text: str, *, is_hex: bool) -> bytes:
    if not is_hex:
        return text.encode()
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not written in hexadecimal digits", param_hint="--key") from error
