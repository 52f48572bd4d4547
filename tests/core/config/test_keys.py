from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.config.engine_settings import EngineConfig, Limits
from stratalog.config.keys import LONG_MAX, LONG_MIN, Section, flat_names, key
from stratalog.config.topic import TopicConfig
from stratalog.errors import ConfigError, UnknownSettingError

SECTIONS = (TopicConfig, EngineConfig, Limits)


def _odd(value: int) -> str:
    return "" if value % 2 else "must be odd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample(Section):
    """A section with settings of each type."""

    title: ClassVar[str] = "Sample"

    switch: bool = key("switch", False, doc="A switch.")
    count: int = key("count", 5, at_least=1, at_most=9, check=_odd, doc="A count.")
    free: int = key("free", 0, doc="A number without bounds of its own.")
    ratio: float = key("ratio", 0.5, at_least=0, at_most=1, doc="A ratio.")
    name: str = key("name", "a", choices=("a", "b"), doc="A name.")
    words: tuple[str, ...] = key("words", (), doc="Some words.")
    picked: tuple[str, ...] = key("picked", (), choices=("x", "y"), doc="Some of these.")
    maybe: str | None = key("maybe", None, choices=("here", "there"), doc="Perhaps a word.")
    options: dict[str, object] = key("options", dict, doc="A table.")  # noqa: RUF009 - key makes a field, and of dict a factory
    deep_options: dict[str, object] = key("deep.options", dict, doc="A table with a dot in it.")  # noqa: RUF009 - the same


def sample(**values: object) -> Sample:
    return Sample.from_mapping(values, "test")


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("switch", True, True),
        ("switch", "true", True),
        ("switch", " TRUE ", True),
        ("switch", "no", False),
        ("switch", 1, True),
        ("switch", 0, False),
        ("count", 7, 7),
        ("count", "7", 7),
        ("count", " 7 ", 7),
        ("free", LONG_MAX, LONG_MAX),
        ("free", LONG_MIN, LONG_MIN),
        ("ratio", "0.25", 0.25),
        ("ratio", 1, 1.0),
        ("name", "b", "b"),
        ("words", "a, b,,c", ("a", "b", "c")),
        ("words", "", ()),
        ("words", ["a", "b,c"], ("a", "b,c")),
        ("words", ["", " a ", " "], (" a ",)),  # for example the name of a folder
        ("words", ("a",), ("a",)),
        ("words", [Path("data/one")], ("data/one",)),
        ("picked", "y,x", ("y", "x")),
        ("maybe", "here", "here"),
        ("maybe", None, None),
        ("maybe", "", None),
        ("options", {"a": {"b": 1}}, {"a": {"b": 1}}),
        ("options", {}, {}),
    ],
)
def test_values_are_converted(name: str, value: object, wanted: object) -> None:
    converted = getattr(sample(**{name: value}), name)
    assert converted == wanted
    assert type(converted) is type(wanted)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("switch", "maybe"),
        ("switch", 2),
        ("switch", None),
        ("count", "seven"),
        ("count", 7.0),
        ("count", True),
        ("count", None),
        ("count", ""),
        ("count", "7" * 5000),
        ("count", -1),
        ("count", 11),
        ("count", 4),
        ("free", LONG_MAX + 1),
        ("free", LONG_MIN - 1),
        ("ratio", "nan"),
        ("ratio", float("nan")),
        ("ratio", "inf"),
        ("ratio", 10**400),
        ("ratio", 1.001),
        ("ratio", False),
        ("name", "c"),
        ("name", 5),
        ("words", 5),
        ("words", None),
        ("words", ["a", 5]),
        ("words", b"ab"),
        ("picked", "x,z"),
        ("maybe", "elsewhere"),
        ("options", [("a", 1)]),
        ("options", "a=1"),
        ("options", {1: 2}),
    ],
)
def test_values_that_are_wrong_name_setting_value_and_source(name: str, value: object) -> None:
    """NaN is neither below nor above a bound. An integer without bounds could exceed the 64 bits of its storage."""
    with pytest.raises(ConfigError) as caught:
        sample(**{name: value})
    assert str(caught.value).startswith(f"{name}=")
    assert "source=test" in str(caught.value)
    assert not isinstance(caught.value, UnknownSettingError)


def test_bounds_are_inclusive_and_reported() -> None:
    assert (sample(count=1).count, sample(count=9).count) == (1, 9)
    with pytest.raises(ConfigError, match="must be at least 1"):
        sample(count=0)
    with pytest.raises(ConfigError, match="must be at most 9"):
        sample(count=10)
    with pytest.raises(ConfigError, match="must be odd"):
        sample(count=2)
    with pytest.raises(ConfigError, match="must be one of a, b"):
        sample(name="c")
    with pytest.raises(ConfigError, match="must be some of x, y"):
        sample(picked="z")


