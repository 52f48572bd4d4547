from __future__ import annotations

import pytest

from stratalog.errors import ConfigError
from stratalog.model.offsets import Durability, Isolation, LogOffsets

OFFSETS = LogOffsets(log_start=1, local_log_start=2, recovery_point=3, high_watermark=5, last_stable=4, log_end=6)


@pytest.mark.parametrize(
    ("isolation", "bound"),
    [
        ("log_end", OFFSETS.log_end),
        ("read_uncommitted", OFFSETS.high_watermark),
        ("read_committed", OFFSETS.last_stable),
    ],
)
def test_a_reader_ends_at_the_bound_of_its_isolation(isolation: str, bound: int) -> None:
    assert OFFSETS.bound(Isolation.of(isolation)) == bound


@pytest.mark.parametrize("kind", [Isolation, Durability])
def test_a_word_that_is_no_choice_lists_the_choices(kind: type[Isolation | Durability]) -> None:
    with pytest.raises(ConfigError) as caught:
        kind.of("sometimes")
    assert "'sometimes'" in str(caught.value)
    assert all(choice.value in str(caught.value) for choice in kind)


@pytest.mark.parametrize("kind", [Isolation, Durability])
def test_each_choice_is_found_by_its_word(kind: type[Isolation | Durability]) -> None:
    assert [kind.of(choice.value) for choice in kind] == list(kind)
