"""Table of the commands of this package. A command's module is imported only when the command is loaded."""

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
        section: heading of the command in the list.
        example: arguments of a typical call, shown at the end of the command's help.
    """

    place: str
    help: str
    section: str
    example: str

    def load(self) -> click.Command:
        """Import the command, add the examples to its help, and return it."""
        module, _, name = self.place.partition(":")
        command: click.Command = getattr(import_module(f"stratalog.cli.{module}"), name)
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


_RECORDS: Final = "Records and topics"
_DIRECTORIES: Final = "Log directories"
_TIERS: Final = "Tiers"
_VIEWS: Final = "Views"
_LOSS: Final = "Loss and damage"
_TRIAL: Final = "Trial and plugins"

SECTIONS: Final = (_RECORDS, _DIRECTORIES, _TIERS, _VIEWS, _LOSS, _TRIAL)
"""The headings of the list of commands, in order; commands of plugins follow."""

OWN_COMMANDS: Final = {
    "archive": OwnCommand(
        "tier.archive_command:archive",
        "Copy a Kafka broker's closed segments into a tier.",
        _TIERS,
        "archive /var/lib/kafka/data s3://bucket/prefix --follow",
    ),
    "attach": OwnCommand(
        "tier.attach_command:attach",
        "Take over all topics of a tier into empty log directories.",
        _LOSS,
        "attach s3://bucket/prefix --dir empty",
    ),
    "bench": OwnCommand(
        "bench_command:bench",
        "Measure a disk and an object store.",
        _TRIAL,
        "bench --dir data --tier s3://bucket/prefix",
    ),
    "check-plugin": OwnCommand(
        "check_plugin_command:check", "Check a plugin and its components.", _TRIAL, "check-plugin formats"
    ),
    "cleaner": OwnCommand(
        "maintenance.cleaner_command:cleaner",
        "Compact logs with cleanup.policy=compact.",
        _DIRECTORIES,
        "cleaner --dir data --dry-run",
    ),
    "console": OwnCommand(
        "views.console_command:console",
        "Serve a read-only web page about a log directory or a tier.",
        _VIEWS,
        "console data --tier s3://bucket/prefix --listen 127.0.0.1:8088",
    ),
    "consume": OwnCommand(
        "data.consume_command:consume",
        "Print the records of a topic.",
        _RECORDS,
        "consume orders --dir data --tail 10 -f '%t-%p %o %k %s\\n'",
    ),
    "demo": OwnCommand(
        "demo_command:demo", "Move a real Kafka directory to S3, and read it back.", _TRIAL, "demo --keep"
    ),
    "doctor": OwnCommand(
        "doctor.doctor_command:doctor",
        "Test a store or a log directory, and suggest changes.",
        _TRIAL,
        "doctor s3://bucket/prefix",
    ),
    "dump": OwnCommand(
        "dump.dump_command:dump", "Show the contents of files.", _RECORDS, "dump data/orders-0 --values"
    ),
    "erase": OwnCommand(
        "maintenance.erase_command:erase",
        "Remove all records of a key. Other records keep their offsets.",
        _DIRECTORIES,
        "erase orders --key customer-7 --dir data --dry-run",
    ),
    "explain": OwnCommand(
        "data.explain_command:explain",
        "Show each step of finding a record.",
        _RECORDS,
        "explain orders 0 1000 --dir data",
    ),
    "groups": OwnCommand(
        "data.groups_command:groups",
        "List, describe, reset and delete consumer groups.",
        _RECORDS,
        "groups reset billing orders --to s@2026-11-21T14:00:00Z --dir data",
    ),
    "new-plugin": OwnCommand(
        "new_plugin_command:new",
        "Write the skeleton of a plugin.",
        _TRIAL,
        "new-plugin cleanup-policy newest --into plugins",
    ),
    "offload": OwnCommand(
        "tier.offload_command:offload",
        "Copy closed segments to the tier.",
        _TIERS,
        "offload --roll --dir data --tier s3://bucket/prefix",
    ),
    "plugins": OwnCommand(
        "plugins_command:plugins", "List the installed plugins and their errors.", _TRIAL, "plugins --json"
    ),
    "produce": OwnCommand(
        "data.produce_command:produce",
        "Append lines, JSON objects or files to a topic.",
        _RECORDS,
        "produce orders lines.txt -K : --dir data",
    ),
    "rebuild": OwnCommand(
        "tier.rebuild_command:rebuild",
        "Rebuild lost manifests from the objects of a tier.",
        _LOSS,
        "rebuild s3://bucket/prefix --dry-run",
    ),
    "recover": OwnCommand(
        "maintenance.recover_command:recover", "Recover a log directory after a crash.", _LOSS, "recover data --dry-run"
    ),
    "report": OwnCommand(
        "views.report_command:report",
        "Write one HTML file about a log directory or a tier.",
        _VIEWS,
        "report data --tier s3://bucket/prefix -o report.html",
    ),
    "restore": OwnCommand(
        "tier.restore_command:restore_command",
        "Copy the logs of a tier into a log directory.",
        _LOSS,
        "restore s3://bucket/prefix data --to-time 2026-11-21T14:00:00Z",
    ),
    "retention": OwnCommand(
        "maintenance.retention_command:retention",
        "Delete expired segments on disk and in the tier.",
        _DIRECTORIES,
        "retention --dir data --dry-run",
    ),
    "run": OwnCommand(
        "maintenance.run_command:run_engine",
        "Run an engine with its background duties and services.",
        _DIRECTORIES,
        "run --dir data --tier s3://bucket/prefix",
    ),
    "sql": OwnCommand(
        "data.sql_command:sql", "Query topics with SQL in DuckDB.", _RECORDS, 'sql "select count(*) from orders" data'
    ),
    "tier": OwnCommand(
        "tier.tier_command:tier",
        "Show a tier's contents, delete garbage, and estimate costs.",
        _TIERS,
        "tier ls s3://bucket/prefix orders 0",
    ),
    "top": OwnCommand(
        "views.top_command:top",
        "Show rates, sizes and lag of topics, live in the terminal.",
        _VIEWS,
        "top data --tier s3://bucket/prefix",
    ),
    "topics": OwnCommand(
        "data.topics_command:topics",
        "List, create, alter, delete and describe topics.",
        _RECORDS,
        "topics create orders --partitions 4 --dir data",
    ),
    "verify": OwnCommand(
        "maintenance.verify_command:verify",
        "Check and repair a log directory or a tier.",
        _LOSS,
        "verify data --repair",
    ),
    "why-kept": OwnCommand(
        "maintenance.why_kept_command:why_kept",
        "Explain why segments are kept, and when they are removed.",
        _DIRECTORIES,
        "why-kept orders 0 --dir data",
    ),
}
"""The commands, by name."""
