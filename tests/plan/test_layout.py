"""Layouts multiply to the world size, meet the batch exactly and fit; what is published as good is found."""

import re
from itertools import product

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadValue
from holdfast.plan import layout_space as space
from holdfast.plan.groups import groups
from holdfast.plan.groups_verify import verify
from holdfast.plan.hardware import Cluster
from holdfast.plan.layout import BASE, HEADINGS, layouts
from holdfast.plan.layout_search import ask
from holdfast.plan.layout_space import Options
from holdfast.plan.memory import Answer, footprint
from holdfast.plan.models import known
from holdfast.plan.setup import Offload, Precision, Strategy
from holdfast.plan.time import step

#: H. Touvron et al., "LLaMA" (2023), table 2.
LLAMA_65B = msgspec.structs.replace(known("llama2-70b"), name="llama-65b", kv_heads=64, ffn=22016)


def test_65_billion_parameters_fit_into_two_nodes():
    found = layouts(LLAMA_65B, Cluster.parse("2 x 8 A100-80G"), 512, 2048)
    assert found.best
    assert not found.tight
    for each in found.best:
        assert each.setup.shards_parameters  # 16 bytes a parameter are 61 of the 79 GiB of each of 16
        assert each.setup.tensor <= 8
        assert each.needs.answer is Answer.FITS
    assert {len(row) for row in found.rows()} == {len(HEADINGS)}


#: (model, cluster, batch, sequence, degrees: tensor, pipeline, context, expert). Megatron-LM, docs/user-guide/
#: parallelism-guide.md; "The Llama 3 Herd of Models" (2024), table 4.
PUBLISHED = [
    ("llama3.1-8b", "8 H100", 128, 8192, (1, 1, 2, 1)),
    ("llama3.1-70b", "8 x 8 H100", 128, 8192, (4, 4, 2, 1)),
    ("llama3.1-405b", "128 x 8 H100", 512, 8192, (8, 8, 2, 1)),
    ("gpt3-175b", "32 x 8 H100", 1536, 2048, (4, 8, 1, 1)),
    ("mixtral-8x7b", "8 x 8 H100", 1024, 4096, (1, 4, 1, 8)),
    ("llama3.1-405b", "2048 x 8 H100", 2048, 8192, (8, 16, 1, 1)),
    ("llama3.1-405b", "2048 x 8 H100", 128, 131072, (8, 16, 16, 1)),
]


@pytest.mark.parametrize(("name", "written", "batch", "sequence", "degrees"), PUBLISHED)
def test_what_others_run_fits_and_is_not_far_behind(name, written, batch, sequence, degrees):
    model, cluster = known(name), Cluster.parse(written)
    tensor, pipeline, context, expert = degrees
    asked = Options(tensor=tensor, pipeline=pipeline, context=context, expert=expert)
    theirs = layouts(model, cluster, batch, sequence, options=asked)
    assert not theirs.tight
    run = theirs.best[0].setup
    assert (run.tensor, run.pipeline, run.context, run.expert) == degrees
    best = layouts(model, cluster, batch, sequence).best[0]
    assert 0.85 < theirs.best[0].step.tokens_per_s / best.step.tokens_per_s <= 1


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["gpt2-xl", "llama2-7b", "llama3.1-70b", "mixtral-8x7b"]),
    st.sampled_from(["8 A100-40G", "4 V100", "2 x 8 A100", "3 x 4 H100", "16 x 8 H100", "24 B200/8"]),
    st.integers(1, 400), st.sampled_from([512, 2048, 8192]),
)  # fmt: skip
def test_every_layout_has_all_gpus_the_batch_exactly_and_room(name, written, batch, sequence):
    model, cluster = known(name), Cluster.parse(written)
    try:
        found = layouts(model, cluster, batch, sequence)
    except BadValue as error:
        offered = [int(each) for each in re.findall(r"\d+", str(error.next_step))]
        assert all(layouts(model, cluster, each, sequence) for each in offered)
        return
    assert bool(found.best) != bool(found.shortage)
    speeds = [each.step.tokens_per_s for each in found.best]
    assert speeds == sorted(speeds, reverse=True)
    for each in (*found.best, *filter(None, [found.simplest])):
        run = each.setup
        assert run.world_size == cluster.gpus
        assert run.global_batch == batch
        assert run.sequence == sequence
        memory = round(cluster.gpu.memory_gib * 2**30)
        assert footprint(model, run, memory).answer in ((Answer.FITS, Answer.TIGHT)[: 1 + found.tight])
        assert each.step == step(model, run, cluster)
        assert cluster.per_node % run.tensor == 0
        assert model.kv_heads % run.tensor == model.experts % run.expert == 0
        assert verify(groups(run), cluster.gpus, cluster.per_node) == []


