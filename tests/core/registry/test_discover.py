from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stratalog.errors import PluginError, PluginImportError
from stratalog.registry.discover import (
    Candidate,
    ambiguity,
    find_candidates,
    import_named,
    install_hint,
    select,
)

Install = Callable[..., None]


def a_candidate(name: str, distribution: str = "acme") -> Candidate:
    return Candidate(name, distribution, "1.0", importlib.metadata.EntryPoint(name, f"{name}_plugin", "stratalog.v1"))


def found(name: str) -> Candidate:
    return next(candidate for candidate in find_candidates() if candidate.name == name)


def test_finding_reads_names_and_versions_and_imports_nothing(install_distribution: Install) -> None:
    install_distribution(
        "acme-tier", version="2.3", entry_points={"acme": "acme_bomb"}, modules={"acme_bomb": "raise SystemExit"}
    )
    candidate = found("acme")
    assert (candidate.distribution, candidate.version) == ("acme-tier", "2.3")
    assert "acme_bomb" not in sys.modules


def test_entry_points_of_another_contract_version_are_not_found(install_distribution: Install) -> None:
    install_distribution("acme-tier", entry_points={"acme": "acme_plugin"})
    assert "acme" not in {candidate.name for candidate in find_candidates("stratalog.v2")}


def test_candidates_come_by_name_whatever_the_order_on_disk(install_distribution: Install) -> None:
    install_distribution("zz-dist", entry_points={"bb": "x", "aa": "x"})
    install_distribution("aa-dist", entry_points={"cc": "x"})
    names = [candidate.name for candidate in find_candidates()]
    assert names == sorted(names)
    assert {"aa", "bb", "cc"} <= set(names)


def test_a_distribution_without_metadata_is_found_without_a_name(install_distribution: Install) -> None:
    install_distribution("broken", entry_points={"acme": "acme_plugin"}, metadata=False)
    assert (found("acme").distribution, found("acme").version) == ("", "")


def test_loading_returns_the_module_or_the_object_in_it(install_distribution: Install) -> None:
    install_distribution(
        "acme",
        entry_points={"whole": "acme_plugin", "part": "acme_plugin:plugin"},
        modules={"acme_plugin": "plugin = object()"},
    )
    module = found("whole").load()
    assert module is sys.modules["acme_plugin"]
    assert found("part").load() is sys.modules["acme_plugin"].plugin


def test_a_missing_module_names_the_extra_that_brings_it(install_distribution: Install) -> None:
    install_distribution(
        "acme-tier",
        entry_points={"acme": "acme_plugin"},
        modules={"acme_plugin": "import no_such_lib.deep"},
        requires=["pluggy>=1", "no-such-lib>=3 ; extra == 'lib'", "no_such_lib; extra == 'all'", "x; extra == 'all'"],
    )
    with pytest.raises(PluginImportError) as caught:
        found("acme").load()
    assert caught.value.install == "acme-tier[lib]"
    assert "pip install 'acme-tier[lib]'" in str(caught.value)
    assert "no_such_lib" in str(caught.value)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_missing_module_that_no_requirement_names_is_no_package_to_install(install_distribution: Install) -> None:
    install_distribution(
        "acme", entry_points={"acme": "acme_plugin"}, modules={"acme_plugin": "import no_such_lib.deep"}
    )
    with pytest.raises(PluginImportError) as caught:
        found("acme").load()
    assert caught.value.install == ""
    assert "No module named 'no_such_lib'" in str(caught.value)
    assert "pip" not in str(caught.value)


def test_an_entry_point_without_its_module_advises_to_install_the_distribution_again(
    install_distribution: Install,
) -> None:
    install_distribution("acme-tier", entry_points={"acme": "acme_gone"})
    with pytest.raises(PluginImportError) as caught:
        found("acme").load()
    assert caught.value.install == "acme-tier"


@pytest.mark.parametrize(
    "source",
    ["from pluggy import no_such_name", "from acme_plugin import no_such_name", "raise ImportError('no driver')"],
)
def test_a_failed_import_without_a_missing_module_names_no_package_to_install(
    install_distribution: Install, source: str
) -> None:
    install_distribution(
        "acme", entry_points={"acme": "acme_plugin"}, modules={"acme_plugin": source}, requires=["pluggy"]
    )
    with pytest.raises(PluginImportError, match=r"no_such_name|no driver") as caught:
        found("acme").load()
    assert caught.value.install == ""
    with pytest.raises(PluginImportError, match=r"no_such_name|no driver") as caught:
        import_named("acme_plugin")
    assert caught.value.install == ""


@pytest.mark.parametrize("source", ["1 / 0", "def oops(:"])
def test_other_failures_of_an_import_name_plugin_and_distribution(install_distribution: Install, source: str) -> None:
    install_distribution("acme-tier", entry_points={"acme": "acme_plugin"}, modules={"acme_plugin": source})
    with pytest.raises(PluginError, match=r"plugin 'acme' of acme-tier raised") as caught:
        found("acme").load()
    assert not isinstance(caught.value, PluginImportError)


