"""Proof of an erasure as JSON, and the later check that the key is gone.

The proof does not contain the key, but a slow hash (scrypt) of the key with a random salt. With the key, a reader can
check that the proof is about this key. A key that is easy to guess can be found from the proof: each try takes a few
hundredths of a second.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stratalog.cleaning.erase.erasure_report import EraseResult, Remnant
from stratalog.cleaning.erase.key_removal import count_records
from stratalog.errors import ConfigError, CorruptionError
from stratalog.log.log import Log
from stratalog.segment.readable import ReadableSegment
from stratalog.tier.manifest.root import object_keys
from stratalog.tier.tier_log import TierLog

FORMAT: Final = "stratalog-erasure"
FORMAT_VERSION: Final = 1
_SALT_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class ErasureCheck:
    """Result of a check of an erasure in one partition.

    Attributes:
        remnants: remnants of the proof that still exist, and segments that cannot be searched because of damage.
        holding: files and objects of segments that contain records of the key from before the erasure.
    """

    topic: str
    partition: int
    remnants: tuple[Remnant, ...]
    holding: tuple[str, ...]

    @property
    def is_gone(self) -> bool:
        """True if ``remnants`` and ``holding`` are empty."""
        return not self.remnants and not self.holding


def proof_of(result: EraseResult, log: Log, key: bytes) -> dict[str, object]:
    """Return the proof of an erasure as a JSON object, which contains a salted hash of ``key``.

    If ``result`` is of a dry run that found records, the proof is not complete.
    """
    salt = log.components.env.chance.randbytes(_SALT_BYTES)
    is_complete = result.is_complete and all(segment.sha256_after for segment in result.segments)
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "topic": result.log.topic,
        "partition": result.log.partition,
        "topic_id": str(log.topic_id),
        "key_salt": salt.hex(),
        "key_scrypt": _hash_of(key, salt),
        "end_offset": result.end,
        "made_ms": result.made_ms,
        "gone_ms": result.gone_ms if is_complete else -1,
        "complete": is_complete,
        "segments": [dataclasses.asdict(segment) for segment in result.segments],
        "remnants": [dataclasses.asdict(_with_absolute_path(remnant)) for remnant in result.remnants],
        "error": "" if result.error is None else str(result.error),
    }


def check_erasure(proof: Mapping[str, object], log: Log, key: bytes, tier: TierLog | None) -> ErasureCheck:
    """Check which remnants of a proof still exist, and search all segments, local and in the tier, for the key.

    Records that were written after the erasure began are ignored.

    Raises:
        ConfigError: ``proof`` is not a proof, or is about another key or partition.
        StorageError: a local segment or the tier cannot be read.
    """
    _check_about(proof, log, key)
    end, remnants = proof.get("end_offset"), proof.get("remnants")
    if type(end) is not int or not isinstance(remnants, list):
        raise ConfigError("the proof is not the output of stratalog erase --json")
    if tier is not None:
        tier.refresh()
        log.maintenance.refresh_remote()
    unreferenced = set[str]()
    if tier is not None and tier.root is not None:
        unreferenced = tier.stored_keys() - object_keys(tier.entries(0, tier.root.end_offset, tier.root))
        tier.fetcher.forget_objects(unreferenced)
    remaining = [remnant for remnant in map(_remnant, remnants) if _exists(remnant, log, unreferenced)]
    holding = list[str]()
    for segment in _iterate_segments(log):
        try:
            if count_records(log, segment, key, below=end):
                holding.append(segment.label)
        except CorruptionError as damage:
            remaining.append(Remnant("damaged segment", segment.label, reason=str(damage)))
    return ErasureCheck(log.name.topic, log.name.partition, tuple(remaining), tuple(holding))


def _check_about(proof: Mapping[str, object], log: Log, key: bytes) -> None:
    if (proof.get("format"), proof.get("format_version")) != (FORMAT, FORMAT_VERSION):
        raise ConfigError(
            f"this is not a proof of the format {FORMAT} {FORMAT_VERSION}, which stratalog erase --json prints"
        )
    log_fields = (proof.get("topic"), proof.get("partition"), proof.get("topic_id"))
    if log_fields != (log.name.topic, log.name.partition, str(log.topic_id)):
        raise ConfigError(
            f"the proof is about {log_fields[0]}-{log_fields[1]} {log_fields[2]}, not about {log.name} {log.topic_id}"
        )
    try:
        salt = bytes.fromhex(str(proof.get("key_salt")))
    except ValueError as error:
        raise ConfigError("the proof has no salt") from error
    if not hmac.compare_digest(_hash_of(key, salt), str(proof.get("key_scrypt"))):
        raise ConfigError(f"the proof about {log.name} is about another key")


def _remnant(value: object) -> Remnant:
    try:
        if isinstance(value, dict):
            return Remnant(str(value["kind"]), str(value["where"]), int(value["until_ms"]), str(value["reason"]))
    except (KeyError, TypeError, ValueError):
        pass
    raise ConfigError("the proof lists an item that is not a remnant")


def _exists(remnant: Remnant, log: Log, objects: set[str]) -> bool:
    """Return True if a remnant of the kind "object" or "deleted file" still exists; False for other kinds."""
    if remnant.kind == "object":
        return remnant.where in objects
    return remnant.kind == "deleted file" and log.components.env.files.stat(remnant.where) is not None


def _iterate_segments(log: Log) -> Iterator[ReadableSegment]:
    """Yield every segment of the log in the tier, then every local segment."""
    view = log.view()
    if view.remote is not None:
        yield from view.remote.segments
    yield from view.segments


def _with_absolute_path(remnant: Remnant) -> Remnant:
    is_file = remnant.kind in {"deleted file", "local copy"}
    return dataclasses.replace(remnant, where=str(Path(remnant.where).absolute())) if is_file else remnant


def _hash_of(key: bytes, salt: bytes) -> str:
    return hashlib.scrypt(key, salt=salt, n=1 << 14, r=8, p=1).hex()
