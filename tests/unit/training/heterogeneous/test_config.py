"""Parsing of ``heterogeneous.yaml``, with all errors reported at once by line."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import InvalidValue
from holdfast.training.heterogeneous.batch_allocation import (
    SyncPoint,
    allocate_batch,
    is_possible,
    linear_kind,
)
from holdfast.training.heterogeneous.config import parse_heterogeneous, render_heterogeneous
from tests.hypothesis_profiles import examples

GOOD = """\
batch: 64
groups:
  - name: A100-80G
    ranks: 0-1
    micro_batch: 24
    precision: fp16
  - {name: V100-32G, ranks: [2, 3], micro_batch: 8, precision: fp16, accumulation: 1}
"""


def errors_in(text):
    """Return the error messages by line."""
    with pytest.raises(InvalidValue) as caught:
        parse_heterogeneous(text, "heterogeneous.yaml")
    return [
        (int(line), text)
        for line, text in re.findall(r"line (\d+): (.*?)(?=; line \d+: |$)", caught.value.why)
    ]


def test_parsed_values():
    parsed = parse_heterogeneous(GOOD, "heterogeneous.yaml")
    assert (parsed.batch, parsed.meeting, parsed.world, parsed.precision) == (
        64,
        SyncPoint.MICRO_BATCH,
        4,
        "fp16",
    )
    assert parsed.shares().sizes == ((24,), (24,), (8,), (8,))
    assert [group.line for group in parsed.groups] == [3, 7]


def test_accumulation_is_a_number_or_sizes_and_ranks_have_any_order():
    text = "batch: 30\ngroups:\n- {name: a, ranks: '1,3', micro_batch: [4, 3]}\n"
    parsed = parse_heterogeneous(
        text + "- {name: b, ranks: [0, 2], micro_batch: 4, accumulation: 2}\n", "f"
    )
    assert parsed.shares().sizes == ((4, 4), (4, 3), (4, 4), (4, 3))
    loose = (
        text.replace("[4, 3]", "7")
        + "- {name: b, ranks: [0, 2], micro_batch: 4, accumulation: 2}\n"
    )
    assert parse_heterogeneous("meeting: step\n" + loose, "f").shares().sync_point is SyncPoint.STEP
    [(line, suggestion)] = errors_in(loose)
    assert line == 4
    assert suggestion.startswith(
        "2 micro-batches per step, but 1 in the group of line 3: ranks that synchronize at every micro-batch"
    )


def test_each_pipeline_stage_has_the_full_batch():
    text = """
batch: 8
groups:
  - {name: a, ranks: 0-1, micro_batch: 4, stages: 0}
  - {name: b, ranks: 2, micro_batch: 8, stages: [1, 2], precision: bf16}
"""
    parsed = parse_heterogeneous(text, "f")
    assert parsed.shares(0).sizes == ((4,), (4,))
    assert parsed.shares(2).sizes == ((8,),)
    assert parsed.precision == ""
    assert errors_in(text.replace("ranks: 2, micro_batch: 8", "ranks: 2, micro_batch: 7")) == [
        (2, "batch is 8, but the groups make 1·7 = 7 at stage 1; for 8 use micro_batch b [7, 1]"),
        (2, "batch is 8, but the groups make 1·7 = 7 at stage 2; for 8 use micro_batch b [7, 1]"),
    ]
    assert errors_in(text.replace("[1, 2]", "2")) == [(4, "no group holds stage 1 of the pipeline")]
    assert errors_in(text.replace(", stages: 0", "")) == [
        (4, "it has no stages, but other groups have"),
        (4, "no group holds stage 0 of the pipeline"),
    ]


def test_twice_16_and_twice_15_are_62():
    text = "batch: 64\ngroups:\n- {name: a, ranks: 0-1, micro_batch: 16}\n- {name: b, ranks: 2-3, micro_batch: 15}\n"
    [(line, suggestion)] = errors_in(text)
    assert line == 1
    assert suggestion.startswith(
        "batch is 64, but the groups make 2·16 + 2·15 = 62; for 64 use micro_batch a ["
    )
    corrected = re.findall(r"([ab]) (\[[\d, ]+\])", suggestion)
    for name, sizes in corrected:
        text = re.sub(rf"(name: {name}, .*micro_batch: )\d+", rf"\g<1>{sizes}", text)
    assert parse_heterogeneous(text, "f").batch == 64  # the suggestion is valid


def test_a_wrong_total_is_reported_with_other_errors():
    text = GOOD.replace("micro_batch: 8", "micro_batch: 7").replace("[2, 3]", "[3, 4]")
    lines = errors_in(text)
    assert any("is in no group" in text for _, text in lines)
    assert any("but the groups make" in text and "= 62" in text for _, text in lines)


def test_a_file_as_a_person_would_write_it():
    text = """\
Batch-Size: 62
dtype: bfloat16
groups:
  fast:
    ranks: 0..1
    batch_size: 24
  slow:
    ranks: "2, 3"
    micro-batch-size: 7
    gradient_accumulation_steps: 1
