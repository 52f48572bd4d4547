from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

from stratalog import errors
from stratalog.errors import CorruptionError, LogDirError, StorageError, StoreError

CLASSES = sorted(
    (found for found in vars(errors).values() if inspect.isclass(found) and issubclass(found, StorageError)),
    key=lambda found: found.__name__,
)
VALUES: dict[str, Callable[[str], Any]] = {
    "str": lambda name: f"the {name}",
    "int": lambda name: len(name) + 7,
    "tuple[tuple[int, str], ...]": lambda name: ((3, name), (4, "x")),
}

# Source: the codes of Kafka's protocol.
KAFKA_CODES = {
    "OFFSET_OUT_OF_RANGE": (1, ["OffsetOutOfRangeError"]),
    "CORRUPT_MESSAGE": (2, ["CorruptionError", "CorruptBatchError"]),
    "UNKNOWN_TOPIC_OR_PARTITION": (3, ["UnknownTopicError"]),
    "NOT_LEADER_OR_FOLLOWER": (6, ["NotLeaderOrFollowerError", "ClosedError"]),
    "MESSAGE_TOO_LARGE": (10, ["RecordTooLargeError"]),
    "INVALID_TOPIC_EXCEPTION": (17, ["InvalidTopicError"]),
    "RECORD_LIST_TOO_LARGE": (18, ["RecordBatchTooLargeError"]),
    "INVALID_TIMESTAMP": (32, ["InvalidTimestampError"]),
    "TOPIC_ALREADY_EXISTS": (36, ["TopicExistsError"]),
    "INVALID_CONFIG": (40, ["ConfigError", "UnknownSettingError"]),
    "UNSUPPORTED_FOR_MESSAGE_FORMAT": (43, ["UnsupportedForMessageFormatError"]),
    "POLICY_VIOLATION": (44, ["PolicyViolationError"]),
    "OUT_OF_ORDER_SEQUENCE_NUMBER": (45, ["OutOfOrderSequenceError"]),
    "INVALID_PRODUCER_EPOCH": (47, ["InvalidProducerEpochError"]),
    "INVALID_TXN_STATE": (48, ["InvalidTxnStateError"]),
    "INVALID_PRODUCER_ID_MAPPING": (49, ["InvalidProducerIdMappingError"]),
    "CONCURRENT_TRANSACTIONS": (51, ["ConcurrentTransactionsError"]),
    "TRANSACTION_COORDINATOR_FENCED": (52, ["TransactionCoordinatorFencedError"]),
    "KAFKA_STORAGE_ERROR": (56, ["LogDirError", "LogDirOfflineError", "DiskFullError", "StoreError"]),
    "FENCED_LEADER_EPOCH": (74, ["FencedEpochError", "StaleLeaderEpochError"]),
    "UNKNOWN_LEADER_EPOCH": (75, ["UnknownLeaderEpochError"]),
    "OFFSET_MOVED_TO_TIERED_STORAGE": (109, ["OffsetInTierError"]),
    "UNSUPPORTED_COMPRESSION_TYPE": (76, ["UnsupportedCompressionError"]),
    "THROTTLING_QUOTA_EXCEEDED": (89, ["LocalLimitError"]),
    "INVALID_RECORD": (87, ["InvalidRecordError"]),
    "PRODUCER_FENCED": (90, ["ProducerFencedError"]),
    "TRANSACTION_ABORTABLE": (120, ["TransactionAbortedError"]),
    "UNKNOWN_SERVER_ERROR": (
        -1,
        [
            "StorageError",
            "PluginError",
            "NoOffsetError",
            "SerializationError",
            "ReplicaError",
            "EpochsExhaustedError",
            "OffsetsOutOfOrderError",
            "UnexpectedAppendOffsetError",
        ],
    ),
}


def an_error(kind: type[StorageError], *, optional: bool = True) -> StorageError:
    """Return an error with a value for each argument by its type. ``optional``: also for arguments with a default."""
    values = list[Any]()
    for parameter in inspect.signature(kind).parameters.values():
        is_named = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        if is_named and (optional or parameter.default is parameter.empty):
            values.append(VALUES[parameter.annotation](parameter.name))
    return kind(*values)


COPIES: list[Callable[[StorageError], StorageError]] = [
    lambda error: pickle.loads(pickle.dumps(error)),  # noqa: S301 - our own bytes
    copy.copy,
    copy.deepcopy,
]


@pytest.mark.parametrize("optional", [True, False])
@pytest.mark.parametrize("duplicate", COPIES)
@pytest.mark.parametrize("kind", CLASSES)
def test_errors_cross_process_borders(
    kind: type[StorageError],
    duplicate: Callable[[StorageError], StorageError],
    optional: bool,  # noqa: FBT001 - a row
) -> None:
    error = an_error(kind, optional=optional)
    error.add_note("seen on the way")
    error_copy = duplicate(error)
    assert type(error_copy) is kind
    assert str(error_copy) == str(error)
    assert vars(error_copy) == vars(error)
    assert error_copy.__notes__ == ["seen on the way"]


