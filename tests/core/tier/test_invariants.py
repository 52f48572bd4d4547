"""List of the numbered invariants of a log in two tiers, with the names of their tests.

The test below fails if a listed test is renamed or removed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[2]

INVARIANTS: Final[dict[int, tuple[str, tuple[str, ...]]]] = {
    # --- offsets and append
    1: ("at rest 0 <= log start <= last stable <= high watermark <= log end", (
        "core/log/test_log_rules.py::test_no_reader_gets_past_the_bound_of_its_isolation",
        "core/log/test_log_rules.py::test_only_the_counter_of_replicas_moves_the_high_watermark")),
    2: ("at rest log start <= local log start <= log end, recovery point <= log end", (
        "core/log/test_log_rules.py::test_only_the_counter_of_replicas_moves_the_high_watermark",
        "core/engine/test_two_tiers.py::test_nothing_is_lost_nothing_appears_nothing_dangles",
        "core/log/append/test_append.py::test_the_recovery_point_is_the_end_of_the_synced_records")),
    3: ("records of any read have strictly ascending offsets", ("core/log/read/test_fetch.py::test_any_range_of_records",)),
    4: ("an append of n records takes the next n offsets", ("core/log/append/test_append.py::test_offsets_follow_one_another",)),
    5: ("what is refused or a duplicate changes nothing", (
        "core/log/append/test_append.py::test_a_refused_append_writes_nothing",
        "core/log/append/test_append.py::test_a_retry_is_answered_and_not_written")),
    6: ("batches carry the leader epoch of their append", (
        "core/log/test_log_rules.py::test_segments_contain_their_own_offsets_and_at_most_the_allowed_bytes",
        "core/log/append/test_append.py::test_batches_carry_the_leader_epoch")),
    7: ("a follower holds what its leader holds", (
        "core/log/append/test_follower.py::test_a_follower_becomes_byte_for_byte_what_its_leader_is",)),
    8: ("a retry of one of the last five batches is answered with its offsets", (
        "core/producers/test_state.py::test_a_retry_of_the_last_five_batches_is_answered_with_their_offsets",)),
    9: ("an older batch, or one with other borders, is out of order", (
        "core/producers/test_state.py::test_exactly_five_batches_are_remembered",
        "core/producers/test_state.py::test_other_sequences_are_out_of_order")),
    10: ("sequence 0 follows 2147483647", (
        "core/producers/test_state.py::test_zero_follows_the_last_sequence",)),
    11: ("a lower producer epoch is never written by a leader", (
        "core/producers/test_state.py::test_an_older_epoch_is_fenced_even_when_its_batch_is_remembered",
        "core/log/test_log_rules.py::test_a_fenced_writer_and_a_writer_without_the_key_write_nothing")),
    12: ("no batch above max.message.bytes is accepted", (
        "core/log/prepare/test_prepare_batches.py::test_a_batch_above_the_limit_is_refused",
        "core/log/prepare/test_prepare_batches.py::test_a_batch_that_grows_above_the_limit_is_split_unless_it_has_producer_sequences")),
    13: ("with LogAppendTime a batch has one time, that of the append", (
        "core/log/test_append_time.py::test_the_result_has_the_timestamp_that_is_stored",)),
    14: ("a compacted topic takes no null key", (
        "core/log/prepare/test_prepare_records.py::test_every_wrong_record_is_named",
        "core/log/test_log_rules.py::test_a_fenced_writer_and_a_writer_without_the_key_write_nothing")),
    # --- segments and indexes
    15: ("bases ascend, and each record lies in its segment", (
        "core/log/test_log_rules.py::test_segments_contain_their_own_offsets_and_at_most_the_allowed_bytes",
        "core/log/load/test_log_loader.py::test_a_batch_with_an_offset_past_its_segment_is_reported_and_no_later_record_is_lost")),
    16: ("no append makes a file larger than segment.bytes", (
        "core/log/test_log_rules.py::test_segments_contain_their_own_offsets_and_at_most_the_allowed_bytes",
        "core/log/append/test_append.py::test_an_append_above_the_segments_size_is_refused_whole",
        "core/log/append/test_append.py::test_a_segment_is_full_to_the_byte_and_no_further")),
    17: ("relative offsets fit 31 bits", (
        "core/log/append/test_follower.py::test_one_fetch_may_span_more_than_a_segments_offsets",
        "core/segment/test_appender.py::test_offsets_stay_within_32_bits_of_the_base")),
    18: ("an offset index entry names the start of a batch", (
        "core/log/test_log_rules.py::test_index_entries_match_the_batches",)),
    19: ("a search by index finds what a scan finds", (
        "core/segment/test_search.py::test_honest_indexes_find_what_a_scan_finds",
        "core/segment/test_search.py::test_no_offset_index_changes_an_answer")),
    20: ("a time index entry bounds the timestamps before it", (
        "core/log/test_log_rules.py::test_index_entries_match_the_batches",)),
    21: ("the last time index entry of a closed segment is its maximum", (
        "core/log/test_log_rules.py::test_index_entries_match_the_batches",
        "plugins/formats/test_indexes.py::test_the_closing_time_entry_is_written_at_the_roll")),
    22: ("without indexes every answer is the same", (
        "core/log/test_log_rules.py::test_without_index_files_every_answer_is_the_same",
        "core/log/load/test_log_loader.py::test_damaged_indexes_change_no_answer")),
    23: ("rolling by time depends on record timestamps alone", (
        "core/log/append/test_append.py::test_segments_roll_by_record_time",
        "core/segment/test_appender.py::test_records_time_decides")),
    # --- reads
    24: ("a read at any offset begins with the batch that holds it, or the next", (
        "core/log/read/test_fetch.py::test_every_offset_is_fetched_with_the_batch_that_holds_it",
        "core/log/test_log_rules.py::test_a_log_with_gaps_returns_the_next_batch")),
    25: ("no read goes past its isolation's bound", (
        "core/log/test_log_rules.py::test_no_reader_gets_past_the_bound_of_its_isolation",
        "core/log/read/test_fetch.py::test_a_pending_transaction_holds_readers_back_until_its_marker")),
    26: ("where there is data, at least one whole batch comes", (
        "core/log/read/test_fetch.py::test_every_offset_is_fetched_with_the_batch_that_holds_it",)),
    27: ("at the end nothing, beyond it out of range", (
        "core/log/read/test_fetch.py::test_at_the_end_nothing_is_fetched",
        "core/log/read/test_fetch.py::test_offsets_outside_the_log_are_out_of_range")),
    28: ("committed readers see what was committed, and no markers", (
        "core/log/read/test_fetch.py::test_committed_readers_see_what_was_committed",)),
    29: ("aborted transactions with data in an answer are listed", (
        "core/log/read/test_fetch.py::test_committed_readers_see_what_was_committed",
        "core/log/read/test_fetch.py::test_kafkas_example")),
    30: ("a timestamp is answered with the first offset that is not older", (
        "core/log/read/test_time_lookup.py::test_the_answer_is_that_of_a_scan",
        "core/log/read/test_time_lookup.py::test_records_that_are_not_committed_are_no_answer",
        "core/log/read/test_time_lookup.py::test_the_first_record_that_is_not_older")),
    # --- recovery
    31: ("a crash in an append leaves a prefix that ends with a batch", (
        "core/log/load/test_log_loader.py::test_a_torn_tail_is_cut_at_every_byte_of_the_last_batch",
        "core/log/test_power_loss.py::test_durable_records_survive_a_power_loss_at_any_time")),
    32: ("what is below the recovery point survives", (
        "core/log/test_power_loss.py::test_durable_records_survive_a_power_loss_at_any_time",)),
    33: ("damage cuts the log at its batch", ("core/log/load/test_log_loader.py::test_damage_in_the_middle_cuts_what_follows",)),
    34: ("opening and closing changes nothing", ("core/log/load/test_log_loader.py::test_opening_and_closing_changes_nothing",)),
    35: ("recovery is idempotent", (
        "core/log/load/test_log_loader.py::test_recovery_twice_is_recovery_once",
        "core/log/test_load_failures.py::test_a_load_that_fails_anywhere_can_be_repeated")),
    36: ("a replacement is whole or not there", (
        "core/cleaning/test_compaction_crashes.py::test_a_power_loss_at_any_time_loses_no_newest_record",
        "core/log/folder/test_swap_recovery.py::test_an_interrupted_swap_is_finished_or_undone")),
    37: ("no temporary file survives a load", (
        "core/log/test_load_failures.py::test_an_interrupted_replacement_is_finished_or_undone",
        "core/log/folder/test_swap_recovery.py::test_every_other_deleted_file_is_removed")),
    38: ("producers from a snapshot and by replay are the same", (
        "core/log/test_log_rules.py::test_producers_are_the_same_from_snapshots_and_from_all_batches",)),
    39: ("a directory in use is not opened by a second process", (
        "plugins/local/test_store.py::test_another_process_keeps_us_out",
        "core/engine/test_surroundings.py::test_one_directory_under_two_names_has_one_owner")),
    # --- truncation and replication
    40: ("after truncating, nothing at or above the offset is left", (
        "core/log/change/test_truncate.py::test_a_truncated_log_equals_one_that_never_had_the_rest",)),
    41: ("a leader's high watermark never falls", (
        "core/log/state/test_leadership.py::test_a_new_follower_keeps_its_high_watermark_until_the_leader_sends_another",)),
    42: ("it is never above the smallest log end in sync", (
        "core/log/test_replication.py::test_a_high_watermark_lags_by_one_fetch",)),
    43: ("with too few in sync it does not move", (
        "core/log/test_log_rules.py::test_only_the_counter_of_replicas_moves_the_high_watermark",)),
    44: ("what was acknowledged by all is on every clean leader", (
        "core/log/test_replication.py::test_records_that_were_committed_survive_a_follower_that_restarts_and_leads",)),
    45: ("after reconciliation epochs and records agree", (
        "core/log/test_replication.py::test_a_follower_cuts_what_another_leader_never_had",)),
    46: ("epochs and their starts ascend", (
        "core/epochs/test_epoch_cache.py::test_epochs_and_offsets_ascend",
        "core/log/state/test_leadership.py::test_a_new_epoch_begins_at_the_log_end_even_if_nothing_is_appended_in_it")),
    # --- retention
    47: ("retention takes a prefix, never past the high watermark", (
        "core/cleaning/plan/test_retention.py::test_no_segment_that_reaches_above_the_high_watermark_is_deleted",
        "core/cleaning/plan/test_retention.py::test_a_prefix_may_end_inside_a_segment")),
    48: ("size retention stops before it gets below the limit", (
        "plugins/compaction/test_delete.py::test_segments_are_deleted_while_the_log_stays_above_its_size",
        "plugins/compaction/test_delete.py::test_a_large_segment_shields_the_ones_after_it")),
    49: ("time retention leaves nothing too old", (
        "core/cleaning/plan/test_retention.py::test_segments_that_are_too_old_are_deleted",
        "core/cleaning/plan/test_retention.py::test_no_segment_that_reaches_above_the_high_watermark_is_deleted")),
    50: ("without a tier the log start is the first segment's", (
        "core/cleaning/plan/test_retention.py::test_segments_that_are_too_old_are_deleted",
        "core/cleaning/plan/test_retention.py::test_segments_below_the_log_start_are_deleted")),
    51: ("there is always one active segment", (
        "core/log/change/test_delete.py::test_the_active_segment_is_rolled_before_it_is_deleted",)),
    52: ("a reader of a segment that goes finishes", ("core/log/change/test_delete.py::test_a_fetched_slice_outlives_its_segment",)),
    # --- compaction
    53: ("the newest record of each key survives", (
        "core/cleaning/test_compaction_crashes.py::test_a_power_loss_at_any_time_loses_no_newest_record",
        "core/cleaning/compact/test_compaction_round.py::test_the_example_of_the_manual")),
    54: ("survivors are unchanged and in order", (
        "plugins/formats/test_retain.py::test_the_header_around_the_records_stays",
        "plugins/formats/test_retain.py::test_a_rewritten_batch_is_what_encoding_its_records_gives",
        "core/cleaning/compact/test_compaction_round.py::test_a_second_round_over_the_same_records_changes_nothing")),
    55: ("what is open, active or young is not touched", (
        "plugins/compaction/test_compact.py::test_nothing_from_the_last_stable_offset_on_is_touched_nor_the_segment_that_holds_it",
        "plugins/compaction/test_compact.py::test_young_segments_stay",
        "core/cleaning/compact/test_compaction_round.py::test_an_open_transaction_bounds_the_round")),
    56: ("borders of batches stay", (
        "plugins/formats/test_retain.py::test_gaps_are_left_as_kafka_leaves_them",
        "plugins/formats/test_retain.py::test_an_emptied_batch_is_kafkas_to_the_byte")),
    57: ("a tombstone stays until its horizon", (
        "core/cleaning/compact/test_compaction_round.py::test_a_tombstone_stays_until_its_horizon",)),
    58: ("cleaning twice is cleaning once", (
        "core/cleaning/compact/test_compaction_round.py::test_a_second_round_over_the_same_records_changes_nothing",)),
    59: ("a producer continues after compaction", (
        "core/cleaning/compact/test_compaction_round.py::test_the_last_batch_of_a_producer_stays_without_records",
        "core/cleaning/compact/test_compaction_round.py::test_the_log_end_and_what_is_known_of_producers_survive_reopening")),
    60: ("aborted records go, committed readers see the same", (
        "core/cleaning/compact/test_compaction_round.py::test_aborted_data_of_a_transaction_that_ends_later_is_dropped_and_hides_nothing",)),
    61: ("the cleaner's checkpoint stays inside the log", (
        "core/cleaning/compact/test_compaction_round.py::test_a_truncation_takes_the_checkpoint_back",
        "plugins/compaction/test_compact.py::test_a_checkpoint_that_the_log_does_not_bear_out_begins_again_at_the_log_start")),
    62: ("a small map takes more rounds to the same end", (
        "core/cleaning/compact/test_compaction_round.py::test_a_round_whose_map_is_full_ends_there_and_the_next_continues",)),
    # --- the tier
    63: ("only closed segments below the last stable offset are copied", (
        "core/engine/test_tier_rules.py::test_only_closed_segments_below_the_last_stable_offset_are_offloaded",)),
    64: ("every offset of the log is on disk or in the tier", (
        "core/engine/test_two_tiers.py::test_nothing_is_lost_nothing_appears_nothing_dangles",
        "core/engine/test_lineage.py::test_a_new_leader_continues_where_the_tier_ends_whatever_its_segments_borders")),
    65: ("a local segment goes only when a root has committed it", (
        "core/engine/test_two_tiers.py::test_nothing_is_lost_nothing_appears_nothing_dangles",
        "core/engine/test_tier_rules.py::test_nothing_is_evicted_that_failed_to_upload")),
    66: ("a scan is the same wherever the segments are", (
        "core/engine/test_tier_reads.py::test_a_log_over_both_tiers_reads_as_one_without",
        "core/engine/test_tier_rules.py::test_a_scan_is_the_same_wherever_the_segments_are")),
    67: ("an entry that is removed never comes back", (
        "core/tier/test_search.py::test_no_segment_is_lost_and_none_appears",)),
    68: ("what is not committed, or is deleted, is never read", (
        "core/tier/upload/test_uploader.py::test_objects_come_before_the_root_that_names_them",
        "core/tier/test_search.py::test_no_segment_is_lost_and_none_appears")),
    69: ("a copier that dies anywhere loses nothing and leaves nothing readable by halves", (
        "core/tier/upload/test_uploader.py::test_any_request_may_fail_and_a_second_call_continues",
        "core/engine/test_two_tiers.py::test_nothing_is_lost_nothing_appears_nothing_dangles")),
    70: ("two copies of a range have different objects", (
        "core/engine/test_tier_rules.py::test_a_repeated_copy_has_another_key",)),
    71: ("the log start is raised before an object goes", (
        "core/tier/upkeep/test_collect.py::test_objects_are_deleted_with_the_last_root_that_names_them",
        "core/tier/test_search.py::test_no_segment_is_lost_and_none_appears")),
    72: ("what expires is a prefix", (
        "core/tier/commit/test_trim_change.py::test_segments_that_end_at_or_below_the_new_log_start_are_deleted",
        "core/tier/manifest/test_entry_tree.py::test_any_changes_leave_what_a_plain_list_would_hold")),
    73: ("size retention over both tiers stops before it gets below the limit", (
        "core/engine/test_tier_rules.py::test_both_tiers_count_once_for_size_retention",)),
    74: ("another lineage's records are never taken for ours", (
        "core/tier/upload/test_uploader.py::test_a_range_of_another_leader_is_not_treated_as_ours",
        "core/engine/test_lineage.py::test_records_of_an_elected_leader_stay_local_though_the_tier_has_their_offsets",
        "core/engine/test_lineage.py::test_the_writer_of_lost_records_follows_and_reads_the_new_history")),
    75: ("a follower that begins from the tier has epochs, log start and producers", (
        "core/engine/test_lineage.py::test_a_follower_that_begins_from_the_tier_knows_what_its_leader_knew",)),
    76: ("deleting a topic removes every object of its id", (
        "core/engine/tiering/test_tier_duties.py::test_a_deleted_topic_leaves_nothing_in_the_bucket",
        "core/engine/tiering/test_tier_duties.py::test_another_engine_sweeps_what_a_crash_left_of_a_deleted_topic")),
    77: ("any range of a tiered segment is that range of the file", (
        "core/tier/read/test_fetcher.py::test_every_range_reads_the_original_bytes",
        "../core/stratalog/testing/contracts/tier_layout.py::test_a_range_of_the_log_is_read_back")),
    78: ("a changed byte of an encrypted chunk is an error", (
        "../core/stratalog/testing/contracts/tier_layout.py::test_a_flipped_bit_is_harmless_or_a_typed_error",
        "plugins/formats/test_layout_encrypted.py::test_chunks_are_bound_to_their_places")),
    79: ("aborted transactions of a range are the same from the tier", (
        "core/engine/test_tier_reads.py::test_a_log_over_both_tiers_reads_as_one_without",
        "core/engine/test_lineage.py::test_aborted_records_stay_hidden_after_part_of_their_segment_is_deleted")),
    80: ("the index cache is bounded", (
        "core/tier/test_tier_cache.py::test_it_stays_inside_its_bound_and_a_smaller_one_holds_after_a_restart",
        "core/tier/test_tier_cache.py::test_cached_items_are_there_after_a_restart",
        "core/env/test_cache.py::test_the_least_recently_used_entry_is_evicted_first_and_the_bound_holds")),
    81: ("entries tile their range at every commit", (
        "core/tier/manifest/test_entry_tree.py::test_any_changes_leave_what_a_plain_list_would_hold",
        "core/tier/manifest/test_root_codec.py::test_a_root_that_breaks_its_promises_is_not_made")),
    82: ("a replacement is one commit", (
        "core/tier/manifest/test_entry_tree.py::test_replacing_rewrites_only_the_pages_that_it_touches",
        "core/tier/test_tier_publisher.py::test_of_two_that_replace_the_same_the_second_changes_nothing")),
    83: ("a deleted key does not come back", (
        "core/cleaning/test_tier_compaction.py::test_tombstones_are_dropped_from_both_parts_in_time",
        "core/cleaning/test_tier_compaction_crashes.py::test_nothing_is_lost_and_nothing_dangles_wherever_it_ends",
        "core/engine/test_life.py::test_the_log_holds_the_expected_records_after_any_operations")),
    84: ("a remote cleaning keeps the newest value of each key", (
        "core/cleaning/test_tier_compaction.py::test_the_newest_record_of_each_key_stays_on_disk_and_in_the_tier_alone",
        "core/cleaning/test_tier_compaction.py::test_every_layout",
        "core/engine/test_life.py::test_the_log_holds_the_expected_records_after_any_operations")),
    85: ("a crash leaves at most objects that nobody names, and they go", (
        "core/tier/upkeep/test_collect.py::test_uploads_without_a_commit_are_deleted_once_a_higher_epoch_has_begun",
        "core/tier/manifest/test_entry_tree.py::test_any_changes_leave_what_a_plain_list_would_hold")),
}  # fmt: skip


def test_all_are_listed() -> None:
    assert list(INVARIANTS) == list(range(1, 86))
    assert all(tests for _, tests in INVARIANTS.values())


@pytest.mark.parametrize("number", sorted(INVARIANTS))
def test_each_entry_is_tested_in_the_named_file(number: int) -> None:
    for place in INVARIANTS[number][1]:
        file, _, name = place.partition("::")
        text = (TESTS / file).read_text("utf-8")
        assert name.startswith("test_"), place
        assert re.search(rf"^\s*def {name}\(", text, re.MULTILINE), place