"""
    parsed = parse_heterogeneous(text, "f")
    assert [(group.name, group.ranks, group.precision) for group in parsed.groups] == [
        ("fast", (0, 1), "bf16"),
        ("slow", (2, 3), "bf16"),
    ]
    assert parsed.shares().sizes == ((24,), (24,), (7,), (7,))
    assert errors_in(text.replace("62", "64")) == [
        (
            1,
            (
                "batch is 64, but the groups make 2·24 + 2·7 = 62; for 64 use micro_batch "
                "fast [18, 7], slow [5, 2]"
            ),
        )
    ]


def test_if_no_sizes_make_the_batch_the_nearest_batches_are_suggested():
    [(_, suggestion)] = errors_in("batch: 64\ngroups:\n- {name: a, ranks: 0-2, micro_batch: 1}\n")
    assert (
        suggestion
        == "batch is 64, but the groups make 3·1 = 3; 63 or 66 would be possible with these sizes"
    )


def test_all_errors_are_reported_at_once_by_line():
    text = """\
bacth: 64
meeting: sometimes
groups:
  - name: a
    ranks: 0-1
    micro_bach: 24
    precision: bf15
  - name: b
    ranks: [3, x]
    micro_batch: -2
    micro_batch: 8
    accumulation: 1.5
  - just text
"""
    assert errors_in(text) == [
        (1, "the file has no batch"),
        (1, "unknown key of the file 'bacth'; did you mean batch?"),
        (2, "unknown meeting 'sometimes'; choose from micro-batch and step"),
        (4, "a group has no micro_batch"),
        (6, "unknown key of a group 'micro_bach'; did you mean micro_batch?"),
        (7, "unknown precision 'bf15'; did you mean bf16?"),
        (9, "ranks must be like 3, 0-3 or [0, 1], not 'x'"),
        (10, "micro_batch must be an integer of at least 1, not '-2'"),
        (11, "duplicate key micro_batch, first on line 10"),
        (12, "accumulation must be an integer of at least 1, not '1.5'"),
        (
            13,
            "a group must be a mapping with name, ranks, micro_batch, accumulation, precision, stages",
        ),
    ]


def test_duplicate_and_missing_ranks_and_differing_precisions():
    text = GOOD.replace("[2, 3]", "[1, 4]").replace("precision: fp16, acc", "precision: bf16, acc")
    differ = "precision is bf16, but fp16 in the group of line 3: gradients are summed over both, and fp16 scales its losses"
    assert errors_in(text) == [
        (3, "ranks 2-3 are in no group"),
        (7, differ),
        (7, "rank 1 is already in the group of line 3"),
    ]
    assert errors_in(GOOD.replace("0-1", "0,0-1"))[0] == (3, "rank 0 is twice in this group")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the file must be a mapping"),
        ("a: [", "invalid YAML"),
        ("a: 1\n---\nb: 2\n", "invalid YAML"),
        ("[" * 100_000, "invalid YAML"),
        ("a: \x00", "invalid YAML"),
        ("#" * 300_000, "more than 262,144 characters"),
        ("&a [*a]", "the file must be a mapping"),
        ("batch: 8\ngroups: &g [*g]", "a group must be a mapping"),
        ("batch: !!python/object/apply:os.system ['true']\ngroups: []", "not 'a list'"),
        (GOOD.replace("0-1", "0-99999999999"), "ranks must be like"),
        (GOOD.replace("24", "9" * 5000), "micro_batch must be an integer"),
    ],
)
def test_malicious_files_are_rejected_with_one_sentence(text, why):
    with pytest.raises(InvalidValue, match=re.escape(why)) as caught:
        parse_heterogeneous(text, "heterogeneous.yaml")
    assert len(str(caught.value)) < 1200


@settings(max_examples=examples(150))
@given(
    st.one_of(
        st.text(max_size=60),
        st.tuples(
            st.integers(0, len(GOOD)), st.integers(0, 9), st.text("[]{}:-, \n&*!0aé", max_size=4)
        ).map(lambda cut: GOOD[: cut[0]] + cut[2] + GOOD[cut[0] + cut[1] :]),
    )
)
def test_any_text_is_parsed_or_rejected(text):
    try:
        parsed = parse_heterogeneous(text, "f")
    except InvalidValue:
        return
    assert sum(map(sum, parsed.shares().sizes)) == parsed.batch
    assert sorted(rank for group in parsed.groups for rank in group.ranks) == list(
        range(parsed.world)
    )


@given(
    batch=st.integers(1, 200),
    meeting=st.sampled_from(SyncPoint),
    kinds=st.lists(
        st.tuples(st.integers(1, 4), st.floats(0.01, 1.0), st.integers(1, 16)),
        min_size=1,
        max_size=3,
    ),
)
def test_a_rendered_allocation_is_parsed_unchanged(batch, meeting, kinds):
    gpu_kinds = [
        linear_kind(f"GPU: {at}", ranks, 0.02, time_s, most)
        for at, (ranks, time_s, most) in enumerate(kinds)
    ]
    if not is_possible(gpu_kinds, batch, meeting):
        return
    allocation = allocate_batch(gpu_kinds, batch, meeting)
    reparsed = parse_heterogeneous(render_heterogeneous(allocation, "bf16"), "heterogeneous.yaml")
    assert (reparsed.batch, reparsed.meeting, reparsed.precision) == (batch, meeting, "bf16")
    assert reparsed.shares().sizes == tuple(share.micro_batches for share in allocation.shares)
    assert "precision" not in render_heterogeneous(allocation, "fp8")
