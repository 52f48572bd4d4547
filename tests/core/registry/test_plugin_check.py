from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from stratalog import open_engine
from stratalog.errors import PluginImportError, UnknownComponentError
from stratalog.registry.plugin_check import HEAVY_MODULES, PluginFinding, Severity, check_plugin
from stratalog.spi import (
    Buffer,
    Codec,
    Command,
    ExtraIndex,
    ExtraIndexBuilder,
    ExtraIndexReader,
    IndexBuilder,
    IndexFormat,
    IndexReader,
    IndexRole,
    OpenContext,
    Provider,
    Section,
    TopicConfig,
    key,
)

Install = Callable[..., None]
MakePlugin = Callable[..., types.ModuleType]


class Plain(Codec):
    id = 7
    levels = None

    def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
        del level, magic
        return bytes(data)

    def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        del limit_bytes, magic
        return memoryview(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodSection(Section):
    title: ClassVar[str] = "Good"

    speed: int = key("plain.speed", 3, at_least=1, at_most=9, doc="How fast.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BadSection(Section):
    speed: int = key("speed", 0, at_least=1, doc="How fast.")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietSection(Section):
    speed: int = key("speed", 1, doc="")


class Positions(IndexFormat[int]):
    """Index format that has an entry for each batch, and the role EXTRA, which an index format must not have."""

    role = IndexRole.EXTRA
    suffix = ".positions"
    entry_bytes = 4

    def builder(self, base_offset: int, config: TopicConfig, *, entries: Buffer = b"") -> IndexBuilder:
        raise AssertionError((base_offset, config, entries))

    def reader(self, entries: Buffer, base_offset: int) -> IndexReader[int]:
        raise AssertionError((entries, base_offset))

    def kept_bytes(self, entries: Buffer, base_offset: int, end_offset: int) -> int:
        raise AssertionError((entries, base_offset, end_offset))


def open_plain(context: OpenContext) -> Codec:
    del context
    return Plain()


def open_nothing() -> Codec:
    return Plain()


def plain(open_: Callable[..., Any] = open_plain, **changes: Any) -> Provider[Codec]:
    return Provider(name="plain", open=open_, **changes)


def texts(findings: list[PluginFinding], severity: Severity = Severity.ERROR) -> str:
    return "\n".join(f"{finding.where}: {finding.text}" for finding in findings if finding.severity is severity)


def test_a_good_plugin_has_no_findings(make_plugin: MakePlugin) -> None:
    assert (
        check_plugin(make_plugin("acme", codecs=[plain(topic_section=GoodSection, engine_section=GoodSection)])) == []
    )


@pytest.mark.parametrize("name", ["local", "formats", "s3", "compaction"])
def test_our_own_plugins_have_no_findings(name: str) -> None:
    assert check_plugin(name) == []


def test_an_unknown_name_lists_the_installed_ones() -> None:
    with pytest.raises(UnknownComponentError, match=r"'no-such'.*compaction.*local"):
        check_plugin("no-such")


def test_a_plugin_that_cannot_be_imported_is_one_finding(install_distribution: Install) -> None:
    install_distribution("acme", entry_points={"acme": "acme_x"}, modules={"acme_x": "import no_such_lib"})
    (finding,) = check_plugin("acme")
    assert (finding.severity, finding.where) == (Severity.ERROR, "plugin acme")
    assert "no_such_lib" in finding.text


def test_a_misspelt_hook_is_a_finding(make_plugin: MakePlugin) -> None:
    assert "did you mean stratalog_codecs" in texts(check_plugin(make_plugin("acme", codex=[])))


def test_a_hook_that_raises_is_a_finding(install_distribution: Install) -> None:
    source = "from stratalog.spi import hookimpl\n@hookimpl\ndef stratalog_codecs():\n    return 1 // 0\n"
    install_distribution("acme", entry_points={"acme": "acme_x"}, modules={"acme_x": source})
    assert "ZeroDivisionError" in texts(check_plugin("acme"))


def test_a_heavy_import_before_opening_is_a_finding(install_distribution: Install) -> None:
    source = "import torch\nfrom stratalog.spi import hookimpl\n@hookimpl\ndef stratalog_codecs():\n    return ()\n"
    assert "torch" in HEAVY_MODULES
    install_distribution("acme", entry_points={"acme": "acme_x"}, modules={"acme_x": source, "torch": ""})
    assert "importing it imports torch" in texts(check_plugin("acme"))


@pytest.mark.parametrize(
    ("provider", "told"),
    [
        (plain(schemes=frozenset({"s3"})), "only object stores have schemes"),
        (plain(open_=open_nothing), "open must have one argument, the context"),
        (plain(engine_section=BadSection), "the defaults of BadSection are refused"),
        (plain(engine_section=QuietSection), "has no doc"),
        (plain(topic_section=QuietSection), "must begin with 'plain.'"),
        (plain(engine_section=dict), "is not a subclass of Section"),
        (plain(open_=lambda _context: object()), "open returned object, which is not a Codec"),
        (plain(open_=lambda _context: 1 // 0), "opening it with default settings raised"),
        (plain(open_=lambda _context: _changed(id=0)), "id must be 1 to 7"),
        (plain(open_=lambda _context: _changed(id="7")), "id must be 1 to 7"),
        (plain(open_=lambda _context: _changed(levels=9)), "levels must be a range or None"),
    ],
)
def test_a_breach_of_the_contract_is_reported(make_plugin: MakePlugin, provider: Provider[Codec], told: str) -> None:
    findings = check_plugin(make_plugin("acme", codecs=[provider]))
    assert told in texts(findings)
    assert {finding.where for finding in findings} == {"codec plain"}


def _changed(**attributes: object) -> Codec:
    changed: Codec = type("Changed", (Plain,), attributes)()
    return changed


def test_the_report_names_the_right_hook_for_an_index_of_records(make_plugin: MakePlugin, tmp_path: Path) -> None:
    plugin = make_plugin("acme", index_formats=[Provider(name="positions", open=lambda _context: Positions())])
    assert "must be an ExtraIndex, which the hook stratalog_extra_indexes" in texts(check_plugin(plugin))
    with open_engine(tmp_path, plugins=[plugin]) as engine:
        config = {"index.formats": "offset,time,transaction,positions"}
        with pytest.raises(UnknownComponentError, match=r"'positions', an extra index: move it to index\.extra"):
            engine.create_topic("t", config=config)
        assert engine.topics() == {}


def test_a_name_offered_twice_is_reported(make_plugin: MakePlugin) -> None:
    assert "offers this name twice" in texts(check_plugin(make_plugin("acme", codecs=[plain(), plain()])))


def test_a_store_needs_a_well_formed_scheme_and_is_not_opened(make_plugin: MakePlugin) -> None:
    def refuse(context: OpenContext) -> Any:
        raise AssertionError(context)

    without_scheme = check_plugin(make_plugin("acme", object_stores=[plain(refuse)]))
    malformed = check_plugin(make_plugin("acme", object_stores=[plain(refuse, schemes=frozenset({"S3:"}))]))
    well_formed = check_plugin(make_plugin("acme", object_stores=[plain(refuse, schemes=frozenset({"s3"}))]))
    assert "serves no URI scheme" in texts(without_scheme)
    assert "scheme 'S3:' is not of the form" in texts(malformed)
    assert well_formed == []


def test_a_plugin_that_is_not_installed_is_only_a_warning(make_plugin: MakePlugin) -> None:
    def needy(_context: OpenContext) -> Codec:
        raise PluginImportError("no zip9", "acme", "acme[zip9]")

    findings = check_plugin(make_plugin("acme", codecs=[plain(needy)]))
    assert texts(findings) == ""
    assert "pip install 'acme[zip9]'" in texts(findings, Severity.WARNING)


def test_commands_are_checked_too(make_plugin: MakePlugin) -> None:
    commands = [Command("Do It", "", object), Command("fine", "Is fine.", object)]
    report = texts(check_plugin(make_plugin("acme", commands=commands)))
    assert "command Do It: its name" in report
    assert "command Do It: it has no help" in report
    assert "fine" not in report
    assert "its commands hook raised" in texts(check_plugin(make_plugin("acme", commands=lambda: 1 // 0)))


class _Extra(ExtraIndex):
    fields = "KEY"  # type: ignore[assignment]  # a mistake to be found

    def builder(self, config: TopicConfig) -> ExtraIndexBuilder:
        raise NotImplementedError

    def reader(self, data: Buffer) -> ExtraIndexReader:
        raise NotImplementedError


def test_an_extra_index_names_its_fields(make_plugin: MakePlugin) -> None:
    offer = Provider[ExtraIndex](name="extra", open=lambda _: _Extra())
    (finding,) = check_plugin(make_plugin("acme", extra_indexes=[offer]))
    assert (finding.where, "fields must be a Fields value" in finding.text) == ("extra index extra", True)
