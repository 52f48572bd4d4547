"""Note file of an unfinished restore in a log directory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stratalog.engine.open.log_dir import LogDir
from stratalog.errors import AttachError
from stratalog.model.names import RESTORE_NOTE_FILE
from stratalog.tier.takeover.download import RestorePlan


@dataclass(frozen=True, slots=True)
class RestoreNote:
    """Description of an unfinished restore. A repeated restore must have an equal description.

    Attributes:
        tier: URI of the tier.
        logs: by the log's name in the tier: topic id, manifest version, name of the restored log, requested end offset.
    """

    tier: str
    logs: Mapping[str, tuple[str, int, str, int]]

    @classmethod
    def of(cls, uri: str, plans: Sequence[RestorePlan]) -> RestoreNote:
        """Return the note of a restore of the logs in ``plans`` from the tier at ``uri``."""
        return cls(
            uri,
            {
                str(plan.source): (str(plan.topic_id), plan.view.version, str(plan.target), plan.log_end)
                for plan in plans
            },
        )

    @property
    def versions(self) -> dict[str, int]:
        """Manifest version of each log that the restore copies, by the log's name in the tier."""
        return {name: version for name, (_, version, _, _) in self.logs.items()}

    def to_json(self) -> bytes:
        """Return the content of the note file, which ``parse_note`` reads."""
        return json.dumps({"version": 1, "tier": self.tier, "logs": self.logs}, indent=1).encode()


def read_note(directory: LogDir) -> RestoreNote | None:
    """Return the note in a directory, or None if there is none; raise AttachError if it is malformed."""
    data = directory.store.read_small(RESTORE_NOTE_FILE)
    return None if data is None else parse_note(data, directory.store.path(RESTORE_NOTE_FILE))


def parse_note(data: bytes, path: str) -> RestoreNote:
    """Return the note from the content of its file. ``path`` is for error texts."""
    try:
        body = json.loads(data)
        items = {1: body["logs"]}[body["version"]].items()
        logs = {name: (text, int(version), target, int(end)) for name, (text, version, target, end) in items}
        return RestoreNote(str(body["tier"]), logs)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise AttachError(f"{path} is malformed ({error}): use another directory") from error
