"""For each rule of each public contract, a small wrong component fails exactly this rule."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from contract_mutants import (
    ContractMutants,
    cleanup_policies,
    codecs,
    engines,
    extra_index,
    index_formats,
    object_stores,
    outcomes,
    record_formats,
    segment_stores,
    services,
    tier_layouts,
)
from stratalog.testing import contracts

MODULES: Final = (
    cleanup_policies,
    codecs,
    engines,
    extra_index,
    index_formats,
    object_stores,
    record_formats,
    segment_stores,
    services,
    tier_layouts,
)
SLOW: Final = (codecs, engines, record_formats)
ALL: Final = {module.__name__.rpartition(".")[2]: module.MUTANTS for module in MODULES}


def test_each_contract_has_mutants() -> None:
    names = {name for name in contracts.__all__ if name.endswith("Contract")}
    assert {
        name
        for name in names
        if any(issubclass(contract_mutants.contract, getattr(contracts, name)) for contract_mutants in ALL.values())
    } == names


@pytest.mark.parametrize("found", ALL.values(), ids=list(ALL))
def test_each_rule_has_a_mutant(found: ContractMutants) -> None:
    assert found.mutants.keys() == found.rules


@pytest.mark.parametrize(
    "found",
    [pytest.param(module.MUTANTS, marks=pytest.mark.long if module in SLOW else ()) for module in MODULES],
    ids=list(ALL),
)
def test_each_mutant_fails_at_its_rule(found: ContractMutants, tmp_path: Path) -> None:
    rule_outcomes = outcomes(found, tmp_path / "run")
    assert {
        rule: rule_outcomes.get(rule) for rule in found.mutants if "noticed" not in rule_outcomes.get(rule, [])
    } == {}


@pytest.mark.long
@pytest.mark.parametrize("found", ALL.values(), ids=list(ALL))
def test_the_component_without_a_mistake_passes(found: ContractMutants, tmp_path: Path) -> None:
    rule_outcomes = outcomes(found, tmp_path / "run", is_sound=True)
    assert rule_outcomes
    assert {rule: texts for rule, texts in rule_outcomes.items() if set(texts) - {"passed", "skipped"}} == {}
