"""Hypothesis strategies for recipes that DeepSpeed and FSDP2 can both express."""

from hypothesis import strategies as st

from holdfast.plan.generate.recipe import (
    ComputeDtype,
    LossScaler,
    LrDecay,
    LrSchedule,
    LrWarmup,
    OffloadPlacement,
    OptimizerValues,
    Recipe,
    ShardedStates,
    StateDevice,
)

_SMALL = st.floats(1e-8, 0.5).map(lambda each: float(f"{each:.6g}"))


@st.composite
def common_recipes(draw):
    """Draw a recipe with a counterpart on both sides."""
    half, sharded = draw(st.sampled_from(ComputeDtype)), draw(st.sampled_from(ShardedStates))
    shards = draw(st.sampled_from([2, 4, 8, 16]))
    name = draw(st.sampled_from(["AdamW", "Adam", "SGD"]))
    adam = name != "SGD"
    optimizer = OptimizerValues(
        name=name,
        lr=draw(_SMALL),
        weight_decay=draw(st.sampled_from([0.0, 0.1])),
        betas=draw(st.tuples(_SMALL, _SMALL)) if adam else (0.9, 0.999),
        eps=draw(_SMALL) if adam else 1e-8,
        momentum=0.0 if adam else draw(st.sampled_from([0.0, 0.9])),
    )
    curve = draw(st.sampled_from(LrDecay))
    rates = (
        LrSchedule()
        if curve is LrDecay.NONE
        else LrSchedule(
            decay=curve,
            warmup_steps=draw(st.integers(1, 500)),
            warmup=draw(st.sampled_from(LrWarmup)),
            total_steps=0 if curve is LrDecay.CONSTANT else draw(st.integers(500, 10_000)),
            start=draw(st.sampled_from([0.0, 0.125])),
            end=draw(_SMALL) if curve is LrDecay.COSINE else 0.0,
        )
    )
    # FSDP2 offloads all or nothing, so both sides agree only if everything is offloaded.
    away = draw(
        st.sampled_from(
            [
                OffloadPlacement(),
                OffloadPlacement(StateDevice.CPU),
                OffloadPlacement(StateDevice.CPU, pinned=False),
            ]
        )
    )
    return Recipe(
        sharded_states=sharded,
        ranks=shards,
        compute_dtype=half,
        optimizer=draw(st.sampled_from([optimizer, None])),
        schedule=rates,
        gather_group=draw(st.sampled_from([0, 2])) if sharded is ShardedStates.PARAMETERS else 0,
        micro_batch=draw(st.integers(1, 8)),
        accumulation=draw(st.integers(1, 8)),
        master=half is ComputeDtype.FP32
        or sharded is ShardedStates.NOTHING
        or half is ComputeDtype.FP16
        or draw(st.booleans()),
        reduce_dtype=draw(st.sampled_from(ComputeDtype)),
        clipping=draw(st.sampled_from([0.0, 0.5, 1.0])),
        scaler=draw(st.sampled_from([LossScaler(), LossScaler(128.0, 10, 500)]))
        if half is ComputeDtype.FP16
        else LossScaler(),
        optimizer_placement=OffloadPlacement() if sharded is ShardedStates.NOTHING else away,
        parameter_placement=away if sharded is ShardedStates.PARAMETERS else OffloadPlacement(),
        autocast_dtype=draw(st.sampled_from([ComputeDtype.FP32, ComputeDtype.BF16]))
        if half is ComputeDtype.FP32
        else ComputeDtype.FP32,
        offload_activations=draw(st.booleans()),
        gather_on_save=sharded is ShardedStates.PARAMETERS and draw(st.booleans()),
    )
