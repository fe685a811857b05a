"""Compare memory by part with published peaks, and check its invariants."""

import itertools

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.core.errors import InvalidValue
from holdfast.plan.memory.activations import layer_activations
from holdfast.plan.memory.estimate import MemoryFit, estimate_memory, estimate_rank_memory
from holdfast.plan.memory.peaks import PeakMoment
from holdfast.plan.memory.states import (
    count_parameters,
    layers_on_stage,
    model_states,
    stage_parameters,
)
from holdfast.plan.models import Transformer, get_known_model
from holdfast.plan.setup import (
    ActivationCheckpointing,
    LossKernel,
    OffloadTarget,
    OptimizerKind,
    PipelineSchedule,
    Precision,
    ShardingStrategy,
    TrainingSetup,
)

GIB = 1 << 30
FSDP = (ShardingStrategy.FSDP1, ShardingStrategy.FSDP2)

# ---- published figures

#: pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: model, peak reserved GiB, setup.
#: Norms were not fused in these runs.
RESERVED = [
    (
        "llama3.1-8b",
        82.4,
        {
            "data": 8,
            "micro_batch": 2,
            "sequence": 8192,
            "recompute": ActivationCheckpointing.OPERATIONS,
        },
    ),
    (
        "llama3.1-8b",
        67.0,
        {
            "data": 128,
            "micro_batch": 2,
            "sequence": 8192,
            "recompute": ActivationCheckpointing.OPERATIONS,
        },
    ),
    (
        "llama3.1-8b",
        61.8,
        {
            "data": 128,
            "micro_batch": 2,
            "sequence": 8192,
            "recompute": ActivationCheckpointing.OPERATIONS,
            "compiled": True,
        },
    ),
    (
        "llama3.1-8b",
        83.9,
        {"data": 8, "sequence": 32768, "recompute": ActivationCheckpointing.FULL, "compiled": True},
    ),
    (
        "llama3.1-8b",
        84.5,
        {
            "context": 8,
            "sequence": 262144,
            "recompute": ActivationCheckpointing.FULL,
            "compiled": True,
        },
    ),
    (
        "llama3.1-70b",
        67.6,
        {
            "data": 32,
            "tensor": 8,
            "micro_batch": 16,
            "sequence": 8192,
            "recompute": ActivationCheckpointing.FULL,
            "compiled": True,
        },
    ),
    (
        "llama3.1-405b",
        75.3,
        {
            "data": 8,
            "tensor": 8,
            "pipeline": 8,
            "accumulation": 8,
            "sequence": 32768,
            "reshard": False,
            "recompute": ActivationCheckpointing.FULL,
            "compiled": True,
        },
    ),
]


@pytest.mark.parametrize(("name", "gib", "how"), RESERVED)
def test_reserved_memory_matches_published_peaks(name, gib, how):
    result = estimate_memory(get_known_model(name), TrainingSetup(fused_norms=False, **how)).worst
    assert result.reserved / GIB == pytest.approx(gib, rel=0.05)


#: torch's FSDPMemTracker on fake tensors, torch 2.13, at depths 4 and 8 and extrapolated, or at full depth, in GiB.
TRACKED = [
    (
        "llama3.1-8b",
        57.893,
        {
            "data": 128,
            "micro_batch": 2,
            "sequence": 8192,
            "recompute": ActivationCheckpointing.OPERATIONS,
            "fused_norms": False,
        },
    ),
    ("llama2-13b", 64.81, {"data": 64, "micro_batch": 2, "sequence": 4096}),
    (
        "llama2-70b",
        59.8,
        {"data": 64, "sequence": 4096, "recompute": ActivationCheckpointing.OPERATIONS},
    ),
    (
        "llama2-70b",
        136.4,
        {
            "data": 64,
            "micro_batch": 2,
            "sequence": 4096,
            "recompute": ActivationCheckpointing.SECOND_LAYER,
        },
    ),
    (
        "llama2-70b",
        34.8,
        {
            "data": 64,
            "micro_batch": 2,
            "sequence": 4096,
            "recompute": ActivationCheckpointing.FULL,
            "fused_norms": False,
        },
    ),
]


@pytest.mark.parametrize(("name", "gib", "how"), TRACKED)
def test_tensor_memory_matches_the_tracker(name, gib, how):
    assert estimate_memory(
        get_known_model(name), TrainingSetup(**how)
    ).worst.tensors / GIB == pytest.approx(gib, rel=0.03)


