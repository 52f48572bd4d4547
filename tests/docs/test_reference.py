from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from stratalog.config.engine_settings import EngineConfig, Limits
from stratalog.config.keys import Section
from stratalog.config.settings_sources import read_settings
from stratalog.config.topic import TopicConfig
from stratalog.spi import Provider, hooks

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")
PLUGINS = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
SECTIONS: tuple[type[Section], ...] = (EngineConfig, Limits, TopicConfig)


def rows(page: str) -> Iterator[list[str]]:
    for line in page.splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """Return the module of scripts/generate_docs.py.

    Its slow functions run only once for all tests: they trace calls, draw charts and raise the example errors.
    """
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts/generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("cli_page", "errors_page", "path_pictures", "performance_blocks", "rooms_picture"):
        setattr(module, name, functools.cache(getattr(module, name)))
    return module


@pytest.fixture
def copied_root(tmp_path: Path) -> Path:
    for page in ("docs/reference/settings.md", "docs/plugins.md"):
        copied = tmp_path / page
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_text((ROOT / page).read_text(encoding="utf-8"), encoding="utf-8")
    return tmp_path


def test_the_pages_are_current(generator: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert generator.main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("page", "word"), [("docs/reference/settings.md", "retention.ms"), ("docs/plugins.md", "stratalog_codecs")]
)
def test_a_stale_page_is_named_and_written_again(
    generator: ModuleType, copied_root: Path, capsys: pytest.CaptureFixture[str], page: str, word: str
) -> None:
    file = copied_root / page
    current = file.read_text(encoding="utf-8")
    file.write_text(current.replace(f"| `{word}`", "| `something.else`"), encoding="utf-8")
    assert generator.main(["--check"], copied_root) == 1
    assert f"{page} is stale" in capsys.readouterr().out
    assert "something.else" in file.read_text(encoding="utf-8")
    assert generator.main([], copied_root) == 0
    assert file.read_text(encoding="utf-8") == current


def test_a_page_that_is_missing_is_written(generator: ModuleType, copied_root: Path) -> None:
    (copied_root / "docs/reference/settings.md").unlink()
    assert generator.main(["--check"], copied_root) == 1
    assert generator.main([], copied_root) == 0
    assert (copied_root / "docs/reference/settings.md").read_text(encoding="utf-8") == SETTINGS


def test_every_setting_is_documented_with_its_default_and_sentence(generator: ModuleType) -> None:
    documented = list(rows(SETTINGS))
    sections = [*SECTIONS, *(section for _, section in generator.provider_sections())]
    settings = [(section, name, setting) for section in sections for name, setting in section.keys().items()]
    assert [cells[0].strip("`") for cells in documented] == [name for _, name, _ in settings]
    for cells, (section, name, setting) in zip(documented, settings, strict=True):
        _, _, default, allowed, sentence = cells
        value = None if default == "none" else default.strip("`")
        read = section.from_mapping({name: value or ""} if value else {}, "page").to_mapping()
        assert read[name] == section().to_mapping()[name]
        assert sentence.replace("\\|", "|") == setting.doc
        assert all(choice in allowed for choice in setting.choices)


def test_the_example_of_a_settings_file_is_one() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", SETTINGS, re.DOTALL)
    settings = read_settings(tomllib.loads(example), {})
    assert settings.engine.tier == "s3://bucket/prefix"
    assert settings.limits.open_files == 256
    assert settings.topic_defaults == {"retention.ms": 86_400_000}


def test_every_hook_is_documented_with_its_arguments() -> None:
    documented = {cells[0].strip("`"): cells[1] for cells in rows(PLUGINS) if cells[0].startswith("`stratalog_")}
    specs = {name: spec for name, spec in vars(hooks).items() if name.startswith("stratalog_")}
    assert list(documented) == list(specs)
    for name, spec in specs.items():
        parameters = inspect.signature(spec, eval_str=True).parameters.values()
        arguments = re.findall(r"`(\w+): (\w+)\(([^)]*)\)`", documented[name])
        assert [argument for argument, _, _ in arguments] == [parameter.name for parameter in parameters]
        for (_, kind, fields), parameter in zip(arguments, parameters, strict=True):
            assert kind == parameter.annotation.__name__
            assert fields.split(", ") == list(parameter.annotation.__slots__)


def test_every_field_of_a_provider_is_documented() -> None:
    table = PLUGINS.partition("## Providers")[2].partition("## ")[0]
    documented = [cells[0].strip("`") for cells in rows(table)]
    assert sorted(documented) == sorted(field.name for field in dataclasses.fields(Provider))
