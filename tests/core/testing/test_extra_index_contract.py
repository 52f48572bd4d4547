"""Extra indexes that break one rule each, and the test of the contract that notices it."""

from __future__ import annotations

from typing import Any

import pytest

from stratalog import RecordColumns
from stratalog.config.topic import TopicConfig
from stratalog.model.batches import Buffer
from stratalog.spi import ExtraIndex, ExtraIndexBuilder, ExtraIndexReader
from stratalog.testing.contracts import ExtraIndexContract


class Says(ExtraIndexReader):
    def __init__(self, answer: Any) -> None:  # Any: whatever its author returns
        self.answer = answer

    def may_hold_key(self, key: bytes) -> bool:
        del key
        return self.answer  # type: ignore[no-any-return] # as above


class OneByte(ExtraIndexBuilder):
    def add(self, records: RecordColumns) -> None:
        """Note nothing."""

    def finish(self) -> Buffer:
        return b"1"


class Fixed(ExtraIndex):
    """Answers all questions alike."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def builder(self, config: TopicConfig) -> ExtraIndexBuilder:
        del config
        return OneByte()

    def reader(self, data: Buffer) -> ExtraIndexReader:
        del data
        return Says(self.answer)


class Contract(ExtraIndexContract):
    __test__ = False


def test_the_contract_takes_an_index_that_denies_nothing() -> None:
    Contract().test_answers_are_true_or_false(Fixed(answer=True))
    Contract().test_no_key_that_is_there_is_denied(Fixed(answer=True))


@pytest.mark.parametrize("answer", [None, 0, 1, "yes"])
def test_the_contract_refuses_answers_that_are_no_bool(answer: object) -> None:
    with pytest.raises(AssertionError):
        Contract().test_answers_are_true_or_false(Fixed(answer))


@pytest.mark.parametrize("answer", [None, False, 0])
def test_the_contract_refuses_an_index_that_excludes_an_existing_key(answer: object) -> None:
    with pytest.raises(AssertionError):
        Contract().test_no_key_that_is_there_is_denied(Fixed(answer))
