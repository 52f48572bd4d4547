"""Table of the commands of this package. A command's module is imported only when the command is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Final

import click


@dataclass(frozen=True, slots=True)
class OwnCommand:
    """One command of this package.

    Attributes:
        name: name of the command. The module ``NAME_command`` defines the click command.
        folder: folder of the module in ``stratalog.cli``; "" if it is directly in ``stratalog.cli``.
        help: text for the list of commands.
        section: heading of the command in the list.
        example: arguments of a typical call, shown at the end of the command's help.
    """

    name: str
    folder: str
    help: str
    section: str
    example: str

    def load(self) -> click.Command:
        """Import the command, add the examples to its help, and return it."""
        place = ".".join(filter(None, ("stratalog.cli", self.folder, f"{self.name.replace('-', '_')}_command")))
        commands = (item for item in vars(import_module(place)).values() if isinstance(item, click.Command))
        command = next(item for item in commands if item.name == self.name)
        _end_with(command, self.example)
        parts: dict[str, click.Command] = getattr(command, "commands", {})
        for name, part in parts.items():
            _end_with(part, f"{command.name} {name} {_PART_EXAMPLES[f'{command.name} {name}']}")
        return command


def _end_with(command: click.Command, example: str) -> None:
    command.epilog = command.epilog or f"\b\nExample:  stratalog {example}"


_PART_EXAMPLES: Final = {
    "groups delete": "billing --dir data",
    "groups describe": "billing --dir data",
    "groups list": "--dir data",
    "groups reset": "billing orders --to beginning --dir data",
    "tier collect": "--dir data --tier s3://bucket/prefix",
    "tier cost": "--write-rate 1e6 --partitions 12 --set segment.bytes=268435456",
    "tier diff": "s3://bucket/prefix orders 0 --dir data",
    "tier gc": "s3://bucket/prefix",
    "tier log": "s3://bucket/prefix orders 0",
    "tier ls": "s3://bucket/prefix orders 0",
    "tier rewrap": "s3://bucket/prefix",
    "topics alter": "orders --set retention.ms=604800000 --dir data",
    "topics create": "orders --partitions 4 --dir data",
    "topics delete": "orders --dir data",
    "topics describe": "orders --dir data",
    "topics list": "--dir data",
}
"""Arguments of a typical call of each subcommand."""


_COMMANDS: Final[dict[str, dict[str, tuple[str, str, str]]]] = {
    "Records and topics": {
        "consume": ("data", "Print the records of a topic.", "orders --dir data --tail 10 -f '%t-%p %o %k %s\\n'"),
        "dump": ("dump", "Show the contents of files.", "data/orders-0 --values"),
        "explain": ("data", "Show each step of finding a record.", "orders 0 1000 --dir data"),
        "groups": (
            "data",
            "List, describe, reset and delete consumer groups.",
            "reset billing orders --to s@2026-11-21T14:00:00Z --dir data",
        ),
        "produce": ("data", "Append lines, JSON objects or files to a topic.", "orders lines.txt -K : --dir data"),
        "sql": ("data", "Query topics with SQL in DuckDB.", '"select count(*) from orders" data'),
        "topics": (
            "data",
            "List, create, alter, delete and describe topics.",
            "create orders --partitions 4 --dir data",
        ),
    },
    "Log directories": {
        "cleaner": ("maintenance", "Compact logs with cleanup.policy=compact.", "--dir data --dry-run"),
        "erase": (
            "maintenance",
            "Remove all records of a key. Other records keep their offsets.",
            "orders --key customer-7 --dir data --dry-run",
        ),
        "retention": ("maintenance", "Delete expired segments on disk and in the tier.", "--dir data --dry-run"),
        "run": (
            "maintenance",
            "Run an engine with its background duties and services.",
            "--dir data --tier s3://bucket/prefix",
        ),
        "why-kept": ("maintenance", "Explain why segments are kept, and when they are removed.", "orders 0 --dir data"),
    },
    "Tiers": {
        "archive": (
            "tier",
            "Copy a Kafka broker's closed segments into a tier.",
            "/var/lib/kafka/data s3://bucket/prefix --follow",
        ),
        "offload": ("tier", "Copy closed segments to the tier.", "--roll --dir data --tier s3://bucket/prefix"),
        "tier": (
            "tier",
            "Show a tier's contents, delete garbage, and estimate costs.",
            "ls s3://bucket/prefix orders 0",
        ),
    },
    "Views": {
        "console": (
            "views",
            "Serve a read-only web page about a log directory or a tier.",
            "data --tier s3://bucket/prefix --listen 127.0.0.1:8088",
        ),
        "report": (
            "views",
            "Write one HTML file about a log directory or a tier.",
            "data --tier s3://bucket/prefix -o report.html",
        ),
        "top": (
            "views",
            "Show rates, sizes and lag of topics, live in the terminal.",
            "data --tier s3://bucket/prefix",
        ),
    },
    "Loss and damage": {
        "attach": (
            "tier",
            "Take over all topics of a tier into empty log directories.",
            "s3://bucket/prefix --dir empty",
        ),
        "rebuild": ("tier", "Rebuild lost manifests from the objects of a tier.", "s3://bucket/prefix --dry-run"),
        "recover": ("maintenance", "Recover a log directory after a crash.", "data --dry-run"),
        "restore": (
            "tier",
            "Copy the logs of a tier into a log directory.",
            "s3://bucket/prefix data --to-time 2026-11-21T14:00:00Z",
        ),
        "verify": ("maintenance", "Check and repair a log directory or a tier.", "data --repair"),
    },
    "Trial and plugins": {
        "bench": ("", "Measure a disk and an object store.", "--dir data --tier s3://bucket/prefix"),
        "check-plugin": ("", "Check a plugin and its components.", "formats"),
        "demo": ("", "Move a real Kafka directory to S3, and read it back.", "--keep"),
        "doctor": ("doctor", "Test a store or a log directory, and suggest changes.", "s3://bucket/prefix"),
        "new-plugin": ("", "Write the skeleton of a plugin.", "cleanup-policy newest --into plugins"),
        "plugins": ("", "List the installed plugins and their errors.", "--json"),
    },
}
"""Folder, help text and example of each command, by section and name."""

SECTIONS: Final = tuple(_COMMANDS)
"""The headings of the list of commands, in order; commands of plugins follow."""

OWN_COMMANDS: Final = {
    name: OwnCommand(name, folder, help_text, section, f"{name} {arguments}")
    for section, commands in _COMMANDS.items()
    for name, (folder, help_text, arguments) in commands.items()
}
"""The commands, by name."""
