"""``stratalog check-plugin``: check the structure of a plugin."""

from __future__ import annotations

import click

from stratalog.cli.options import json_option
from stratalog.cli.output import Output
from stratalog.registry.plugin_check import Severity, check_plugin


@click.command("check-plugin")
@click.argument("name")
@json_option
def check(output: Output, name: str) -> int:
    """Check that the plugin NAME, an entry point or a module, is well-formed and imports its dependencies lazily.

    The contract classes of stratalog.testing check its components. The exit code is 1 if something is wrong.
    """
    findings = check_plugin(name)
    rows = [(str(finding.severity), finding.where, finding.text) for finding in findings]
    output.table(f"plugin {name}", ("severity", "where", "finding"), rows)
    return 1 if any(finding.severity is Severity.ERROR for finding in findings) else 0
