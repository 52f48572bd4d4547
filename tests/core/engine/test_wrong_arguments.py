"""Calls of every public method of every public object with wrong types and extreme values; no log is damaged by them.

Methods and parameters are found by their signatures. New methods are therefore tested without a change here.
"""

import contextlib
import inspect
import itertools
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest

import stratalog
from inside import clients
from stratalog import Engine, Record
from stratalog.client.group_offsets import GroupOffsets
from stratalog.errors import ConfigError, StorageError, WrongTypeError
from stratalog.writing import WriteTarget

WRONG: Mapping[Any, tuple[Any, ...]] = {
    int: (15.0, 1.5, float("nan"), True, False, "1", b"1", "", [1], {}, object(), Decimal(1)),
    str: (1, True, b"t", ["t"], {}, object(), 1.5),
    bytes: (1, True, "k", [1], object()),
    bool: (0, 1, "no", 1.0, object(), [True]),
}
OTHERS = (15.0, object())  # values that no annotation allows
EXTREMES: Mapping[Any, tuple[Any, ...]] = {
    int: (-(1 << 70), -(1 << 63), -(1 << 31), -2, -1, 0, 1, (1 << 31) - 1, 1 << 31, (1 << 63) - 1, 1 << 63, 1 << 70),
    str: ("", "\0", "\ud800", "../x", "t" * 300, "t\n0", "-1"),
    bytes: (b"", b"\0" * 10_000),
    bool: (True, False),
}
RECORDS = [Record(key=b"%d" % number, value=b"v" * 50) for number in range(20)]
# methods that wait for ever with a timeout of 2^63 ms
FOREVER = frozenset({("Consumer", "poll"), ("Consumer", "records")})
# A log that these methods truncate below its tier does not open as leader again; test_truncate checks their bounds.
DROPS_RECORDS = frozenset({("Log", "truncate_to"), ("Log", "truncate_fully_and_start_at")})
UNCHECKED = {  # types of other libraries, protocols that plugins implement, Kafka's records, and values for serializers
    ("Producer", "send", "key"),
    ("Producer", "send", "value"),
    ("Engine", "producer", "options"),  # fields of ProducerOptions
    ("Log", "configure", "remote"),
    ("Log", "send_to", "to"),
    ("StaticLog", "send_to", "to"),
}


def kinds_of(function: Callable[..., Any], parameter: inspect.Parameter) -> list[Any]:
    """Return the types that the annotation of a parameter allows."""
    holder = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
    namespace = dict(inspect.unwrap(function).__globals__)
    try:
        kind = typing.get_type_hints(holder, namespace, include_extras=True)["it"]
    except NameError:
        return [object]
    kinds = list(typing.get_args(kind)) if typing.get_origin(kind) in {typing.Union, types.UnionType} else [kind]
    return [typing.get_args(allowed)[0] if typing.get_origin(allowed) is Annotated else allowed for allowed in kinds]


def is_open(kind: Any) -> bool:
    """Return True if any value fits the type: ``object``, ``Any``, or a protocol that plugins implement."""
    is_protocol = getattr(kind, "_is_protocol", False) and "__call__" not in vars(kind)
    return kind is object or kind is Any or is_protocol


def wrong_values(kinds: list[Any]) -> tuple[Any, ...]:
    value_kinds = [kind for kind in kinds if kind is not types.NoneType]
    values = WRONG.get(value_kinds[0], OTHERS) if len(value_kinds) == 1 else OTHERS
    return values if types.NoneType in kinds else (*values, None)


def fitting(kinds: list[Any], log: stratalog.Log) -> Any:
    """Return a valid value for a parameter that is not the one under test.

    Raises:
        LookupError: no simple or empty value of the type is useful.
    """
    if types.NoneType in kinds:
        return None
    kind = typing.get_origin(kinds[0]) or kinds[0]
    simple_values = {
        int: 0,
        str: "t",
        bytes: b"k",
        bool: False,
        bytearray: bytearray(),
        stratalog.TopicId: log.topic_id,
    }
    if kind in simple_values:
        return simple_values[kind]
    if kind is tuple and Ellipsis in typing.get_args(kinds[0]):
        return ()
    if kind is tuple:
        return tuple(fitting([item_kind], log) for item_kind in typing.get_args(kinds[0]))
    if isinstance(kind, type) and issubclass(kind, tuple):
        hints = typing.get_type_hints(kind)
        return kind(*(fitting([hints[name]], log) for name in kind.__annotations__))
    if isinstance(kind, type) and kind.__module__ == "collections.abc":
        return {} if issubclass(kind, Mapping) else [] if issubclass(kind, Iterable) else lambda *_: None
    raise LookupError(kind)


def empty(kinds: list[Any], log: stratalog.Log) -> Any:
    """Return a value as ``fitting`` does, or an empty object of the type, whose content is never read."""
    try:
        return fitting(kinds, log)
    except LookupError:
        kind = typing.get_origin(kinds[0]) or kinds[0]
        if not isinstance(kind, type) or is_open(kind):
            return None
        subclass: Any = type(kind)(kind.__name__, (kind,), {"__slots__": ()})
        subclass.__abstractmethods__ = frozenset()
        return object.__new__(subclass)


def methods(owner: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, member in inspect.getmembers_static(type(owner)):
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, function


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in {"self", "cls"}
    ]


Others = Callable[[list[Any], stratalog.Log], Any]