@pytest.mark.parametrize(
    ("name", "written", "batch", "sequence", "flash"),
    [
        ("gpt2-xl", "8 A100-40G", 16, 8192, False),
        ("llama2-7b", "3 x 2 B200", 12, 2048, True),
        ("llama3.1-70b", "4 x 8 H100", 32, 4096, True),
        ("mixtral-8x7b", "2 x 8 H100", 16, 4096, True),
    ],
)
def test_what_the_search_leaves_out_is_not_the_fastest(name, written, batch, sequence, flash):
    model, cluster = known(name), Cluster.parse(written)
    base = msgspec.structs.replace(BASE, sequence=sequence, flash=flash)
    question = ask(model, cluster, batch, base, Options())
    found = layouts(model, cluster, batch, sequence, base=base)
    seconds = {shape: took for shape, took in everything(question) if question.allows(shape)}
    assert not found.tight
    assert [each.step.seconds for each in found.best] == pytest.approx(sorted(seconds.values())[:3], rel=1e-9)


@pytest.mark.parametrize("nodes", [48, 96, 192])
def test_zero3_alone_loses_to_three_kinds_at_175_billion(nodes):
    """D. Narayanan et al. (2021), table 2: by 6 % on 384 A100, and by more on more (no flash attention then)."""
    cluster, old = Cluster.parse(f"{nodes} x 8 A100-80G"), msgspec.structs.replace(BASE, flash=False)
    options = Options(strategies=(Strategy.ZERO1, Strategy.ZERO3))
    found = layouts(known("gpt3-175b"), cluster, 1536, 2048, base=old, options=options)
    assert found.best[0].setup.strategy is Strategy.ZERO1
    assert min(found.best[0].setup.tensor, found.best[0].setup.pipeline) > 1
    (zero3,) = (each for each in found.others if each.value == "ZeRO-3")
    assert zero3.behind > 0.06
    assert zero3.setup.tensor == zero3.setup.pipeline == 1


def test_replicas_win_where_the_network_is_slow():
    """oumi-ai/oumi#213: a model of 2 B on 4 nodes of GCP with 100 Gbit/s, 1.34 times as fast with HSDP.

    Taken to be reduced in bf16, which it does not say: reduced in fp32 the model of time has the other one in front.
    """
    model = msgspec.structs.replace(known("llama2-7b"), name="llama-2b", layers=24, hidden=2560, ffn=6912, heads=20,
                                    kv_heads=20)  # fmt: skip
    cluster = Cluster.parse("4 x 8 A100-40G @ 100 Gbit/s")
    base = msgspec.structs.replace(BASE, precision=Precision(reduced=2))
    options = Options(strategies=(Strategy.FSDP2,), tensor=1, pipeline=1, context=1)
    found = layouts(model, cluster, 128, 2048, base=base, options=options)
    assert found.best[0].setup.replicas > 1


# ---- what is said


def test_each_answer_says_where_its_time_goes_and_what_binds():
    found = layouts(known("llama3.1-70b"), Cluster.parse("8 x 8 A100"), 512, 4096)
    for each in found.best:
        assert each.reasons[0].startswith("time goes to computing ")
        assert any("micro-batches of" in reason and "GiB" in reason for reason in each.reasons)
    assert [each.behind for each in found.best] == sorted(each.behind for each in found.best)
    assert found.best[0].behind == 0


def test_each_degree_that_lost_says_why():
    found = layouts(known("gpt-530b"), Cluster.parse("140 x 8 A100-80G"), 2240, 2048)
    said = {(each.axis, each.value): each for each in found.others}
    best = found.best[0].setup
    for axis, degrees in {"tensor": (1, 2, 4, 8, 16), "pipeline": (1, 2, 5, 7, 35)}.items():
        for degree in degrees:
            assert ((axis, str(degree)) in said) == (getattr(best, axis) != degree)
    assert "crosses nodes, " in said["tensor", "16"].why
    assert said["pipeline", "2"].behind is None
    assert "GiB at least" in said["pipeline", "2"].why
    assert all(0 <= each.behind < 1 for each in found.others if each.behind is not None)
    assert all(str(each).startswith(f"{each.axis} {each.value}: ") for each in found.others)


def test_tensor_parallelism_over_nodes_is_an_answer_only_where_it_is_asked_for():
    cluster = Cluster.parse("2 x 2 A100-80G")
    found = layouts(LLAMA_65B, cluster, 8, 512)
    assert not found.best
    across = layouts(LLAMA_65B, cluster, 8, 512, options=Options(tensor=4, strategies=(Strategy.FSDP2,)),
                     base=msgspec.structs.replace(BASE, offload=Offload.PARAMETERS))  # fmt: skip
    assert across.best[0].setup.tensor == 4


