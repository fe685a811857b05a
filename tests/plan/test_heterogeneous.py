"""``heterogeneous.yaml``: read as written, and all that is wrong said at once, by line."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadValue
from holdfast.plan.batches import Meeting, allot, linear, possible
from holdfast.plan.heterogeneous import read, text

GOOD = """\
batch: 64
groups:
  - name: A100-80G
    ranks: 0-1
    micro_batch: 24
    precision: fp16
  - {name: V100-32G, ranks: [2, 3], micro_batch: 8, precision: fp16, accumulation: 1}
"""


def wrong(text):
    """What is said, by line."""
    with pytest.raises(BadValue) as caught:
        read(text, "heterogeneous.yaml")
    return [(int(line), text) for line, text in re.findall(r"line (\d+): (.*?)(?=; line \d+: |$)", caught.value.why)]


def test_what_it_says():
    found = read(GOOD, "heterogeneous.yaml")
    assert (found.batch, found.meeting, found.world, found.precision) == (64, Meeting.MICRO_BATCH, 4, "fp16")
    assert found.shares().sizes == ((24,), (24,), (8,), (8,))
    assert [group.line for group in found.groups] == [3, 7]


def test_accumulation_by_a_number_or_by_sizes_and_ranks_in_any_order():
    text = "batch: 30\ngroups:\n- {name: a, ranks: '1,3', micro_batch: [4, 3]}\n"
    found = read(text + "- {name: b, ranks: [0, 2], micro_batch: 4, accumulation: 2}\n", "f")
    assert found.shares().sizes == ((4, 4), (4, 3), (4, 4), (4, 3))
    loose = text.replace("[4, 3]", "7") + "- {name: b, ranks: [0, 2], micro_batch: 4, accumulation: 2}\n"
    assert read("meeting: step\n" + loose, "f").shares().meeting is Meeting.STEP
    [(line, said)] = wrong(loose)
    assert line == 4
    assert said.startswith("2 micro-batches a step, and 1 in the group of line 3: ranks that meet at every micro-batch")


def test_stages_of_a_pipeline_each_have_the_whole_batch():
    text = """
batch: 8
groups:
  - {name: a, ranks: 0-1, micro_batch: 4, stages: 0}
  - {name: b, ranks: 2, micro_batch: 8, stages: [1, 2], precision: bf16}
"""
    found = read(text, "f")
    assert found.shares(0).sizes == ((4,), (4,))
    assert found.shares(2).sizes == ((8,),)
    assert found.precision == ""
    assert wrong(text.replace("ranks: 2, micro_batch: 8", "ranks: 2, micro_batch: 7")) == [
        (2, "batch is 8, and the groups make 1·7 = 7 at stage 1; 8 would be micro_batch b [7, 1]"),
        (2, "batch is 8, and the groups make 1·7 = 7 at stage 2; 8 would be micro_batch b [7, 1]"),
    ]
    assert wrong(text.replace("[1, 2]", "2")) == [(4, "no group holds stage 1 of the pipeline")]
    assert wrong(text.replace(", stages: 0", "")) == [
        (4, "it has no stages, and other groups have"), (4, "no group holds stage 0 of the pipeline"),
    ]  # fmt: skip


def test_twice_16_and_twice_15_are_62():
    text = "batch: 64\ngroups:\n- {name: a, ranks: 0-1, micro_batch: 16}\n- {name: b, ranks: 2-3, micro_batch: 15}\n"
    [(line, said)] = wrong(text)
    assert line == 1
    assert said.startswith("batch is 64, and the groups make 2·16 + 2·15 = 62; 64 would be micro_batch a [")
    corrected = re.findall(r"([ab]) (\[[\d, ]+\])", said)
    for name, sizes in corrected:
        text = re.sub(rf"(name: {name}, .*micro_batch: )\d+", rf"\g<1>{sizes}", text)
    assert read(text, "f").batch == 64  # what it offers is right


def test_where_no_sizes_make_the_batch_the_nearest_batches_are_offered():
    [(_, said)] = wrong("batch: 64\ngroups:\n- {name: a, ranks: 0-2, micro_batch: 1}\n")
    assert said == "batch is 64, and the groups make 3·1 = 3; 63 or 66 can be met with such sizes"


def test_everything_that_is_wrong_at_once_by_line():
    text = """\