@pytest.mark.parametrize("kind", CLASSES)
def test_each_argument_is_an_attribute_and_is_reported(kind: type[StorageError]) -> None:
    error = an_error(kind)
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.annotation in {"str", "int"} and name != "details":
            assert getattr(error, name) == VALUES[parameter.annotation](name)
            assert str(getattr(error, name)) in str(error)


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if issubclass(kind, CorruptionError)])
def test_corruption_names_file_and_position(kind: type[CorruptionError]) -> None:
    error = kind("the length is negative", "orders-0/00000000000000000000.log", 4711)
    assert (error.file, error.position) == ("orders-0/00000000000000000000.log", 4711)
    assert str(error).startswith("the length is negative file=orders-0/00000000000000000000.log position=4711")
    if kind is not CorruptionError:
        assert str(error).endswith(f": {kind.advice}")


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if issubclass(kind, LogDirError)])
def test_log_directories_are_named(kind: type[LogDirError]) -> None:
    assert " path=/data/one" in str(kind("it is not there", "/data/one"))


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if issubclass(kind, StoreError)])
def test_objects_are_named(kind: type[StoreError]) -> None:
    assert " key=segments/1" in str(kind("it is not there", "segments/1"))


@pytest.mark.parametrize("kind", CLASSES)
def test_each_error_has_a_docstring_and_its_advice_is_a_clause(kind: type[StorageError]) -> None:
    assert kind.__doc__
    assert kind.__doc__ != StorageError.__doc__ or kind is StorageError
    assert kind.advice == kind.advice.strip()
    assert not kind.advice or kind.advice[0].islower()
    assert not kind.advice.endswith(".")


def test_records_that_are_refused_are_counted_and_the_first_is_reported() -> None:
    text = str(errors.InvalidRecordError("bad records", ((3, "no key"), (9, "too old"))))
    assert text == "bad records records=2 first_index=3 first='no key'"
    assert str(errors.InvalidRecordError("no records")) == "no records"


def test_the_error_of_a_missing_plugin_names_the_package_to_install() -> None:
    error = errors.PluginImportError("no module named s3fs", "s3", "stratalog[s3]")
    assert str(error) == "no module named s3fs plugin=s3: install it with: pip install 'stratalog[s3]'"
    assert str(errors.PluginImportError("oops", "s3")) == "oops plugin=s3"


def test_an_unknown_setting_is_reported_with_the_nearest() -> None:
    assert str(errors.UnknownSettingError("retention", "a file", "retention.ms")) == (
        "unknown setting 'retention' source=a file; did you mean 'retention.ms'?"
    )
    assert str(errors.UnknownSettingError("x", "a file")) == "unknown setting 'x' source=a file"


def test_an_error_can_have_advice_for_its_cause() -> None:
    error = errors.SegmentGoneError("the plan is stale", "data/orders-0").advised("plan the read again")
    assert str(error) == "the plan is stale path=data/orders-0: plan the read again"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own bytes
    assert "plan the read again" not in str(errors.SegmentGoneError("gone", "data"))
    missing = errors.PluginImportError("no module named s3fs", "s3", "stratalog[s3]").advised("install s3fs")
    assert str(missing) == "no module named s3fs plugin=s3: install s3fs"


# --- the tree ----------------------------------------------------------------------------------------------------

_BRANCH = re.compile(r"(?P<indent>[│ ]*)(?:[├└]── )?(?P<name>\w+Error)\b(?P<rest>.*)")


def drawn_tree() -> dict[str, tuple[str, str]]:
    """Return the tree in the docstring of ``stratalog.errors``: for each class, its parent and its description."""
    tree = dict[str, tuple[str, str]]()
    path = list[tuple[int, str]]()
    for line in (errors.__doc__ or "").splitlines():
        match = _BRANCH.fullmatch(line)
        if not match:
            continue
        depth = len(line) - len(line.lstrip("│├└─ "))
        while path and path[-1][0] >= depth:
            path.pop()
        tree[match["name"]] = (path[-1][1] if path else "", match["rest"].strip())
        path.append((depth, match["name"]))
    return tree


def test_the_tree_of_the_docstring_is_the_tree_of_the_classes() -> None:
    bases = {kind.__name__: kind.__base__.__name__ if kind.__base__ else "" for kind in CLASSES}
    bases["StorageError"] = ""
    assert {name: parent for name, (parent, _) in drawn_tree().items()} == bases


def test_the_tree_marks_the_errors_that_may_be_retried() -> None:
    drawn = {name for name, (_, words) in drawn_tree().items() if "retriable" in words}
    assert drawn == {kind.__name__ for kind in CLASSES if kind.retriable}
    assert drawn


def test_every_exception_of_the_module_is_in_the_tree() -> None:
    exceptions = {
        name for name, member in vars(errors).items() if inspect.isclass(member) and issubclass(member, Exception)
    }
    assert exceptions == {kind.__name__ for kind in CLASSES}


@pytest.mark.parametrize("code", KAFKA_CODES)
def test_codes_are_those_of_kafkas_protocol(code: str) -> None:
    number, names = KAFKA_CODES[code]
    assert {name: getattr(errors, name).kafka_code for name in names} == dict.fromkeys(names, number)


def test_no_other_codes_are_used() -> None:
    assert {kind.kafka_code for kind in CLASSES} == {number for number, _ in KAFKA_CODES.values()}


def test_a_class_of_a_plugin_inherits_the_attributes_that_its_first_base_does_not_set() -> None:
    class StalledError(errors.PluginError, errors.StoreTimeoutError):
        """An error of a plugin's store."""

    assert (StalledError.kafka_code, StalledError.retriable) == (StoreError.kafka_code, True)


def test_errors_live_where_they_are_public() -> None:
    """The classes are defined in several files, but tracebacks and pickles must use the public module."""
    assert {kind.__module__ for kind in CLASSES} == {"stratalog.errors"}
    assert [kind.__name__ for kind in CLASSES] == sorted({*errors.__all__} - {"log_dir_error"})