#: pytorch/torchtitan, docs/performance.md, on A100s of 79.15 GiB; Llama 3.1 405B on H100s of 95 GiB.
@pytest.mark.parametrize(
    ("name", "gib", "how", "fit"),
    [
        (
            "llama2-13b",
            79.15,
            {"micro_batch": 2, "recompute": ActivationCheckpointing.OPERATIONS},
            MemoryFit.FITS,
        ),
        (
            "llama2-70b",
            79.15,
            {"micro_batch": 1, "recompute": ActivationCheckpointing.OPERATIONS},
            MemoryFit.FITS,
        ),
        (
            "llama2-70b",
            79.15,
            {"micro_batch": 2, "recompute": ActivationCheckpointing.OPERATIONS},
            MemoryFit.DOES_NOT_FIT,
        ),
        (
            "llama2-70b",
            79.15,
            {"micro_batch": 2, "recompute": ActivationCheckpointing.SECOND_LAYER},
            MemoryFit.DOES_NOT_FIT,
        ),
        (
            "llama3.1-405b",
            95,
            {
                "data": 128,
                "micro_batch": 2,
                "sequence": 8192,
                "recompute": ActivationCheckpointing.FULL,
            },
            MemoryFit.DOES_NOT_FIT,
        ),
        (
            "llama3.1-405b",
            95,
            {
                "data": 16,
                "tensor": 8,
                "micro_batch": 2,
                "sequence": 8192,
                "recompute": ActivationCheckpointing.FULL,
            },
            MemoryFit.FITS,
        ),
    ],
)
def test_published_outcomes_are_predicted(name, gib, how, fit):
    run = TrainingSetup(**{"data": 64, "sequence": 4096, "fused_norms": False, **how})
    assert estimate_memory(get_known_model(name), run, int(gib * GIB)).fit is fit


#: S. Rajbhandari et al. (2019), figure 1: GB for 7.5 B parameters on 64 ranks.
@pytest.mark.parametrize(
    ("strategy", "gb"),
    [
        (ShardingStrategy.DDP, 120),
        (ShardingStrategy.ZERO1, 31.4),
        (ShardingStrategy.ZERO2, 16.6),
        (ShardingStrategy.ZERO3, 1.9),
    ],
)
def test_model_states_match_the_zero_paper(strategy, gb):
    size = count_parameters(get_known_model("llama2-7b"))._replace(
        layers=1, matrices=7_500_000_000, norms=0, embedding=0, head=0, last_norm=0
    )
    run = TrainingSetup(strategy=strategy, data=64, precision=Precision(gradient=2))
    assert model_states(stage_parameters(size, run, 0), run).total / 1e9 == pytest.approx(
        gb, rel=0.015
    )


# ---- invariants

MODELS = st.builds(
    lambda layers, heads, groups, gated, tied, experts: Transformer(
        name="any",
        layers=layers,
        hidden=64 * heads * groups,
        heads=heads * groups,
        kv_heads=groups,
        head_width=64,
        ffn=256 * heads,
        vocab=32000,
        gated=gated,
        tied=tied,
        norm_bias=not gated,
        experts=experts,
        active=min(2, experts),
    ),
    st.integers(8, 40),
    st.integers(1, 8),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 8]),
)
POWERS = st.sampled_from([1, 2, 4, 8])
SETUPS = st.builds(
    TrainingSetup,
    strategy=st.sampled_from(list(ShardingStrategy)),
    data=st.sampled_from([2, 8, 64]),
    tensor=POWERS,
    pipeline=st.sampled_from([1, 2, 5, 8]),
    context=POWERS,
    sequence_parallel=st.booleans(),
    schedule=st.sampled_from(
        [PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.ZERO_BUBBLE]
    ),
    micro_batch=POWERS,
    accumulation=st.sampled_from([1, 16]),
    sequence=st.sampled_from([512, 8192]),
    recompute=st.sampled_from(list(ActivationCheckpointing)),
    flash=st.booleans(),
    compiled=st.booleans(),
    optimizer=st.sampled_from(list(OptimizerKind)),
    offload=st.sampled_from([OffloadTarget.NONE, OffloadTarget.OPTIMIZER]),
    reshard=st.booleans(),
    loss=st.sampled_from(list(LossKernel)),
    dropout=st.booleans(),
    fused_norms=st.booleans(),
)


def changed(setup, **how):
    return msgspec.structs.replace(setup, **how)


@given(MODELS, SETUPS)
def test_parts_are_nonnegative_and_sum_to_total(model, setup):
    for result in estimate_memory(model, setup).stages:
        parts = dict(result.parts())
        assert min(parts.values()) >= 0
        assert sum(parts.values()) == result.total
        assert result.tensors <= result.reserved <= result.total