bacth: 64
meeting: sometimes
groups:
  - name: a
    ranks: 0-1
    micro_bach: 24
    precision: bfloat16
  - name: b
    ranks: [3, x]
    micro_batch: -2
    micro_batch: 8
    accumulation: 1.5
  - just text
"""
    assert wrong(text) == [
        (1, "the file has no batch"),
        (1, "there is no key of the file 'bacth'; did you mean batch?"),
        (2, "there is no meeting 'sometimes'; choose from micro-batch and step"),
        (4, "a group has no micro_batch"),
        (6, "there is no key of a group 'micro_bach'; did you mean micro_batch?"),
        (7, "there is no precision 'bfloat16'; did you mean bf16?"),
        (9, "ranks have to be like 3, 0-3 or [0, 1], and are 'x'"),
        (10, "micro_batch has to be a whole number of at least 1, and is '-2'"),
        (11, "micro_batch is there twice, first on line 10"),
        (12, "accumulation has to be a whole number of at least 1, and is '1.5'"),
        (13, "a group has to be a mapping with name, ranks, micro_batch, accumulation, precision, stages"),
    ]


def test_ranks_twice_or_nowhere_and_precisions_that_differ():
    text = GOOD.replace("[2, 3]", "[1, 4]").replace("precision: fp16, acc", "precision: bf16, acc")
    differ = (
        "precision is bf16, and fp16 in the group of line 3: gradients are summed over both, and fp16 scales its losses"
    )
    assert wrong(text) == [
        (3, "ranks 2-3 are in no group"),
        (7, differ),
        (7, "rank 1 is in the group of line 3 already"),
    ]
    assert wrong(GOOD.replace("0-1", "0,0-1"))[0] == (3, "rank 0 is twice in this group")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the file has to be a mapping"),
        ("a: [", "no YAML that can be read"),
        ("a: 1\n---\nb: 2\n", "no YAML"),
        ("[" * 100_000, "no YAML"),
        ("a: \x00", "no YAML"),
        ("#" * 300_000, "more than 262,144 characters"),
        ("&a [*a]", "the file has to be a mapping"),
        ("batch: 8\ngroups: &g [*g]", "a group has to be a mapping"),
        ("batch: !!python/object/apply:os.system ['true']\ngroups: []", "is 'a list'"),
        (GOOD.replace("0-1", "0-99999999999"), "ranks have to be like"),
        (GOOD.replace("24", "9" * 5000), "micro_batch has to be a whole number"),
    ],
)  # fmt: skip
def test_hostile_files_are_refused_in_a_sentence(text, why):
    with pytest.raises(BadValue, match=re.escape(why)) as caught:
        read(text, "heterogeneous.yaml")
    assert len(str(caught.value)) < 1200


@settings(max_examples=150, deadline=None)
@given(st.one_of(
    st.text(max_size=60),
    st.tuples(st.integers(0, len(GOOD)), st.integers(0, 9), st.text("[]{}:-, \n&*!0aé", max_size=4)).map(
        lambda cut: GOOD[: cut[0]] + cut[2] + GOOD[cut[0] + cut[1] :]
    ),
))  # fmt: skip
def test_any_text_is_read_or_refused(text):
    try:
        found = read(text, "f")
    except BadValue:
        return
    assert sum(map(sum, found.shares().sizes)) == found.batch
    assert sorted(rank for group in found.groups for rank in group.ranks) == list(range(found.world))


@given(
    batch=st.integers(1, 200),
    meeting=st.sampled_from(Meeting),
    kinds=st.lists(st.tuples(st.integers(1, 4), st.floats(0.01, 1.0), st.integers(1, 16)), min_size=1, max_size=3),
)
def test_what_was_dealt_out_is_read_as_it_was(batch, meeting, kinds):
    found = [linear(f"GPU: {at}", ranks, 0.02, time_s, most) for at, (ranks, time_s, most) in enumerate(kinds)]
    if not possible(found, batch, meeting):
        return
    dealt = allot(found, batch, meeting)
    again = read(text(dealt, "bf16"), "heterogeneous.yaml")
    assert (again.batch, again.meeting, again.precision) == (batch, meeting, "bf16")
    assert again.shares().sizes == tuple(share.micro_batches for share in dealt.shares)
    assert "precision" not in text(dealt, "fp8")
