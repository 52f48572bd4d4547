"""Inconsistent and damaged sets of v1 entries. Each format has its own file, because files run in parallel."""

from __future__ import annotations

import fuzz_campaign


def test_both_twins_give_the_same_result_for_inconsistent_batches() -> None:
    counts = fuzz_campaign.run("v1", "lie", fuzz_campaign.LIES)
    assert min(counts["accepted"], counts["refused"]) > fuzz_campaign.LIES // 5


def test_both_twins_agree_on_damage_without_a_crash() -> None:
    counts = fuzz_campaign.run("v1", "scramble", fuzz_campaign.COUNT)
    assert min(counts["accepted"], counts["refused"], counts["stopped"]) > fuzz_campaign.COUNT // 10
