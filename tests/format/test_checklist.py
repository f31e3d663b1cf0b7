# SPDX-License-Identifier: Apache-2.0
"""The checklist of hostile inputs: every item, its outcome, and what shows it.

An item is shown by cases of test_adversarial.py that carry its number, and by what stands here:
vectors (`merge:` those of merges), which the C core reads here and must come to that outcome, and
tests of other modules, which must exist. `ok`: accepted by all steps.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from support import vectors
from support.vectors import Core, Refusal

TESTS = Path(__file__).resolve().parent.parent

COUNTS = {"A": 10, "B": 8, "C": 10, "D": 16, "E": 10, "F": 9, "G": 8, "H": 14}
COUNTS |= {"I": 14, "J": 16, "K": 9, "L": 12, "M": 9, "N": 10, "O": 9, "P": 8}
ITEMS = [f"{letter}{number:02}" for letter, n in COUNTS.items() for number in range(1, n + 1)]
# What writers, managers and readers may meet, rather than files.
ITEMS += ["N20", "R05", "W14"]

SHOWN = """
A10 ok nam-1-literal nam-1-literal-a bundle/test_locate.py::test_paths_are_literal
A10 - bundle/test_locate.py::test_a_nul_byte bundle/test_locate.py::test_paths_too_long
B01 BAD_MAGIC ftr-2 format/test_damage.py::test_every_bit_of_the_index
B02 BAD_MAGIC ftr-2
B03 BAD_BLOCK ftr-3 ftr-3-first ftr-3-65-bits
B04 - format/test_damage.py::test_every_bit_of_the_index
B04 - border/test_border.py::test_every_mutant_ends_well
B05 ok ftr-4
B06 - format/test_damage.py::test_index_with_bytes_after_it
B07 ok tab-11-gap
B08 UNSUPPORTED ftr-2-rocksdb-0 ftr-2-rocksdb-1 ftr-2-rocksdb-2
C01 TRUNCATED ftr-5-index-offset
C02 TRUNCATED ftr-5-index ftr-5-data
C03 TRUNCATED ftr-5-index
C04 TRUNCATED ftr-5-index-wraps ftr-5-data-wraps
C05 TRUNCATED ftr-5-index-size-wraps ftr-5-data-size-wraps
C06 - border/test_border.py::test_every_mutant_ends_well
C07 - border/test_border.py::test_every_mutant_ends_well
C08 BAD_BLOCK tab-4
C09 BAD_BLOCK tab-4 tab-4-order tab-4-index
C10 ok tab-10 tab-10-handle
D01 CHECKSUM blk-2-data blk-2-index
D02 - format/test_damage.py::test_every_bit_of_the_index
D03 BAD_BLOCK blk-3 blk-3-index
D04 BAD_BLOCK blk-4-size-0 blk-4-size-1 blk-4-size-2 blk-4-size-3
D05 ok blk-5
D06 BAD_BLOCK blk-4-restarts blk-4-restarts-wrap blk-4-one-too-many
D07 BAD_BLOCK blk-9-first-not-zero blk-9-equal blk-9-down blk-9-between
D08 BAD_BLOCK blk-10 blk-10-first
D09 BAD_BLOCK blk-7
D10 BAD_BLOCK blk-8-wraps
D11 BAD_BLOCK blk-8 blk-8-key
D12 BAD_BLOCK blk-6-unreadable blk-6-33-bits
D13 BAD_BLOCK blk-6-cut
D14 BAD_BLOCK blk-9-left-over
D15 LIMIT blk-14
D16 ok overlong-block blk-11 blk-11-forty
E01 BAD_ORDER tab-1-down
E02 BAD_ORDER tab-5-blocks-down
E03 BAD_ORDER tab-1-equal
E04 BAD_ORDER tab-5-below-last tab-5-not-below-first
E05 BAD_HEADER hdr-1 hdr-1-no-blocks
E06 BAD_ORDER tab-1-second-header
E07 ok header-only
E08 ok names
E10 BAD_SLICE key-7
F01 BAD_PROTO msg-2-field-0
F01 ok msg-2-largest
F02 BAD_PROTO msg-6-six msg-6-seven msg-6-end-alone
F03 BAD_PROTO msg-5-beyond msg-5-largest
F04 BAD_PROTO msg-4-four msg-4-eight
F06 ok msg-9
F09 BAD_PROTO msg-2-cut
G01 BAD_HEADER hdr-3 hdr-3-negative
G02 ok big-endian
G03 BAD_HEADER hdr-4 hdr-4-negative
G04 ok hdr-6 hdr-7-later
G05 UNSUPPORTED hdr-8
G06 UNSUPPORTED hdr-9
G07 ok hdr-6-empty
G08 ok nam-4-six-digits
H01 BAD_DTYPE dty-5-0
H02 UNSUPPORTED dty-6-34 dty-6-2147483647
H03 BAD_DTYPE dty-5-101 dty-5-133
H04 BAD_DTYPE dty-5-20
H05 ok shp-5 shp-5-two
H06 BAD_SHAPE shp-2 shp-2-lowest
H08 BAD_SHAPE shp-4 shp-4-zero-last shp-4-wraps-to-3
H09 BAD_ENTRY ent-5-wraps
H10 BAD_ENTRY ent-5-short ent-5-long ent-5-zero ent-4-size
H11 TRUNCATED dat-2-huge bundle/test_claimed_sizes.py::test_read
H12 BAD_ENTRY ent-4-offset ent-4-sum
H12 TRUNCATED dat-2-far
H13 BAD_ENTRY ent-3 ent-3-negative
H14 BAD_ENTRY dat-8
I01 BAD_SLICE slc-3 slc-4-start slc-4-length-0 slc-4-length-2
I02 BAD_SLICE slc-4-beyond slc-4-wraps
I03 BAD_SLICE slc-2-few slc-2-many
I04 BAD_SLICE slc-2-none
I05 BAD_SLICE slc-6
I06 BAD_SLICE slc-5
I07 BAD_SLICE slc-7
I08 BAD_SLICE slc-9 slc-9-other
I09 BAD_SLICE slc-8
I10 BAD_SLICE slc-6-twice
I11 ok slc-10 slc-10-any
I12 BAD_SLICE slc-6-full
I13 BAD_SLICE key-4-numbers
J01 SHARD_MISSING nam-5 nam-5-no-bytes
J02 TRUNCATED dat-2 format/test_damage.py::test_data_cut_at_every_length
J03 ok dat-3
J04 CHECKSUM dat-6 format/test_damage.py::test_every_bit_of_the_data
J05 CHECKSUM ent-6-absent
J07 - border/test_border.py::test_every_mutant_ends_well
J09 ok dat-5
J10 - bundle/test_lifetime.py::test_mapping_is_read_only
J10 - bundle/test_lifetime.py::test_views_outlive_the_reader_and_the_files
J15 ok dty-4-other-bytes
J16 - bundle/test_writer.py::test_every_layout_of_every_dtype interop/test_byte_identity.py::*
K01 BAD_ENTRY str-2-many
K02 BAD_ENTRY str-3-past-end str-4-more
K03 BAD_ENTRY str-4-less str-4-more str-4-wraps
K04 CHECKSUM str-5
K05 CHECKSUM str-6 str-6-entry
K06 BAD_ENTRY str-3
K07 ok str-7 str-1
K08 ok str-8 str-8-size-0
K09 ok var-1 var-1-none
L01 BAD_CHUNK cmp-18-bad-size-less cmp-18-bad-size-more
L02 BAD_CHUNK cmp-18-bad-no-size
L03 LIMIT cmp-20
L03 - bundle/test_compression_hostile.py::test_expansion_is_limited_before_memory_is_taken
L04 - bundle/test_compression_hostile.py::test_a_bomb_within_the_limits_is_just_a_tensor
L05 BAD_CHUNK cmp-18-bad-window cmp-18-bad-run-window
L06 BAD_CHUNK cmp-18-bad-cut cmp-18-bad-behind cmp-18-second cmp-18-bad-skippable
L07 BAD_CHUNK cmp-18-bad-dictionary
L08 BAD_CHUNK cmp-18-bad-checksum
L09 BAD_ENTRY cmp-1-sum cmp-4-sizes cmp-4-no-sizes cmp-4-number cmp-5-zero cmp-5-large
L10 CHECKSUM cmp-11 cmp-19
L11 BAD_BLOCK snp-2 snp-2-33-bits snp-3
L12 UNSUPPORTED ext-3 ext-3-high
M01 MERGE_CONFLICT merge:mrg-3
M02 MERGE_CONFLICT merge:mrg-4-dtype
M03 MERGE_CONFLICT merge:mrg-4-shape
M04 MERGE_CONFLICT merge:mrg-5
M05 MERGE_CONFLICT merge:mrg-2-order merge:mrg-2-version
M06 ARGUMENT merge:mrg-10-twice
N01 - manager/test_manager_faults.py::test_paths_out_of_the_directory_are_never_removed
N01 - manager/test_latest.py::test_a_name_that_leads_outside
N02 - manager/test_latest.py::test_names_are_literal
N02 - bundle/test_state_file.py::test_patterns_are_names
N03 - manager/test_latest.py::test_a_dead_name
N04 - bundle/test_checkpoint_state.py::test_what_is_refused
N04 - manager/test_latest.py::test_a_state_file_of_a_gigabyte
N04 - border/test_border.py::test_every_mutant_ends_well
N05 - bundle/test_checkpoint_state.py::test_a_megabyte
N06 - manager/test_latest.py::test_times_in_the_state_file_are_not_believed
N06 - manager/test_retention.py::test_moments_that_are_none
N07 - manager/test_manager_faults.py::test_retention_removes_files_of_exactly_its_names
N08 - manager/test_manager_faults.py::test_a_checkpoint_behind_links
N09 - manager/test_manager_faults.py::test_names_that_differ_in_case
N10 - manager/test_manager_faults.py::test_a_directory_replaced_by_a_link
O01 - bundle/test_claimed_sizes.py::test_read bundle/test_claimed_sizes.py::test_listed
O08 - bundle/test_errors.py::test_long_names_are_cut_in_messages
O08 - bundle/test_errors.py::test_every_control_character_is_escaped
N20 - manager/test_manager_faults.py::test_restoring_falls_back_to_what_is_sound
R05 - races/test_races.py::test_readers_and_verifiers_beside_a_writer
W14 - bundle/test_short_memory.py::*
P01 - bundle/test_arguments.py::test_wrong_type bundle/test_reader.py::test_a_closed_reader
P01 - bundle/test_threads.py::test_close_while_others_read
P01 - bundle/test_fork.py::test_reader_reopens_in_the_child
P02 - bundle/test_reader.py::test_read_into_refuses bundle/test_arrays.py::test_interleaved_views
P03 - bundle/test_merge.py::test_nothing_to_merge bundle/test_writer.py::test_save_v2_refuses
P05 - bundle/test_signals.py::test_interrupt
P05 - bundle/test_signals.py::test_kill_leaves_the_old_checkpoint
P06 - bundle/test_async_save.py::test_the_bytes_of_save_whatever_becomes_of_the_arrays
P06 - bundle/test_lifetime.py::test_memory_in_use_is_held
P07 - bundle/test_lifetime.py::test_the_end_of_the_interpreter
P08 - project/test_tidy.py::test_no_code_in_data
"""


@cache
def functions(path: str) -> set[str]:
    """The tests of a module; of test_adversarial.py the items of its cases."""
    found = set()
    for node in ast.parse((TESTS / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
            for one in node.decorator_list:
                if isinstance(one, ast.Call) and ast.unparse(one.func) == "case":
                    found |= {ast.literal_eval(item) for item in one.args}
    return found


def outcome_of(name: str) -> set[str]:
    """Failure classes of a vector's steps, problems of verifying among them; {"ok"} if none."""
    if name.startswith("merge:"):
        (merge,) = [one for one in vectors.MERGES if one["name"] == name.removeprefix("merge:")]
        return {merge["fails"][0]}
    (vector,) = [one for one in vectors.VECTORS if one.name == name]
    found: set[str] = set()
    for outcome in vectors.outcomes(vector, Core):
        if isinstance(outcome, Refusal):
            found.add(outcome.failure)
        elif isinstance(outcome, dict):
            found |= {failure for failure, _ in outcome.get("problems", ())}
    return found or {"ok"}


def test_items() -> None:
    cases = {one for one in functions("format/test_adversarial.py") if one[1:].isdigit()}
    lines = [line.split() for line in SHOWN.splitlines() if line]
    assert {line[0] for line in lines} | cases == set(ITEMS)
    for item, outcome, *shown in lines:
        for one in shown:
            if "::" in one:
                path, name = one.split("::")
                assert name == "*" or name in functions(path), (item, one)
            else:
                assert outcome in outcome_of(one), (item, one, outcome_of(one))
