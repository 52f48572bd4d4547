"""Table of the commands of this package. A command's module is imported only when the command is loaded."""

from __future__ import annotations

from importlib import import_module
from typing import Final, NamedTuple

import click


class OwnCommand(NamedTuple):
    """One command of this package, defined in the module ``NAME_command``.

    Attributes:
        section: heading of the command in the list.
        folder: folder of the module in ``stratalog.cli``; "" if it is directly in ``stratalog.cli``.
        help: text for the list of commands.
    """

    name: str
    section: str
    folder: str
    help: str

    def load(self) -> click.Command:
        """Import the command, add examples to its help and to the help of its subcommands, and return it."""
        place = ".".join(filter(None, ("stratalog.cli", self.folder, f"{self.name.replace('-', '_')}_command")))
        commands = (item for item in vars(import_module(place)).values() if isinstance(item, click.Command))
        command = next(item for item in commands if item.name == self.name)
        parts = {self.name: command}
        parts |= {f"{self.name} {name}": part for name, part in getattr(command, "commands", {}).items()}
        for words, part in parts.items():
            part.epilog = part.epilog or f"\b\nExample:  stratalog {words} {_EXAMPLES[words]}"
        return command


_COMMANDS: Final = {
    "Records and topics": {
        "consume": ("data", "Print the records of a topic."),
        "dump": ("dump", "Show the contents of files."),
        "explain": ("data", "Show each step of finding a record."),
        "groups": ("data", "List, describe, reset and delete consumer groups."),
        "produce": ("data", "Append lines, JSON objects or files to a topic."),
        "sql": ("data", "Query topics with SQL in DuckDB."),
        "topics": ("data", "List, create, alter, delete and describe topics."),
    },
    "Log directories": {
        "cleaner": ("maintenance", "Compact logs with cleanup.policy=compact."),
        "erase": ("maintenance", "Remove all records of a key. Other records keep their offsets."),
        "retention": ("maintenance", "Delete expired segments on disk and in the tier."),
        "run": ("maintenance", "Run an engine with its background duties and services."),
        "why-kept": ("maintenance", "Explain why segments are kept, and when they are removed."),
    },
    "Tiers": {
        "archive": ("tier", "Copy a Kafka broker's closed segments into a tier."),
        "offload": ("tier", "Copy closed segments to the tier."),
        "tier": ("tier", "Show a tier's contents, delete garbage, and estimate costs."),
    },
    "Views": {
        "console": ("views", "Serve a read-only web page about a log directory or a tier."),
        "report": ("views", "Write one HTML file about a log directory or a tier."),
        "top": ("views", "Show rates, sizes and lag of topics, live in the terminal."),
    },
    "Loss and damage": {
        "attach": ("tier", "Take over all topics of a tier into empty log directories."),
        "rebuild": ("tier", "Rebuild lost manifests from the objects of a tier."),
        "recover": ("maintenance", "Recover a log directory after a crash."),
        "restore": ("tier", "Copy the logs of a tier into a log directory."),
        "verify": ("maintenance", "Check and repair a log directory or a tier."),
    },
    "Trial and plugins": {
        "bench": ("", "Measure a disk and an object store."),
        "check-plugin": ("", "Check a plugin and its components."),
        "demo": ("", "Move a real Kafka directory to S3, and read it back."),
        "doctor": ("doctor", "Test a store or a log directory, and suggest changes."),
        "new-plugin": ("", "Write the skeleton of a plugin."),
        "plugins": ("", "List the installed plugins and their errors."),
    },
}
"""Folder and help text of each command, by section and name."""

_EXAMPLES: Final = {
    "archive": "/var/lib/kafka/data s3://bucket/prefix --follow",
    "attach": "s3://bucket/prefix --dir empty",
    "bench": "--dir data --tier s3://bucket/prefix",
    "check-plugin": "formats",
    "cleaner": "--dir data --dry-run",
    "console": "data --tier s3://bucket/prefix --listen 127.0.0.1:8088",
    "consume": "orders --dir data --tail 10 -f '%t-%p %o %k %s\\n'",
    "demo": "--keep",
    "doctor": "s3://bucket/prefix",
    "dump": "data/orders-0 --values",
    "erase": "orders --key customer-7 --dir data --dry-run",
    "explain": "orders 0 1000 --dir data",
    "groups": "reset billing orders --to s@2026-11-21T14:00:00Z --dir data",
    "groups delete": "billing --dir data",
    "groups describe": "billing --dir data",
    "groups list": "--dir data",
    "groups reset": "billing orders --to beginning --dir data",
    "new-plugin": "cleanup-policy newest --into plugins",
    "offload": "--roll --dir data --tier s3://bucket/prefix",
    "plugins": "--json",
    "produce": "orders lines.txt -K : --dir data",
    "rebuild": "s3://bucket/prefix --dry-run",
    "recover": "data --dry-run",
    "report": "data --tier s3://bucket/prefix -o report.html",
    "restore": "s3://bucket/prefix data --to-time 2026-11-21T14:00:00Z",
    "retention": "--dir data --dry-run",
    "run": "--dir data --tier s3://bucket/prefix",
    "sql": '"select count(*) from orders" data',
    "tier": "ls s3://bucket/prefix orders 0",
    "tier collect": "--dir data --tier s3://bucket/prefix",
    "tier cost": "--write-rate 1e6 --partitions 12 --set segment.bytes=268435456",
    "tier diff": "s3://bucket/prefix orders 0 --dir data",
    "tier gc": "s3://bucket/prefix",
    "tier log": "s3://bucket/prefix orders 0",
    "tier ls": "s3://bucket/prefix orders 0",
    "tier rewrap": "s3://bucket/prefix",
    "top": "data --tier s3://bucket/prefix",
    "topics": "create orders --partitions 4 --dir data",
    "topics alter": "orders --set retention.ms=604800000 --dir data",
    "topics create": "orders --partitions 4 --dir data",
    "topics delete": "orders --dir data",
    "topics describe": "orders --dir data",
    "topics list": "--dir data",
    "verify": "data --repair",
    "why-kept": "orders 0 --dir data",
}
"""Arguments of a typical call of each command and subcommand."""

SECTIONS: Final = tuple(_COMMANDS)
"""The headings of the list of commands, in order; commands of plugins follow."""

OWN_COMMANDS: Final = {
    name: OwnCommand(name, section, *row) for section, rows in _COMMANDS.items() for name, row in rows.items()
}
"""The commands, by name."""
