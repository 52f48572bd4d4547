"""Skeleton of a plugin: a distribution that can be installed, and tests that fail until the methods are written."""

from __future__ import annotations

import collections.abc
import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

import stratalog
from stratalog import errors, spi
from stratalog.errors import ConfigError
from stratalog.errors.system import log_dir_error
from stratalog.registry.component_kinds import KINDS, ComponentKind
from stratalog.registry.registry import Registry
from stratalog.registry.result_types import members_of
from stratalog.testing.contract_run import CONTRACTS

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*\Z")
_FURTHER_PARTS: Final[Mapping[str, tuple[type[Any], ...]]] = {  # Any: classes of every kind
    "index_formats": (spi.IndexBuilder, spi.IndexReader),
    "extra_indexes": (spi.ExtraIndexBuilder, spi.ExtraIndexReader),
    "segment_stores": (spi.LogFiles, spi.SegmentFile, spi.IndexFile),
}
_ATTRIBUTES: Final = {
    "record_formats": ["magic = 3"],
    "codecs": ["id = 7", "levels = None"],
    "index_formats": ["role = IndexRole.OFFSET", 'suffix = ".positions"', "entry_bytes = 8"],
}
_FIXTURES: Final = {
    "segment_stores": (
        "    @pytest.fixture\n"
        "    def provider(self):\n"
        "        return PROVIDER\n\n"
        "    @pytest.fixture\n"
        "    def open_store(self, tmp_path):\n"
        "        def opened(*, read_only=False):\n"
        "            return PROVIDER.open(open_context(location=str(tmp_path / 'data'), read_only=read_only))\n\n"
        "        return opened\n"
    ),
    "object_stores": (
        "    @pytest.fixture\n"
        "    def store(self):\n"
        "        return PROVIDER.open(open_context(location='SCHEME://bucket/prefix'))\n"
    ),
    "record_formats": (
        "    @pytest.fixture\n"
        "    def codec(self):\n"
        "        return installed_codecs().by_name('gzip')\n\n"
        "    @pytest.fixture\n"
        "    def record_format(self):\n"
        "        return PROVIDER.open(open_context(codecs=installed_codecs()))\n"
    ),
}


def kind_words() -> tuple[str, ...]:
    """Return the name of each kind of component as ``new_plugin`` expects it, such as ``cleanup-policy``."""
    return tuple(kind.title.replace(" ", "-") for kind in KINDS)


def new_plugin(word: str, name: str, folder: Path) -> list[Path]:
    """Write the skeleton of a plugin with one component, and return the written files.

    Args:
        word: kind of the component, one of ``kind_words()``.
        name: name of the component, ``[a-z][a-z0-9_]*``.
        folder: parent of the new folder ``stratalog-NAME``, which must not exist. In NAME, ``-`` replaces ``_``.

    Raises:
        ConfigError: the kind or the name is wrong, an installed plugin offers a component with this kind and name, or
            the folder ``stratalog-NAME`` exists.
        LogDirError: a file cannot be written, for example because the disk is full (DiskFullError).
    """
    kind = next((candidate for candidate in KINDS if candidate.title.replace(" ", "-") == word), None)
    if kind is None:
        raise ConfigError(f"{word!r} is not a kind of component; the kinds are {', '.join(kind_words())}")
    if not _NAME.match(name):
        raise ConfigError(f"name {name!r} is not of the form [a-z][a-z0-9_]*")
    for plugin in Registry.load().plugins():
        if any(offer.name == name for offer in plugin.offers.get(kind.key, ())):
            raise ConfigError(f"plugin {plugin.name} already offers the {kind.title} {name!r}: choose another name")
    project = folder / f"stratalog-{name.replace('_', '-')}"
    if project.exists():
        raise ConfigError(f"{project} exists already: choose another name, or remove the folder")
    module = f"stratalog_{name}"
    texts = {
        "pyproject.toml": _project(name, module),
        f"{module}.py": _module(kind, name),
        f"tests/test_{name}.py": _tests(kind, name, module),
    }
    try:
        for path, text in texts.items():
            (project / path).parent.mkdir(parents=True, exist_ok=True)
            (project / path).write_text(text, encoding="utf-8")
    except OSError as error:
        shutil.rmtree(project, ignore_errors=True)  # the next call would refuse the folder
        raise log_dir_error(error, str(project)) from error
    return [project / path for path in texts]


