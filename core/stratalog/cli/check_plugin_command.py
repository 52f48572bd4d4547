"""``stratalog check-plugin``: check the structure of a plugin, and optionally test its components."""

from __future__ import annotations

import click

from stratalog.cli.options import json_option
from stratalog.cli.output import Output
from stratalog.registry.plugin_check import Severity, check_plugin


@click.command("check-plugin")
@click.argument("name")
@click.option(
    "--contracts", is_flag=True, help="If no check fails, run the contract tests of the components. Needs pytest."
)
@json_option
def check(output: Output, name: str, *, contracts: bool) -> int:
    """Check that the plugin NAME is well-formed, has the methods of the contract, and imports its dependencies lazily.

    NAME is an entry point, a module, or the path of a Python file.

    The exit code is 1 if a check or a contract test fails. If a component cannot be opened because a package is
    missing, the command prints a warning and skips the contract tests of this component.
    """
    findings = check_plugin(name)
    if contracts and all(finding.severity is Severity.WARNING for finding in findings):
        from stratalog.testing.contract_run import run_contracts  # noqa: PLC0415 - only this option needs it

        findings += run_contracts(name, {finding.where for finding in findings})
    rows = [(str(finding.severity), finding.where, finding.text) for finding in findings]
    output.table(f"plugin {name}", ("severity", "where", "finding"), rows)
    return 1 if any(finding.severity is Severity.ERROR for finding in findings) else 0
