"""The commands of this package. Listing them imports none of their modules."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import click


@dataclass(frozen=True, slots=True)
class OwnCommand:
    """One command of this package.

    Attributes:
        place: module below ``stratalog.cli``, a colon, and the name of the click command there.
        help: text for the list of commands.
    """

    place: str
    help: str

    def load(self) -> click.Command:
        """Import the command."""
        module, _, name = self.place.partition(":")
        command: click.Command = getattr(import_module(f"stratalog.cli.{module}"), name)
        return command


OWN_COMMANDS: Final = {
    "archive": OwnCommand("tier.archive:archive", "Copy a Kafka broker's closed segments into a tier."),
    "attach": OwnCommand("tier.attach:attach", "Take over all topics of a tier into empty log directories."),
    "bench": OwnCommand("bench:bench", "Measure a disk and an object store."),
    "check-plugin": OwnCommand("check_plugin:check", "Check that a plugin is well-formed."),
    "cleaner": OwnCommand("maintenance.cleaner:cleaner", "Compact logs with cleanup.policy=compact."),
    "consume": OwnCommand("data.consume:consume", "Print the records of a topic."),
    "demo": OwnCommand("demo:demo", "Show the storage layer at work on a real Kafka directory."),
    "dump": OwnCommand("dump:dump", "Show what files contain."),
    "erase": OwnCommand("maintenance.erase:erase", "Remove all records of a key, at unchanged offsets."),
    "explain": OwnCommand("data.explain:explain", "Show each step of finding a record."),
    "offload": OwnCommand("tier.offload:offload", "Copy closed segments to the tier."),
    "plugins": OwnCommand("plugins:plugins", "List the installed plugins and their errors."),
    "produce": OwnCommand("data.produce:produce", "Append lines of text to a topic."),
    "rebuild": OwnCommand("tier.rebuild:rebuild", "Rebuild lost manifests from the objects of a tier."),
    "recover": OwnCommand("maintenance.recover:recover", "Recover a log directory after a crash."),
    "restore": OwnCommand("tier.restore:restore_command", "Copy the logs of a tier into a log directory."),
    "retention": OwnCommand("maintenance.retention:retention", "Delete expired segments on disk and in the tier."),
    "run": OwnCommand("maintenance.running:run_engine", "Run an engine with its background duties and services."),
    "sql": OwnCommand("data.sql:sql", "Query topics with SQL, by DuckDB."),
    "tier": OwnCommand("tier.tier_command:tier", "List, compare, clean and price the contents of a tier."),
    "topics": OwnCommand("data.topics:topics", "List, create, alter, delete and describe topics."),
    "verify": OwnCommand("maintenance.verify:verify", "Check and repair a log directory or a tier."),
    "why-kept": OwnCommand("maintenance.why_kept:why_kept", "Explain what retention and compaction do next."),
}
"""The commands, by name."""