def test_an_unknown_name_proposes_the_nearest() -> None:
    with pytest.raises(UnknownSettingError) as caught:
        sample(swich=True)
    assert (caught.value.name, caught.value.source, caught.value.nearest) == ("swich", "test", "switch")
    with pytest.raises(UnknownSettingError) as caught:
        sample(zzzzzzz=True)
    assert not caught.value.nearest


def test_each_section_has_a_table_of_its_own() -> None:
    assert sample().options is not sample().options


def test_replacing_leaves_the_rest_and_the_original() -> None:
    first = sample(count=7, words="a")
    second = first.replaced({"words": "b"}, "test")
    assert (second.count, second.words, first.words) == (7, ("b",), ("a",))


def test_tables_are_joined_with_dots_except_where_a_setting_is_one() -> None:
    """A setting of a plugin whose value is a table must not be split into unknown names."""
    values = {"deep": {"options": {"endpoint": {"url": "x"}}}, "count": 3}
    assert Sample.from_mapping(values, "test").deep_options == {"endpoint": {"url": "x"}}
    with pytest.raises(UnknownSettingError, match=r"deep\.other\.url"):
        Sample.from_mapping({"deep": {"other": {"url": "x"}}}, "test")


def test_a_setting_in_two_spellings_is_an_error() -> None:
    assert flat_names({"a": {"b": {"c": 1}, "d": 2}}, "test") == {"a.b.c": 1, "a.d": 2}
    with pytest.raises(ConfigError, match=r"a\.b is given twice source=test"):
        flat_names({"a": {"b": 1}, "a.b": 1}, "test")


samples = st.fixed_dictionaries(
    {},
    optional={
        "switch": st.booleans(),
        "count": st.sampled_from([1, 3, 5, 7, 9]),
        "free": st.integers(LONG_MIN, LONG_MAX),
        "ratio": st.floats(0, 1),
        "name": st.sampled_from(["a", "b"]),
        "words": st.lists(st.text(max_size=4), max_size=3),
        "maybe": st.none() | st.sampled_from(["here", "there"]),
        "options": st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    },
)


@given(samples, st.booleans())
def test_a_written_setting_is_read_back(values: dict[str, object], only_changed: bool) -> None:  # noqa: FBT001 - drawn
    """A folder with a comma in its name was once read back as two folders."""
    settings = sample(**values)
    mapping = settings.to_mapping(only_changed=only_changed)
    assert Sample.from_mapping(mapping, "test") == settings
    if only_changed:
        assert all(value != Sample().to_mapping()[name] for name, value in mapping.items())
    else:
        assert set(mapping) == set(Sample.keys())


def test_words_are_written_as_kafka_writes_them() -> None:
    assert TopicConfig.from_mapping({"cleanup.policy": ["compact", "delete"]}, "test").to_mapping(
        only_changed=True
    ) == {"cleanup.policy": "compact,delete"}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_default_keeps_its_own_bounds(section: type[Section]) -> None:
    assert section.from_mapping(section().to_mapping(), "defaults") == section()


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_is_described(section: type[Section]) -> None:
    described = section.keys()
    assert len(described) == len(set(section.__slots__) - {"sections", "refusal"})  # slots for the settings of plugins
    assert section.title
    for name, setting in described.items():
        assert name == setting.name
        assert setting.doc.endswith(".")


@pytest.mark.parametrize("section", SECTIONS)
def test_settings_cross_process_borders(section: type[Section]) -> None:
    assert pickle.loads(pickle.dumps(section())) == section()  # noqa: S301 - our own bytes


class Index:
    """An integer type like those of NumPy: it is no ``int``, but has ``__index__``."""

    def __index__(self) -> int:
        return 1024


def test_an_integer_of_a_library_is_accepted_and_15_0_is_refused() -> None:
    assert TopicConfig.from_mapping({"segment.bytes": Index()}, "here").segment_bytes == 1024
    for value in (15.0, True, b"15"):
        with pytest.raises(ConfigError, match="is not of type int"):
            TopicConfig.from_mapping({"segment.bytes": value}, "here")


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="the name of a setting must be text, not 5 source=here"):
        TopicConfig.from_mapping({5: 1}, "here")  # type: ignore[dict-item]  # the test passes what a type checker refuses
    with pytest.raises(ConfigError, match="not 5 in segment"):
        TopicConfig.from_mapping({"segment": {5: 1}}, "here")