def _project(name: str, module: str) -> str:
    return textwrap.dedent(f"""\
        [build-system]
        requires = ["hatchling>=1.27"]
        build-backend = "hatchling.build"

        [project]
        name = "stratalog-{name.replace("_", "-")}"
        version = "0.1.0"
        requires-python = ">=3.11"
        dependencies = ["stratalog"]

        [project.optional-dependencies]
        test = ["stratalog[testing]"]

        [project.entry-points."stratalog.v1"]
        {name} = "{module}"

        [tool.hatch.build.targets.wheel]
        only-include = ["{module}.py"]
        """)


def _module(kind: ComponentKind, name: str) -> str:
    parts = [kind.component, *_FURTHER_PARTS.get(kind.key, ())]
    classes = "\n\n\n".join(
        _class(part, name, _ATTRIBUTES.get(kind.key, []) if not row else []) for row, part in enumerate(parts)
    )
    schemes = f', schemes=frozenset({{"{name.replace("_", "-")}"}})' if kind.has_schemes else ""
    class_name = _class_name(kind.component, name)
    provider = f'PROVIDER = Provider(name="{name}", open=lambda context: {class_name}(){schemes})'
    hook = f"@hookimpl\ndef {kind.hook}():\n    return [PROVIDER]"
    body = f"{classes}\n\n\n{provider}\n\n\n{hook}\n"
    title = f'"""The {kind.title} ``{name}``."""'
    return f"{title}\n\nfrom __future__ import annotations\n\n{_imports(body)}\n\n\n{body}"


def _class_name(part: type[object], name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_")) + part.__name__


def _class(part: type[object], name: str, attributes: list[str]) -> str:
    lines = [f"class {_class_name(part, name)}({part.__name__}):"]
    lines += [f'    """{(part.__doc__ or "").strip().splitlines()[0]}"""', ""]
    lines += [f"    {attribute}" for attribute in attributes] + ([""] if attributes else [])
    for method, member in members_of(part):
        declared = member.fget if isinstance(member, property) else member
        if not getattr(declared, "__isabstractmethod__", False):
            continue
        lines += ["    @property"] if isinstance(member, property) else []
        lines += [f"    def {method}{_signature(declared)}:"]
        lines += [f"        {part_line}" for part_line in _body(part, method, inspect.getdoc(declared) or "")] + [""]
    return "\n".join(lines).rstrip()


def _signature(declared: Any) -> str:  # Any: a method of any class
    """Return the signature of a method as source text. Annotations are strings."""
    signature = inspect.signature(declared)
    parts, has_star = list[str](), False
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not has_star:
            parts.append("*")
            has_star = True
        annotation = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
        default = "" if parameter.default is parameter.empty else f" = {_value(parameter.default)}"
        parts.append(f"{parameter.name}{annotation}{default}")
    return re.sub(r"\bEntry\b", "OffsetPosition", f"({', '.join(parts)}) -> {signature.return_annotation}")


def _value(default: object) -> str:
    return str(default) if isinstance(default, Enum) else repr(default)


def _body(part: type[object], method: str, doc: str) -> Iterator[str]:
    first = " ".join(doc.split("\n\n", maxsplit=1)[0].split())
    yield f'"""{first}"""'
    yield f'raise NotImplementedError("write {part.__name__}.{method}: see its docstring in stratalog.spi")'


def _imports(body: str) -> str:
    unimported = set(re.findall(r"\b[A-Z]\w+\b|\bhookimpl\b", re.sub(r'""".*?"""', "", body, flags=re.DOTALL)))
    places = [
        ("collections.abc", dir(collections.abc)),
        ("stratalog", stratalog.__all__),
        ("stratalog.errors", errors.__all__),
        ("stratalog.spi", spi.__all__),
    ]
    lines = list[str]()
    for place, names in places:
        imported = sorted(unimported & set(names))
        unimported -= set(imported)
        lines += [f"from {place} import {', '.join(imported)}"] if imported else []
    return "\n".join(lines)


def _tests(kind: ComponentKind, name: str, module: str) -> str:
    contract, fixture = CONTRACTS[kind.key]
    default_fixture = f"    @pytest.fixture\n    def {fixture}(self):\n        return PROVIDER.open(open_context())\n"
    body = _FIXTURES.get(kind.key, default_fixture).replace("SCHEME", name.replace("_", "-"))
    codecs = "from stratalog.testing.contract_run import installed_codecs\n" if "installed_codecs" in body else ""
    return (
        f'"""The contract of the {kind.title} ``{name}``: fill in ``{module}`` until all tests pass."""\n\n'
        f"import pytest\n\nfrom {module} import PROVIDER\nfrom stratalog.testing import open_context\n{codecs}"
        f"from stratalog.testing.contracts import {contract}\n\n\n"
        f"class Test{_class_name(kind.component, name)}({contract}):\n{body}"
    )
