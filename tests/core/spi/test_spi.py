from __future__ import annotations

import ast
import inspect
import pkgutil
from pathlib import Path

import pytest

import stratalog
from stratalog import errors, spi
from stratalog.errors import PluginClashError, PluginError, UnsupportedCompressionError
from stratalog.model import prepared_py
from stratalog.spi import Buffer, Codec, CodecTable, OpenContext, Provider, hooks

COMPONENTS = [
    "record_formats",
    "codecs",
    "index_formats",
    "extra_indexes",
    "segment_stores",
    "object_stores",
    "tier_layouts",
    "cleanup_policies",
    "services",
    "commands",
]
LISTENERS = [
    "on_log_opened",
    "on_log_recovered",
    "on_segment_rolled",
    "on_segment_offloaded",
    "on_segment_evicted",
    "on_log_cleaned",
    "on_log_uncleanable",
    "on_segments_deleted",
    "on_epoch_fenced",
    "on_log_dir_offline",
    "on_backpressure",
    "on_tiny_segments",
    "on_tier_unavailable",
    "on_tier_available",
]
SPECS = {name: spec for name, spec in vars(hooks).items() if name.startswith("stratalog_")}


def test_all_is_exactly_what_is_public() -> None:
    rooms = {module.name for module in pkgutil.iter_modules(spi.__path__)}
    public = {name for name in vars(spi) if name[0].isalpha()} - rooms - {"annotations"}
    assert set(spi.__all__) == public
    assert list(spi.__all__) == sorted(spi.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def test_the_contract_has_at_most_a_hundred_names() -> None:
    assert len(spi.__all__) <= 100


@pytest.mark.parametrize("name", spi.__all__)
def test_each_public_class_and_function_has_a_docstring(name: str) -> None:
    found = vars(prepared_py).get(name, getattr(spi, name))  # the docstrings of this module are for both twins
    if inspect.isclass(found) or inspect.isfunction(found):
        assert inspect.getdoc(found)


@pytest.mark.parametrize("module", [module.name for module in pkgutil.iter_modules(spi.__path__)])
def test_every_public_class_of_the_contract_is_exported(module: str) -> None:
    defined = ast.parse(Path(spi.__path__[0], f"{module}.py").read_text(encoding="utf-8")).body
    names = {node.name for node in defined if isinstance(node, ast.ClassDef) and not node.name.startswith("_")}
    assert names <= set(spi.__all__)


def test_the_hooks_are_those_of_the_contract() -> None:
    assert list(SPECS) == [f"stratalog_{name}" for name in COMPONENTS + LISTENERS]


@pytest.mark.parametrize("name", SPECS)
def test_each_hook_is_marked_documented_and_typed(name: str) -> None:
    spec = SPECS[name]
    options = getattr(spec, f"{hooks.PROJECT}_spec")
    assert not options["firstresult"]
    assert not options["historic"]
    assert inspect.getdoc(spec)
    signature = inspect.signature(spec, eval_str=True)
    assert signature.return_annotation is not signature.empty
    listens = name.removeprefix("stratalog_") in LISTENERS
    assert list(signature.parameters) == (["event"] if listens else [])
    assert (signature.return_annotation is None) == listens


def test_the_group_carries_the_contracts_major_version() -> None:
    assert f"{hooks.PROJECT}.v1" == hooks.CONTRACT_GROUP


def test_no_name_has_two_public_homes() -> None:
    assert set(spi.__all__) & {*stratalog.__all__, *errors.__all__} == set()


def open_nothing(context: OpenContext) -> Codec:
    raise AssertionError(context)


@pytest.mark.parametrize("name", ["a", "zstd", "a_1", "zip9"])
def test_a_provider_has_a_label(name: str) -> None:
    assert Provider(name=name, open=open_nothing, version=3).label == f"{name}@3"


@pytest.mark.parametrize("name", ["", "A", "1a", "_a", "a-b", "a.b", "a b", "a@1", "a\n", "é"])
def test_a_provider_name_is_persistent_and_plain(name: str) -> None:
    with pytest.raises(PluginError, match="provider name"):
        Provider(name=name, open=open_nothing)


@pytest.mark.parametrize("version", [0, -1])
def test_versions_start_at_one(version: int) -> None:
    with pytest.raises(PluginError, match="versions start at 1"):
        Provider(name="a", open=open_nothing, version=version)


class Plain(Codec):
    levels = None

    def compress(self, data: Buffer, *, level: int | None, magic: int) -> bytes:
        raise AssertionError(level, magic, data)

    def decompress(self, data: Buffer, *, limit_bytes: int, magic: int) -> memoryview:
        raise AssertionError(limit_bytes, magic, data)


class Third(Plain):
    id = 3


class Fourth(Plain):
    id = 4


def test_codecs_are_found_by_id_and_by_name() -> None:
    third, fourth = Third(), Fourth()
    table = CodecTable([("lz4", third), ("zstd", fourth)])
    assert table.by_id(3) is third
    assert table.by_name("zstd") is fourth
    assert [table.name_of(number) for number in (0, 3, 4)] == ["none", "lz4", "zstd"]


def test_a_codec_that_is_not_installed_is_reported() -> None:
    table = CodecTable([("lz4", Third())])
    for missing in (lambda: table.by_id(4), lambda: table.by_name("zstd"), lambda: table.name_of(4)):
        with pytest.raises(UnsupportedCompressionError, match="is installed"):
            missing()


def test_two_codecs_with_one_id_are_a_clash() -> None:
    """The codec that was registered last once decompressed the batches of the other one."""
    with pytest.raises(PluginClashError, match=r"codec 'other' and codec 'lz4' have the same id 3"):
        CodecTable([("lz4", Third()), ("other", Third())])
