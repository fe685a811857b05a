"""Hypothesis strategies for training setups and clusters of matching size."""

from hypothesis import strategies as st

from holdfast.plan.hardware import Cluster
from holdfast.plan.models import KNOWN_MODELS
from holdfast.plan.setup import (
    ActivationCheckpointing,
    PipelineSchedule,
    ShardingStrategy,
    TrainingSetup,
)

_POWERS = st.sampled_from([1, 2, 4, 8])


@st.composite
def jobs(draw):
    """Draw a consistent (model, setup, cluster)."""
    model = KNOWN_MODELS[
        draw(
            st.sampled_from(
                ["gpt2", "mpt-1b", "llama2-7b", "llama3.1-70b", "mixtral-8x7b", "gpt-22b"]
            )
        )
    ]
    data, tensor, pipeline, context = (
        draw(_POWERS),
        draw(_POWERS),
        draw(st.sampled_from([1, 2, 4])),
        draw(_POWERS),
    )
    setup = TrainingSetup(
        strategy=draw(st.sampled_from(ShardingStrategy)),
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        replicas=draw(st.sampled_from([each for each in (1, 2, 4) if data % each == 0])),
        expert=draw(st.sampled_from([each for each in (1, 2, 4) if data * context % each == 0])),
        schedule=draw(st.sampled_from(PipelineSchedule)),
        chunks=draw(st.sampled_from([1, 2])),
        micro_batch=draw(st.integers(1, 8)),
        accumulation=draw(st.integers(1, 8)),
        sequence=draw(st.sampled_from([512, 2048, 8192])),
        recompute=draw(st.sampled_from(ActivationCheckpointing)),
        flash=draw(st.booleans()),
        compiled=draw(st.booleans()),
        reshard=draw(st.booleans()),
    )
    kind = draw(st.sampled_from(["A100-40G", "H100-80G", "V100-16G", "B200", "RTX-4090"]))
    return model, setup, Cluster.from_gpus(kind, setup.world_size)