def test_an_attribute_that_is_missing_is_no_missing_module(install_distribution: Install) -> None:
    install_distribution("acme", entry_points={"acme": "acme_plugin:nothing"}, modules={"acme_plugin": ""})
    with pytest.raises(PluginError, match="nothing"):
        found("acme").load()


def test_a_plugin_that_explains_its_own_failure_is_quoted(install_distribution: Install) -> None:
    source = "from stratalog.errors import PluginImportError\nraise PluginImportError('no driver', 'acme', 'acme[gpu]')"
    install_distribution("acme", entry_points={"acme": "acme_plugin"}, modules={"acme_plugin": source})
    with pytest.raises(PluginImportError) as caught:
        found("acme").load()
    assert caught.value.install == "acme[gpu]"


def test_modules_named_by_the_caller_are_imported() -> None:
    assert import_named("stratalog.spi") is sys.modules["stratalog.spi"]


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("stratalog_compactoin", "'stratalog_compactoin': CHECK; did you mean 'stratalog_compaction'"),
        (
            "stratalog_compaction.delte",
            "'stratalog_compaction.delte': CHECK; did you mean 'stratalog_compaction.delete'",
        ),
        ("qqqqzzzz.plugin", "'qqqqzzzz': CHECK plugin=qqqqzzzz.plugin"),
    ],
)
def test_a_missing_module_of_the_settings_is_reported_as_a_wrong_name(module: str, told: str) -> None:
    with pytest.raises(PluginImportError) as caught:
        import_named(module)
    assert told.replace("CHECK", "correct plugins.modules") in str(caught.value)
    assert caught.value.plugin == module
    assert "pip" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "advice"), [("import no_such_lib", ""), ("raise ModuleNotFoundError('', name='s3fs')", "stratalog[s3]")]
)
def test_an_extra_is_advised_only_if_it_has_the_missing_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, advice: str
) -> None:
    (tmp_path / "acme_lacking.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginImportError, match="plugin module 'acme_lacking' cannot be imported") as caught:
        import_named("acme_lacking")
    assert caught.value.install == advice


@pytest.mark.parametrize("source", ["1 / 0", "def oops(:"])
def test_other_failures_of_a_named_module_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    (tmp_path / "acme_failing.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginError, match="importing plugin module 'acme_failing' raised"):
        import_named("acme_failing")


def test_the_smallest_extra_is_proposed() -> None:
    lines = ["s3fs; extra == 'all'", "rich; extra == 'all'", 's3fs>=1 ; extra == "s3"', "rich; extra == 'cli'"]
    assert install_hint("stratalog", lines, "s3fs") == "stratalog[s3]"
    assert install_hint("stratalog", lines, "rich") == "stratalog[cli]"


def test_a_requirement_without_extra_is_proposed_with_its_version() -> None:
    assert install_hint("acme", ["Some.Lib>=2 ; python_version > '3'"], "some_lib") == "Some.Lib>=2"


def test_no_requirement_of_that_name_proposes_nothing() -> None:
    assert not install_hint("acme", ["other; extra == 'x'"], "lib")


@pytest.mark.parametrize(
    ("allow", "block", "wanted"),
    [
        ((), (), {"a", "b"}),
        (("a",), (), {"a"}),
        ((), ("a",), {"b"}),
        (("a", "b"), ("b",), {"a"}),
        (("Acme:a",), (), {"a"}),
        (("other:a",), (), set()),
        ((), ("acme:b",), {"a"}),
        ((), ("other:b",), {"a", "b"}),
    ],
)
def test_allow_and_block(allow: tuple[str, ...], block: tuple[str, ...], wanted: set[str]) -> None:
    candidates = [a_candidate("a"), a_candidate("b")]
    selection = select(candidates, allow, block)
    assert {candidate.name for candidate in selection.to_import} == wanted
    assert {candidate.name for candidate in selection.blocked} == {"a", "b"} - wanted


def test_an_allowed_name_without_a_plugin_is_missing() -> None:
    assert select([a_candidate("a")], ("a", "typo", "acme:a", "acme:b"), ()).missing == ("acme:b", "typo")


def test_a_name_in_two_distributions_is_refused_until_one_is_blocked() -> None:
    """A distribution could give its entry point the name of an allowed one. It must not be imported in its place."""
    genuine, evil = a_candidate("local", "stratalog"), a_candidate("local", "evil")
    selection = select([evil, genuine], ("local",), ())
    assert selection.to_import == ()
    assert selection.ambiguous == (evil, genuine)
    text = str(ambiguity(genuine, selection.ambiguous))
    assert "evil 1.0" in text
    assert "stratalog 1.0" in text
    assert select([evil, genuine], (), ("evil:local",)).to_import == (genuine,)
    assert select([evil, genuine], ("stratalog:local",), ()).to_import == (genuine,)
