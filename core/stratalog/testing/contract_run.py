"""Run of the contract classes on the components of one plugin, for ``stratalog check-plugin --contracts``."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

from stratalog.config.settings_sources import Settings
from stratalog.env import Env
from stratalog.errors import PluginError, PluginImportError
from stratalog.reading.component_host import ComponentHost
from stratalog.registry.component_kinds import KINDS
from stratalog.registry.plugin_check import PluginFinding, Severity, offers_of
from stratalog.registry.registry import Registry
from stratalog.spi.codecs import CodecTable
from stratalog.testing.contexts import open_context

# The contract class of each kind, and the fixture that returns the component.
CONTRACTS: Final[Mapping[str, tuple[str, str]]] = {
    "record_formats": ("RecordFormatContract", "record_format"),
    "codecs": ("CodecContract", "codec"),
    "index_formats": ("IndexFormatContract", "index_format"),
    "extra_indexes": ("ExtraIndexContract", "extra_index"),
    "segment_stores": ("SegmentStoreContract", "open_store"),
    "object_stores": ("ObjectStoreContract", "store"),
    "tier_layouts": ("TierLayoutContract", "layout"),
    "cleanup_policies": ("CleanupPolicyContract", "policy"),
    "services": ("ServiceContract", "service"),
}
_FROM: Final = "from stratalog.testing.contract_run import installed_codecs, opened_component"
_RECORD_FORMAT_CODEC: Final = """
    @pytest.fixture
    def codec(self):
        return installed_codecs().by_name("gzip")
"""


def opened_component(plugin: str, kind: str, name: str) -> Any:  # Any: a component of any kind
    """Return one component of a plugin, opened with its default settings and the codecs that are installed.

    Args:
        plugin: name of an entry point or a module, or path of a Python file.
        kind: kind of the component, a key of ``CONTRACTS`` such as ``codecs``.
        name: name of the provider.

    Raises:
        PluginError: the plugin cannot be loaded, breaks the plugin interface, or has no such component.
    """
    for provider in offers_of(plugin).get(kind, ()):
        if provider.name == name:
            section = provider.engine_section() if provider.engine_section else None
            return provider.open(open_context(section, codecs=installed_codecs()))
    raise PluginError(f"plugin {plugin} has no component {name!r} of the kind {kind}")


def installed_codecs() -> CodecTable:
    """Return a table of the codecs of all installed plugins."""
    return ComponentHost(Registry.load(), Settings(), Env()).reading_components().codecs


def run_contracts(plugin: str, left_out: Collection[str] = ()) -> list[PluginFinding]:
    """Run the contract class of each component of a plugin, in another process, and return a finding for each failure.

    The contract class of a store is not run, because a store needs a location. The result has a warning for each store.

    Args:
        plugin: name of an entry point or a module, or path of a Python file.
        left_out: components that are not tested, in the form of ``PluginFinding.where``, such as ``codec zstd``.

    Raises:
        PluginImportError: pytest did not run, for example because it is not installed.
        PluginError: the plugin cannot be loaded, or no plugin has this name.
    """
    titles = {kind.key: kind.title for kind in KINDS}
    findings, tested = list[PluginFinding](), list[tuple[str, str]]()
    for key, providers in offers_of(plugin).items():
        for provider in providers:
            where = f"{titles[key]} {provider.name}"
            if provider.schemes:
                contract = CONTRACTS[key][0]
                text = f"it needs a location: subclass {contract} in a test of the plugin"
                findings.append(PluginFinding(Severity.WARNING, where, text))
            elif where not in left_out:
                tested.append((key, provider.name))
    if tested:
        findings += _failures(plugin, tested, titles)
    return findings


def contract_tests(plugin: str, tested: list[tuple[str, str]]) -> str:
    """Return the source of a test module with one class for each component of ``tested``.

    ``tested`` contains the kind (a key of ``CONTRACTS``, such as ``codecs``) and the name of each component. Class
    ``Test0`` tests the first component, ``Test1`` tests the second component, and so on.
    """
    names = ", ".join(sorted({CONTRACTS[key][0] for key, _ in tested}))
    parts = [f"import pytest\n\n{_FROM}\nfrom stratalog.testing.contracts import {names}\n"]
    for number, (key, name) in enumerate(tested):
        contract, fixture = CONTRACTS[key]
        parts.append(
            f"\n\nclass Test{number}({contract}):\n    @pytest.fixture\n    def {fixture}(self):\n"
            f"        return opened_component({plugin!r}, {key!r}, {name!r})\n"
            + (_RECORD_FORMAT_CODEC if key == "record_formats" else "")
        )
    return "".join(parts)


def _failures(plugin: str, tested: list[tuple[str, str]], titles: Mapping[str, str]) -> Iterator[PluginFinding]:
    with tempfile.TemporaryDirectory() as folder:
        report, tests = Path(folder) / "report.xml", Path(folder) / "test_contracts.py"
        tests.write_text(contract_tests(_absolute(plugin), tested), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(tests)]
        completed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603 - our own tests
        if not report.exists():
            raise PluginImportError(f"pytest did not run: {completed.stderr.strip()}", plugin, "stratalog[testing]")
        cases = list(ET.parse(report).iter("testcase"))  # noqa: S314 - pytest wrote it
    for case in cases:
        for failure in [*case.iter("failure"), *case.iter("error")]:
            reason = next(iter((failure.get("message") or "").splitlines()), "see pytest")
            number = (case.get("classname") or "").rpartition("Test")[2]
            if not number:
                yield PluginFinding(Severity.ERROR, plugin, f"the contract tests cannot be imported: {reason}")
                continue
            key, name = tested[int(number)]
            text = f"{case.get('name')} of {CONTRACTS[key][0]} failed: {reason}"
            yield PluginFinding(Severity.ERROR, f"{titles[key]} {name}", text)


def _absolute(plugin: str) -> str:
    return str(Path(plugin).resolve()) if Path(plugin).is_file() else plugin
