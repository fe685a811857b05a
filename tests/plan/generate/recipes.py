"""Recipes that hypothesis draws: all that DeepSpeed and FSDP2 can both say."""

from hypothesis import strategies as st

from holdfast.plan.generate.recipe import (
    Curve,
    Descent,
    Half,
    Offloaded,
    Place,
    Rates,
    Recipe,
    Rise,
    Scaler,
    Sharded,
)  # fmt: skip

_SMALL = st.floats(1e-8, 0.5).map(lambda each: float(f"{each:.6g}"))


@st.composite
def shared(draw):
    """What has a counterpart on both sides."""
    half, sharded = draw(st.sampled_from(Half)), draw(st.sampled_from(Sharded))
    shards = draw(st.sampled_from([2, 4, 8, 16]))
    name = draw(st.sampled_from(["AdamW", "Adam", "SGD"]))
    adam = name != "SGD"
    made = Descent(
        name=name, lr=draw(_SMALL), weight_decay=draw(st.sampled_from([0.0, 0.1])),
        betas=draw(st.tuples(_SMALL, _SMALL)) if adam else (0.9, 0.999), eps=draw(_SMALL) if adam else 1e-8,
        momentum=0.0 if adam else draw(st.sampled_from([0.0, 0.9])),
    )  # fmt: skip
    curve = draw(st.sampled_from(Curve))
    rates = Rates() if curve is Curve.NONE else Rates(
        curve=curve, warmup_steps=draw(st.integers(1, 500)), rise=draw(st.sampled_from(Rise)),
        total_steps=0 if curve is Curve.CONSTANT else draw(st.integers(500, 10_000)),
        start=draw(st.sampled_from([0.0, 0.125])), end=draw(_SMALL) if curve is Curve.COSINE else 0.0,
    )  # fmt: skip
    # FSDP2 offloads all or nothing, so that both sides can say the same only where all is.
    away = draw(st.sampled_from([Offloaded(), Offloaded(Place.CPU), Offloaded(Place.CPU, pinned=False)]))
    return Recipe(
        sharded=sharded, ranks=shards, half=half, descent=draw(st.sampled_from([made, None])), schedule=rates,
        kept_among=draw(st.sampled_from([0, 2])) if sharded is Sharded.PARAMETERS else 0,
        micro_batch=draw(st.integers(1, 8)), accumulation=draw(st.integers(1, 8)),
        master=half is Half.FP32 or sharded is Sharded.NOTHING or half is Half.FP16 or draw(st.booleans()),
        reduced=draw(st.sampled_from(Half)), clipping=draw(st.sampled_from([0.0, 0.5, 1.0])),
        scaler=draw(st.sampled_from([Scaler(), Scaler(128.0, 10, 500)])) if half is Half.FP16 else Scaler(),
        optimizer_on=Offloaded() if sharded is Sharded.NOTHING else away,
        parameters_on=away if sharded is Sharded.PARAMETERS else Offloaded(),
        autocast=draw(st.sampled_from([Half.FP32, Half.BF16])) if half is Half.FP32 else Half.FP32,
        recomputed_on_cpu=draw(st.booleans()), whole_save=sharded is Sharded.PARAMETERS and draw(st.booleans()),
    )  # fmt: skip