def call(
    owner: Any, name: str, function: Callable[..., Any], log: stratalog.Log, which: str, value: Any, make_other: Others
) -> Any:
    """Call a method with ``value`` for the parameter ``which``.

    The other parameters without a default get the results of ``make_other``.
    """
    positional, keywords = list[Any](), dict[str, Any]()
    for parameter in parameters(function):
        if parameter.name == which:
            argument = value
        elif parameter.default is not parameter.empty or parameter.kind in {
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        }:
            continue
        else:
            argument = make_other(kinds_of(function, parameter), log)
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY}:
            positional.append(argument)
        else:
            keywords[parameter.name] = argument
    return getattr(owner, name)(*positional, **keywords)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[tuple[Engine, list[Any]]]:
    """Yield an engine with records in both tiers, and a list with an object of each public class."""
    (folder / "tier").mkdir(exist_ok=True)
    uri = (folder / "tier").as_uri()
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(stratalog.open_engine(folder / "data", tier=uri))
        if not engine.topics():
            engine.create_topic("t", config={"remote.storage.enable": "true", "cleanup.policy": "delete"})
            for _ in range(3):
                engine.log("t", 0).append(RECORDS)
                engine.log("t", 0).roll()
            engine.offload()
        log, tier = engine.log("t", 0), engine.tier
        assert tier is not None
        assert log.topic_id is not None
        reader = stack.enter_context(stratalog.open_reader(uri))
        producer = stack.enter_context(engine.producer())
        consumer = stack.enter_context(engine.consumer(topics=["t"], group="g", auto_offset_reset="earliest"))
        target = folder / "target"
        target.mkdir(exist_ok=True)
        writer = stack.enter_context(WriteTarget(str(target)).open())
        of_tier = stack.enter_context(stratalog.open_reader(uri)).tier
        assert of_tier is not None
        offsets: GroupOffsets = clients(engine).offsets
        remote = of_tier.log(log.name, log.topic_id)
        yield engine, [engine, log, tier, producer, consumer, offsets, reader, reader.log("t", 0), remote, writer]


def contents(engine: Engine) -> tuple[Any, list[Record]]:
    log = engine.log("t", 0)
    return log.offsets(), list(log.records())


def test_an_argument_of_another_type_is_refused_and_nothing_is_done(tmp_path: Path) -> None:
    refusals, unchecked, failures = 0, set(), list[str]()
    with opened(tmp_path) as (engine, objects):
        log, before = engine.log("t", 0), contents(engine)
        for owner in objects:
            for name, function in methods(owner):
                for parameter in parameters(function):
                    kinds = kinds_of(function, parameter)
                    place = (type(owner).__name__, name, parameter.name)
                    if parameter.kind is parameter.VAR_KEYWORD or any(map(is_open, kinds)):
                        unchecked.add(place)
                        continue
                    for value in wrong_values(kinds):
                        try:
                            call(owner, name, function, log, parameter.name, value, empty)
                        except ConfigError as error:
                            is_named = f"{parameter.name} of {name}()" in str(error) and isinstance(
                                error, WrongTypeError
                            )
                            if is_named or hasattr(function, "checks_itself"):
                                refusals += 1
                                continue
                            failures.append(f"{place} {value!r}: {error}")
                        except Exception as error:  # noqa: BLE001 - told below
                            failures.append(f"{place} {value!r}: {type(error).__name__} {error}")
                        else:
                            failures.append(f"{place} {value!r}: taken")
        assert not failures, "\n".join(failures)
        assert unchecked <= UNCHECKED, "say of what kind the new parameters are, or why they are not checked"
        assert refusals > 1000
        assert contents(engine) == before
    with opened(tmp_path) as (engine, _):
        assert contents(engine) == before


@pytest.mark.parametrize(
    "kind", ["Engine", "Log", "Tier", "Producer", "Consumer", "GroupOffsets", "BucketReader", "StaticLog"]
)
@pytest.mark.long
def test_an_extreme_is_taken_or_refused_by_a_typed_error_and_the_engine_opens_and_reads(
    tmp_path: Path, kind: str
) -> None:
    failed, called = list[str](), 0
    with opened(tmp_path) as (engine, objects):
        owner, log = next(obj for obj in objects if type(obj).__name__ == kind), engine.log("t", 0)
        for name, function in methods(owner):
            for parameter in parameters(function):
                for value in itertools.chain.from_iterable(
                    EXTREMES.get(value_kind, ()) for value_kind in kinds_of(function, parameter)
                ):
                    if (kind, name) in DROPS_RECORDS or ((kind, name) in FOREVER and parameter.name == "timeout_ms"):
                        continue
                    called += 1
                    try:
                        result = call(owner, name, function, log, parameter.name, value, fitting)
                        if isinstance(result, Iterator):
                            list(itertools.islice(result, 5))
                    except (StorageError, LookupError) as error:
                        called -= type(error) is LookupError
                    except Exception as error:  # noqa: BLE001 - told below
                        failed.append(f"{name} {parameter.name}={value!r}: {type(error).__name__} {error}")
        assert not failed, "\n".join(failed)
        assert called > 5
    with opened(tmp_path) as (engine, _):
        before = contents(engine)
        assert engine.log("t", 0).append(RECORDS).base_offset == before[0].log_end
        with stratalog.open_reader((tmp_path / "tier").as_uri()) as reader:
            expected_values = {record.offset: record.value for record in before[1]}
            for result in reader.log("t", 0).records():
                assert expected_values.get(result.offset, result.value) == result.value