@given(MODELS, POWERS, st.sampled_from([1, 2, 3, 5, 8]))
def test_stages_and_tensor_ranks_partition_the_parameters(model, tensor, pipeline):
    run = TrainingSetup(tensor=tensor, pipeline=pipeline)
    size = count_parameters(model)
    stages = [stage_parameters(size, run, stage) for stage in range(pipeline)]
    norms = size.norms * size.layers + size.last_norm  # on every tensor-parallel rank
    copies = size.head if model.tied and pipeline > 1 else 0  # a tied head on a separate stage
    assert sum(own.layers for own in stages) == model.layers
    assert sum(own.total for own in stages) * tensor - (
        tensor - 1
    ) * norms - copies == pytest.approx(model.params)


@given(
    st.integers(1, 64).flatmap(lambda stages: st.tuples(st.just(stages), st.integers(stages, 200)))
)
def test_stages_have_balanced_numbers_of_layers(stages_and_layers):
    stages, layers = stages_and_layers
    counts = [layers_on_stage(layers, stages, stage) for stage in range(stages)]
    assert sum(counts) == layers
    assert min(counts) >= 0
    assert max(counts) - min(counts) <= 3


@given(MODELS, SETUPS, st.sampled_from([1, 8]))
def test_shards_of_all_ranks_sum_to_the_model(model, setup, expert):
    setup = changed(setup, expert=min(expert, setup.data), offload=OffloadTarget.NONE)
    assume(model.experts > 1 or setup.expert == 1)
    own = stage_parameters(count_parameters(model), setup, 0)
    states = model_states(own, setup)
    total = own.dense + own.experts * setup.expert
    form, ranks = setup.precision, setup.shards
    if setup.shards_parameters:
        weight_bytes = form.master if setup.strategy in FSDP else form.compute
        assert states.parameters * ranks == pytest.approx(total * weight_bytes)
        assert states.gradients * ranks == pytest.approx(total * form.gradient)
    if setup.strategy is not ShardingStrategy.DDP and setup.strategy not in FSDP:
        assert states.master * ranks == pytest.approx(total * form.master)
    if setup.strategy is not ShardingStrategy.DDP and setup.optimizer is OptimizerKind.ADAMW:
        assert states.optimizer * ranks == pytest.approx(2 * total * form.state)


@given(MODELS, SETUPS)
def test_checkpointing_never_needs_more_memory(model, setup):
    plain = estimate_memory(model, changed(setup, recompute=ActivationCheckpointing.NONE)).worst
    assert estimate_memory(model, setup).worst.reserved <= plain.reserved + 16  # rounding


@given(MODELS, SETUPS)
def test_more_shards_never_need_more_memory(model, setup):
    assert (
        estimate_memory(model, changed(setup, data=2 * setup.data)).worst.total
        <= estimate_memory(model, setup).worst.total + 16
    )


@given(MODELS, SETUPS)
def test_larger_micro_batch_never_needs_less_memory(model, setup):
    larger = estimate_memory(model, changed(setup, micro_batch=2 * setup.micro_batch)).worst
    assert larger.total >= estimate_memory(model, setup).worst.total - 16


@given(MODELS, SETUPS)
def test_evaluated_stages_include_the_largest(model, setup):
    result = estimate_memory(model, setup).worst
    each = [estimate_rank_memory(model, setup, stage).total for stage in range(setup.pipeline)]
    assert max(each) == result.total


@given(MODELS, SETUPS)
def test_offloaded_states_are_on_the_host(model, setup):
    assume(setup.shards_parameters)
    own = stage_parameters(count_parameters(model), setup, 0)
    before = model_states(own, changed(setup, offload=OffloadTarget.NONE))
    after = model_states(own, changed(setup, offload=OffloadTarget.PARAMETERS))
    assert (after.total, after.host) == (0, before.total)


@given(MODELS, SETUPS)
def test_strategies_are_ordered_by_sharding(model, setup):
    stages = [
        estimate_memory(
            model,
            changed(
                setup, strategy=strategy, offload=OffloadTarget.NONE, optimizer=OptimizerKind.ADAMW
            ),
        ).stages[0]
        for strategy in (
            ShardingStrategy.DDP,
            ShardingStrategy.ZERO1,
            ShardingStrategy.ZERO2,
            ShardingStrategy.ZERO3,
        )
    ]
    states = [result.parameters + result.master + result.optimizer for result in stages]
    assert all(one >= other for one, other in itertools.pairwise(states))


# ---- single memory options


def peak(**how):
    return estimate_memory(
        get_known_model("llama3.1-8b"), TrainingSetup(**{"data": 8, "sequence": 8192, **how})
    ).worst


