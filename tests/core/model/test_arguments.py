"""Checks of arguments: a public function refuses values that do not fit its annotations, before the call begins."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from stratalog.errors import ConfigError, StorageError, WrongTypeError
from stratalog.model.argument_rules import LONG_MAX, LONG_MIN, Between
from stratalog.model.arguments import CheckedArguments, NotNegative, checked, checks_itself
from stratalog.model.names import TopicPartition

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]  # as of an extra that is not installed


class Index:
    """An integer type like those of NumPy: it is no ``int``, but has ``__index__``."""

    def __index__(self) -> int:
        return 7


class Colour(enum.Enum):
    RED = 1


class Mute:
    def __repr__(self) -> str:
        raise ValueError


class Called(CheckedArguments):
    def number(
        self, at: int, epoch: Annotated[int, Between(0, 2147483647)] = 0, *, end: NotNegative | None = None
    ) -> tuple[Any, ...]:
        return at, epoch, end

    def texts(self, name: str, topics: Iterable[str] = (), *, flag: bool = False) -> tuple[Any, ...]:
        return name, list(topics), flag

    def places(self, *names: TopicPartition, **others: Any) -> tuple[Any, ...]:
        return names, others

    def mapping(self, offsets: Mapping[TopicPartition, int | None]) -> Any:
        return offsets

    def several(self, data: bytes | bytearray, call: Callable[[], object], pairs: Sequence[tuple[str, int]]) -> Any:
        return data, call, pairs

    def unknown(self, it: Missing, anything: object, colour: Colour = Colour.RED) -> Any:
        return it, anything, colour

    def nothing(self) -> None:
        """Take no argument."""

    @classmethod
    def made(cls, at: int) -> Any:
        return cls, at

    @staticmethod
    def still(at: int) -> int:
        return at


class Derived(Called):
    def added(self, at: int) -> int:
        return at


CALLED = Called()
DERIVED: Any = Derived()
ANY: Any = CALLED  # the tests pass wrong arguments, which a type checker refuses
FINE = TopicPartition("t", 0)


@pytest.mark.parametrize("value", [True, False, 15.0, 1.5, float("nan"), "1", b"1", None, [1], {}, object(), 1j])
def test_a_bool_or_an_object_without_index_is_no_integer(value: Any) -> None:
    with pytest.raises(WrongTypeError, match=r"^at of number\(\) must be an integer, not "):
        CALLED.number(value)
    assert issubclass(WrongTypeError, TypeError)
    assert issubclass(WrongTypeError, ConfigError)


def test_an_object_with_an_index_is_passed_on_as_an_int() -> None:
    result = CALLED.number(Index(), end=Index())  # type: ignore[arg-type]  # as numbers of libraries without types are
    assert result == (7, 0, 7)
    assert {type(value) for value in result} == {int}


@pytest.mark.parametrize(
    ("value", "fits"), [(LONG_MIN, True), (LONG_MAX, True), (LONG_MIN - 1, False), (1 << 200, False)]
)
def test_an_integer_fits_64_bits(value: int, fits: bool) -> None:  # noqa: FBT001 - a column
    if fits:
        assert CALLED.number(value) == (value, 0, None)
        return
    with pytest.raises(ConfigError, match=r"at of number\(\) must be from -9223372036854775808 to 9223372036854775807"):
        CALLED.number(value)


@pytest.mark.parametrize(
    "call", [lambda: CALLED.number(0, -1), lambda: CALLED.number(0, 1 << 31), lambda: CALLED.number(0, end=-1)]
)
def test_a_range_is_part_of_the_annotation(call: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match="must be from 0 to ") as caught:
        call()
    assert not isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    "call",
    [
        lambda: ANY.texts(b"t"),
        lambda: ANY.texts("t", "abc"),
        lambda: ANY.texts("t", [1]),
        lambda: ANY.texts("t", 5),
        lambda: ANY.texts("t", flag=1),
        lambda: ANY.texts("t", flag="no"),
        lambda: ANY.places("t-0"),
        lambda: ANY.places(("t", 0.0)),
        lambda: ANY.places(FINE, ("t", True)),
        lambda: ANY.places(("t", 0, 1)),
        lambda: ANY.mapping([]),
        lambda: ANY.mapping({"t-0": 1}),
        lambda: ANY.mapping({FINE: 1.5}),
        lambda: ANY.several("text", int, []),
        lambda: ANY.several(b"", 5, []),
        lambda: ANY.several(b"", int, [("a",)]),
        lambda: ANY.several(b"", int, [(1, 1)]),
        lambda: ANY.unknown(None, None, 1),
        lambda: ANY.made(1.0),
        lambda: ANY.still(1.0),
        lambda: DERIVED.added(1.0),
        lambda: DERIVED.number("1"),
        lambda: ANY.number(Mute()),
    ],
)
def test_another_type_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(WrongTypeError):
        call()


def test_an_accepted_argument_is_passed_on() -> None:
    assert CALLED.texts("t", iter(["a"]), flag=True) == ("t", ["a"], True)
    assert CALLED.places(FINE, ("u", 1), more=5) == ((FINE, TopicPartition("u", 1)), {"more": 5})  # type: ignore[arg-type]  # a pair will do
    assert CALLED.mapping({FINE: None}) == {FINE: None}
    assert CALLED.several(bytearray(b"x"), int, [("a", 1)]) == (b"x", int, [("a", 1)])
    assert CALLED.unknown(5, None) == (5, None, Colour.RED)
    assert Called.made(3) == (Called, 3)
    assert Derived().added(4) == Called.still(4) == 4


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not Unicode text"):
        CALLED.texts("\ud800")


def test_a_missing_argument_is_reported_as_python_does() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'at'"):
        CALLED.number()  # type: ignore[call-arg]  # the test passes what a type checker refuses


def test_a_bound_method_that_was_taken_before_the_first_call_is_checked_too() -> None:
    class Fresh(CheckedArguments):
        def take(self, at: int) -> int:
            return at

    bound = Fresh().take
    assert [bound(1), bound(2)] == [1, 2]
    with pytest.raises(WrongTypeError):
        bound(1.0)  # type: ignore[arg-type]  # the test passes what a type checker refuses


def test_a_replaced_method_stays_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fresh(CheckedArguments):
        def take(self, at: int) -> int:
            return at

    bound = Fresh().take
    monkeypatch.setattr(Fresh, "take", lambda _, at: -at)
    assert bound(1) == 1
    assert Fresh().take(1) == -1


def test_a_checked_method_looks_like_the_one_that_was_written() -> None:
    for _ in range(2):
        assert list(inspect.signature(Called.number).parameters) == ["self", "at", "epoch", "end"]
        assert Called.number.__name__ == "number"
        CALLED.number(1)


def test_a_method_without_arguments_is_as_it_was_written() -> None:
    assert not hasattr(Called.nothing, "__wrapped__")


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    size: Annotated[int, Between(1, 10)] = 5
    names: tuple[str, ...] = ()


def test_a_dataclass_checks_what_it_is_made_of() -> None:
    assert Options(size=Index()).size == 7  # type: ignore[arg-type]  # the test passes what a type checker refuses
    with pytest.raises(WrongTypeError, match=r"^size of Options\(\) must be an integer, not 5.0 of type float"):
        Options(size=5.0)  # type: ignore[arg-type]  # the test passes what a type checker refuses
    with pytest.raises(ConfigError, match="from 1 to 10, not 11"):
        Options(size=11)


def test_an_error_crosses_process_borders() -> None:
    import pickle  # noqa: PLC0415 - of this test alone

    with pytest.raises(StorageError) as caught:
        CALLED.number(1.5)  # type: ignore[arg-type]  # the test passes what a type checker refuses
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - our own bytes


def test_a_method_that_checks_itself_is_as_it_was_written() -> None:
    class Fresh(CheckedArguments):
        @checks_itself
        def take(self, at: int) -> Any:
            return at

    assert Fresh().take(1.5) == 1.5  # type: ignore[arg-type]  # the test passes what a type checker refuses
    assert not hasattr(Fresh.take, "__wrapped__")