def test_what_is_tight_is_an_answer_only_where_it_is_asked_for_or_nothing_else_fits():
    cluster = Cluster.parse("2 x 8 A100-80G")
    safe = layouts(LLAMA_65B, cluster, 512)
    tight = layouts(LLAMA_65B, cluster, 512, options=Options(tight=True))
    assert (safe.tight, tight.tight) == (False, True)
    assert tight.best[0].step.tokens_per_s > safe.best[0].step.tokens_per_s
    without = layouts(LLAMA_65B, cluster, 512, base=msgspec.structs.replace(BASE, fused_optimizer=False))
    assert without.tight
    assert {each.needs.answer for each in without.best} == {Answer.TIGHT}


def test_the_simplest_is_as_good_and_has_no_more_kinds():
    found = layouts(known("llama3.1-8b"), Cluster.parse("8 H100"), 64, 8192)
    kinds = [sum(each > 1 for each in (run.tensor, run.pipeline, run.context))
             for run in (found.simplest.setup, found.best[0].setup)]  # fmt: skip
    assert kinds[0] < kinds[1]
    assert 0 < found.simplest.behind < 0.05


# ---- what cannot be


def test_a_batch_that_cannot_be_met_is_answered_with_the_nearest():
    cluster = Cluster.parse("16 x 8 H100")
    model = known("llama2-7b")
    with pytest.raises(BadValue, match=r"7 sequences .* meets it exactly; take 16") as refused:
        layouts(model, cluster, 7, 512)
    (offered,) = re.findall(r"take (\d+)", str(refused.value))
    assert layouts(model, cluster, int(offered), 512).best


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tensor": 3}, "tensor 3: it does not divide 16 GPUs"),
        ({"tensor": 16}, "tensor 16: it does not divide 8 heads of keys and values"),
        ({"expert": 2}, "expert 2: it does not divide 1 experts"),
        ({"context": 16}, "context 16: 32 pieces of 4104 tokens are not equal"),
        ({"pipeline": -1}, "-1 is less than 0"),
        ({"strategies": ()}, "there is none to try"),
        ({"strategies": (Strategy.ZERO3,), "tensor": 1, "pipeline": 2}, "cannot be divided so over 2 x 8 H100-80G"),
        ({"most": 0}, "0 is less than 1"),
    ],
)
def test_a_degree_that_cannot_be_is_refused(options, why):
    with pytest.raises(BadValue, match=re.escape(why)):
        layouts(known("llama3.1-70b"), Cluster.parse("2 x 8 H100"), 64, 4104, options=Options(**options))


def test_sizes_that_nobody_has_end_in_a_sentence():
    huge = msgspec.structs.replace(
        known("mixtral-8x7b"), layers=1 << 39, experts=1 << 39, heads=720720, kv_heads=720720
    )
    with pytest.raises(BadValue, match="layouts; give a degree or two"):
        layouts(huge, Cluster.parse("720720 H100/720720"), 1 << 60, 1 << 60)


@pytest.mark.parametrize(("batch", "sequence"), [(0, 512), (8, 0), (-1, 512)])
def test_a_batch_of_nothing_is_refused(batch, sequence):
    with pytest.raises(BadValue, match="cannot be"):
        layouts(known("gpt2"), Cluster.parse("8 A100"), batch, sequence)


def test_where_nothing_fits_it_says_what_would():
    found = layouts(known("llama3.1-405b"), Cluster.parse("8 H100"), 128, 8192)
    assert found.best == ()
    assert found.shortage.needs.answer is Answer.DOES_NOT_FIT
    assert found.shortage.ways.together[-1].needs.answer is Answer.FITS
    more = Cluster.parse("8 H100").resized(found.shortage.gpus)
    assert layouts(known("llama3.1-405b"), more, 128, 8192).best


def everything(question):
    """(shape, seconds of the fastest that fits with it), by trying all there is."""
    fastest = {}
    for shape in space.shapes(question.model, question.cluster, question.base.sequence, question.options)[0]:
        for order in question.orders(shape):
            for micro in space.micro_batches(shape, order[0], question.global_batch // shape.data):
                for sharing, saving in product(question.sharings(shape), question.ladder):
                    run = space.setup(question.base, shape, sharing, order, micro, saving)
                    if footprint(question.model, run, question.memory).answer is Answer.FITS:
                        took = step(question.model, run, question.cluster).seconds
                        fastest[shape] = min(took, fastest.get(shape, took))
    return fastest.items()