def test_large_vocabulary_peaks_at_the_loss():
    result = peak(recompute=ActivationCheckpointing.FULL, micro_batch=4)
    assert result.moment is PeakMoment.LOSS
    assert result.logits == 4 * 8192 * 128256 * 12


@pytest.mark.parametrize("loss", [LossKernel.COMPILED, LossKernel.FUSED, LossKernel.CHUNKED])
def test_other_loss_kernels_need_less_memory(loss):
    assert peak(loss=loss, micro_batch=4).total < peak(micro_batch=4).total


def test_attention_scores_grow_quadratically_without_flash_attention():
    short, long = peak(flash=False), peak(flash=False, sequence=16384)
    assert long.activations > 3 * short.activations
    assert peak(sequence=16384).activations == pytest.approx(2 * peak().activations, rel=0.01)


def test_context_parallel_ranks_gather_keys_and_values():
    alone, ring = (
        layer_activations(
            get_known_model("llama2-7b"),
            TrainingSetup(
                context=context, sequence=context * 4096, recompute=ActivationCheckpointing.FULL
            ),
        )
        for context in (1, 16)
    )
    assert ring.saved == alone.saved
    assert ring.recomputed - alone.recomputed > 14 * 2 * 2 * 4096 * 4096 - 4 * 2 * 4096 * 11008


def test_tied_head_counts_once():
    model = get_known_model("llama3.2-1b")
    run = TrainingSetup(strategy=ShardingStrategy.DDP, precision=Precision(gradient=2))
    assert estimate_memory(model, run).worst.parameters == 2 * model.params


def test_experts_are_sharded_by_expert_parallelism():
    model = get_known_model("mixtral-8x7b")
    replicated, sharded = (
        estimate_rank_memory(
            model, TrainingSetup(strategy=ShardingStrategy.DDP, data=8, expert=each)
        )
        for each in (1, 8)
    )
    experts = 32 * 8 * 3 * 4096 * 14336
    assert replicated.parameters - sharded.parameters == pytest.approx(
        2 * experts * 7 / 8, rel=1e-3
    )


@pytest.mark.parametrize(
    ("optimizer", "bytes_per_weight"),
    [
        (OptimizerKind.SGD, 0),
        (OptimizerKind.MOMENTUM, 4),
        (OptimizerKind.ADAMW, 8),
        (OptimizerKind.ADAMW_8BIT, 2.03125),
    ],
)
def test_optimizer_states_match_published_sizes(optimizer, bytes_per_weight):
    result = estimate_rank_memory(
        get_known_model("llama2-7b"),
        TrainingSetup(strategy=ShardingStrategy.DDP, optimizer=optimizer),
    )
    assert result.optimizer == pytest.approx(bytes_per_weight * get_known_model("llama2-7b").params)


def test_factored_optimizers_need_less_memory():
    model = get_known_model("llama2-7b")
    muon, adafactor, adam = (
        estimate_rank_memory(
            model, TrainingSetup(strategy=ShardingStrategy.DDP, optimizer=each)
        ).optimizer
        for each in (OptimizerKind.MUON, OptimizerKind.ADAFACTOR, OptimizerKind.ADAMW)
    )
    assert adafactor < 0.01 * adam
    assert 0.5 * adam < muon < 0.53 * adam


def test_ddp_buckets_copy_the_gradients_unless_they_are_views():
    copied, viewed = (
        peak(strategy=ShardingStrategy.DDP, bucket_views=each) for each in (False, True)
    )
    assert copied.buffers - viewed.buffers == 4 * get_known_model("llama3.1-8b").params


def test_more_stages_than_layers_are_rejected():
    with pytest.raises(InvalidValue, match="llama2-7b has 32 layers"):
        estimate_memory(get_known_model("llama2-7b"), TrainingSetup(pipeline=64))


def test_small_gradient_shards_fragment_reserved_memory():
    short, long = (
        peak(sequence=sequence, recompute=ActivationCheckpointing.FULL)
        for sequence in (1024, 65536)
    )
    gradients = 4 * get_known_model("llama3.1-8b").params / 8
    assert long.reserve - 0.09 * (long.tensors - long.parameters - long.optimizer) == pytest.approx(
        gradients + 2 * 65536 * 128256, rel=0.01
    )
    assert short.reserve < 0.1 * short.tensors


def test_margin_within_the_model_error_is_tight():
    total = peak().total
    answers = [
        estimate_memory(
            get_known_model("llama3.1-8b"), TrainingSetup(data=8, sequence=8192), each
        ).fit
        for each in (2 * total, total, total // 2, None)
    ]
    assert answers == [MemoryFit.FITS, MemoryFit.TIGHT, MemoryFit.DOES_NOT_FIT, None]
