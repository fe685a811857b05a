"""Compare the plan with published runs of other kinds: ``python -m benchmarks.plan_runs [-q]``.

``published_runs.json`` has each run's model, setup, GPUs and source: adapters, experts, DDP, ZeRO-1
and 3, context parallelism, small GPUs. Model sizes are those of config.json; facts missing in a
source have the plan's defaults. Memory is of tensors, reserved, or total, as the source counts it.
Exit status 1: a row is more than 30 % off without a reason. ``-q`` omits the rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.plan_rows import Row, report
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import Transformer
from holdfast.plan.setup import TrainingSetup
from holdfast.plan.step_time.estimate import estimate_step_time
from holdfast.plan.step_time.rates import Conditions
from holdfast.plan.step_time.submodel_time import estimate_submodels_step_time
from holdfast.plan.submodels import Lora, Submodel, estimate_submodels_memory

RUNS = Path(__file__).with_name("published_runs.json")
GIB = 1 << 30
#: Reasons of rows that are more than 30 % off.
REASONS: dict[str, str] = {
    "P009": "a small model in transformers of 2023; its 7 and 14 B models are 17 to 30 % "
    "slower, too",
    "P013": "embedding and head are trained too, which the plan does not support",
    "P015": "GPTQ unpacks its weights for each product, which is not modelled",
    "P017": "GPTQ unpacks its weights for each product, which is not modelled",
    "P033": "AdamW of transformers in 2022 steps each weight in Python; autocast makes fp16 "
    "copies of all weights",
    "P034": "AdamW of transformers in 2022 steps each weight in Python, for one sample",
    "P041": "26 % of the peak, with a torch before 2.0",
    "P045": "512 tokens per rank: DeepSpeed's overhead per gathered parameter is not modelled",
    "P046": "512 tokens per rank: DeepSpeed's overhead per gathered parameter is not modelled",
    "P058": "18 % of the peak, in a user's report without a reason",
    "P059": "18 % of the peak, in a user's report without a reason",
    "P066": "128 experts of 2,880 x 2,880 and one sequence: such small products are less "
    "efficient than modelled",
    "P073": "8 bits are modelled on torchao; Megatron's Transformer Engine is faster in all of "
    "these rows",
    "P080": "8 bits are modelled on torchao; Megatron's Transformer Engine is faster in all of "
    "these rows",
}


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published run.

    ``expected`` has ``tokens_per_s_per_gpu``, ``tensors_gib`` and the like.
    """

    id: str
    kind: str
    model: Transformer
    setup: TrainingSetup
    gpu: str
    gpus: int
    expected: dict[str, float]
    source: str
    lora: Lora | None = None
    frozen_bytes: float = 0.0
    float8: bool = False
    tensor_overlap: bool = False

    @property
    def submodel(self) -> Submodel:
        """Return the model with its adapters."""
        return Submodel(
            model=self.model,
            trained=self.lora is None,
            lora=self.lora,
            frozen_bytes=self.frozen_bytes,
        )


def rows(run: Run) -> Iterator[Row]:
    """Yield each figure of a run."""
    what = f"{run.model.name} x{run.gpus} {run.gpu} {run.setup.strategy}"
    for key, expected in run.expected.items():
        if key == "tokens_per_s_per_gpu":
            yield Row(run.id, what, expected, _speed(run), "tok/s", kind=f"{run.kind}: speed")
        elif run.setup.pipeline == 1:
            worst = estimate_submodels_memory((run.submodel,), run.setup).worst
            got = getattr(worst, key.removesuffix("_gib")) / GIB
            yield Row(run.id, what, expected, got, "GiB", kind=f"{run.kind}: memory")


def _speed(run: Run) -> float:
    conditions = Conditions(float8=run.float8, tensor_overlap=run.tensor_overlap)
    cluster = Cluster.from_gpus(run.gpu, run.gpus)
    if run.setup.pipeline > 1:
        return estimate_step_time(run.model, run.setup, cluster, conditions).tokens_per_s_per_gpu
    return estimate_submodels_step_time(
        (run.submodel,), run.setup, cluster, conditions
    ).tokens_per_s_per_gpu


def main(arguments: Sequence[str] = ()) -> int:
    """Print the table."""
    runs = msgspec.json.decode(RUNS.read_bytes(), type=list[Run])
    all_rows = [row for run in runs for row in rows(run)]
    text, complete = report(all_rows, REASONS, lines="-q" not in arguments)
    sys.stdout.write(text)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
