"""``check-plugin`` finds methods that the engine cannot call, and runs the contract of each component."""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.cli.app import run
from stratalog.errors import UnknownComponentError
from stratalog.registry.plugin_check import PluginFinding, check_plugin
from stratalog.testing import contract_run
from stratalog.testing.contract_run import run_contracts

HEAD = """
from stratalog.spi import CleanupPolicy, DeletePrefix, Provider, hookimpl

class Newest(CleanupPolicy):
    {method}

@hookimpl
def stratalog_cleanup_policies():
    return [Provider(name="newest", open=lambda context: Newest())]
"""
TWO = """
from stratalog.errors import PluginImportError
from stratalog.spi import CleanupPolicy, Provider, hookimpl

class Newest(CleanupPolicy):
    def plan(self, log, config, now_ms): return []

def needing(context):
    raise PluginImportError("a package is missing", "acme", "acme-extra")

@hookimpl
def stratalog_cleanup_policies():
    return [
        Provider(name="newest", open=lambda context: Newest()),
        Provider(name="needing", open=needing),
    ]
"""
SOUND = "def plan(self, log, config, now_ms): return []"


def plugin(tmp_path: Path, method: str) -> str:
    file = tmp_path / "acme_newest.py"
    file.write_text(HEAD.format(method=method), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("async def plan(self, log, config, now_ms): return []", "plan is an async def"),
        ("def plan(self, log): return []", "plan(log) must accept plan(log, config, now_ms)"),
        (
            "def plan(self, log, config, now_ms, *, force): return []",
            "force) must accept plan(log, config, now_ms): missing",
        ),
        (SOUND + "\n    local_plan = 3", "local_plan must be a method"),
    ],
)
def test_a_method_that_the_engine_cannot_call_is_a_finding(method: str, told: str, tmp_path: Path) -> None:
    (finding,) = check_plugin(plugin(tmp_path, method))
    assert told in finding.text
    assert finding.where == "cleanup policy newest"


def test_a_file_and_a_module_can_be_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_plugin(plugin(tmp_path, SOUND)) == []
    monkeypatch.syspath_prepend(str(tmp_path))
    assert check_plugin("acme_newest") == []


def test_a_name_that_is_nothing_names_the_three_choices() -> None:
    with pytest.raises(UnknownComponentError, match="entry point 'nothing', and there is no such module or file"):
        check_plugin("nothing")


def test_a_folder_is_no_plugin(tmp_path: Path) -> None:
    with pytest.raises(UnknownComponentError, match=f"{tmp_path} is a folder: name the Python file of the plugin, or"):
        check_plugin(str(tmp_path))


def test_a_file_that_cannot_be_imported_is_a_finding(tmp_path: Path) -> None:
    (finding,) = check_plugin(plugin(tmp_path, "1 / 0"))
    assert "ZeroDivisionError" in finding.text


@pytest.mark.long
def test_the_contract_of_a_component_is_run(tmp_path: Path) -> None:
    assert run_contracts(plugin(tmp_path, SOUND)) == []
    breaching_plugin = plugin(tmp_path, "def plan(self, log, config, now_ms): return [DeletePrefix(0, 0, 'nothing')]")
    findings = run_contracts(breaching_plugin)
    assert findings
    assert {finding.where for finding in findings} == {"cleanup policy newest"}
    assert all("of CleanupPolicyContract failed" in finding.text for finding in findings)


def test_a_store_is_left_out_with_a_warning() -> None:
    findings = run_contracts("local")
    assert [(finding.severity, finding.where) for finding in findings] == [("warning", "segment store local")]


def test_a_component_that_cannot_be_opened_here_does_not_keep_the_others_from_their_contracts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tested = list[tuple[str, str]]()

    def no_failures(_plugin: str, components: list[tuple[str, str]], _titles: object) -> list[PluginFinding]:
        tested.extend(components)
        return []

    monkeypatch.setattr(contract_run, "_failures", no_failures)
    file = tmp_path / "acme_two.py"
    file.write_text(TWO, encoding="utf-8")
    assert run(["check-plugin", str(file), "--contracts", "--json"]) == 0
    assert "it cannot be opened here" in capsys.readouterr().out
    assert tested == [("cleanup_policies", "newest")]


def test_contract_tests_that_cannot_be_imported_are_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract_run, "contract_tests", lambda *_: "import no_such_module\n")
    (finding,) = run_contracts(plugin(tmp_path, SOUND))
    assert finding.severity == "error"
    assert "the contract tests cannot be imported" in finding.text
