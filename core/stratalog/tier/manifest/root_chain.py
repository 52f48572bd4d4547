"""The chain of a log's manifest roots: each root names its parent by hash. A repair may have replaced damaged roots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from stratalog.errors import CorruptManifestError
from stratalog.segment.finding import Finding, FindingKind
from stratalog.tier.manifest.head import HeadFinder, may_continue
from stratalog.tier.manifest.root import Head
from stratalog.tier.store.object_keys import manifest_key


@dataclass(frozen=True, slots=True)
class ChainedRoot:
    """A stored root of a log, and its place in the chain of roots.

    Attributes:
        head: the root; None if it is damaged, or was deleted after it was listed.
        findings: findings about the root: it is damaged, roots before it are missing, or it does not follow them.
        has_loss: True if it is damaged, or roots before it are missing.
        continues: if a repair created this root in place of damaged roots, the version of the good root before them,
            which it continues; None for other roots.
    """

    version: int
    head: Head | None
    findings: tuple[Finding, ...]
    has_loss: bool
    continues: int | None


def read_chain(finder: HeadFinder, versions: Iterable[int]) -> Iterator[ChainedRoot]:
    """Read all existing roots, whose ``versions`` must ascend; yield each root with findings about the chain of roots.

    A damaged root causes a finding, and no error.
    """
    last_good: Head | None = None  # the last good root
    before: Head | None = None  # the root before, None if it is damaged
    for previous_version, version in pairwise((0, *versions)):
        key, head, flaws, has_loss = manifest_key(finder.prefix, version), None, list[tuple[str, int]](), False
        try:
            head = finder.read(version)
        except CorruptManifestError as error:
            flaws.append((error.reason, error.position))
            has_loss = True
        leaves_out = head is not None and last_good is not None and _leaves_out(last_good, head)
        if previous_version and version != previous_version + 1 and not leaves_out:
            flaws.append((f"versions {previous_version + 1} to {version - 1} are missing", 0))
            has_loss = True
        if head is not None and before is not None and not may_continue(before, head):
            flaws.append((f"it does not follow the stored version {before.root.version}", 0))
        findings = tuple(Finding(FindingKind.ROOT, key, position, text, log=finder.log) for text, position in flaws)
        yield ChainedRoot(
            version, head, findings, has_loss, last_good.root.version if last_good and leaves_out else None
        )
        before, last_good = head, head or last_good


def _leaves_out(before: Head, after: Head) -> bool:
    """Return True if ``after`` names ``before`` as its parent although there are versions between them.

    A repair creates such a root in place of the damaged roots between.
    """
    return after.root.version > before.root.version + 1 and after.root.parent_sha256 == before.sha256
