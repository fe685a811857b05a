"""How far the plan is off published runs of kinds that it was not fitted to: ``python -m benchmarks.plan_runs [-q]``.

``published_runs.json`` has each run's model, setup, GPUs and source: adapters, experts, DDP, ZeRO-1 and 3, context
parallelism, small GPUs. Sizes of models are those of their config.json; what a source leaves unsaid is as the plan has
it by default. Memory is of tensors, of what is reserved, or of all, as the source counts it. Ends with 1 where a row is
more than 30 % off without a reason. ``-q`` leaves the lines out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.plan_rows import Row, report
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import Transformer
from holdfast.plan.rates import Conditions
from holdfast.plan.setup import Setup
from holdfast.plan.time import step
from holdfast.plan.tower_time import step_of
from holdfast.plan.towers import Lora, Tower, footprint_of

RUNS = Path(__file__).with_name("published_runs.json")
GIB = 1 << 30
#: Why a row is more than 30 % off.
REASONS: dict[str, str] = {
    "P009": "a small model in transformers of 2023; the same script's 7 and 14 B are 17 to 30 % slower, too",
    "P013": "embedding and head are trained beside the adapters, which no form of the plan says",
    "P015": "GPTQ unpacks its weights at each product, which is not counted",
    "P017": "GPTQ unpacks its weights at each product, which is not counted",
    "P033": "AdamW of transformers in 2022 steps each weight in Python; autocast makes fp16 copies of all weights",
    "P034": "AdamW of transformers in 2022 steps each weight in Python, for one sample",
    "P041": "26 % of the peak, with a torch before 2.0",
    "P045": "512 tokens a rank: what DeepSpeed does around each parameter it gathers is not known here",
    "P046": "512 tokens a rank: what DeepSpeed does around each parameter it gathers is not known here",
    "P058": "18 % of the peak, in a user's report; why so slow, it does not say",
    "P059": "18 % of the peak, in a user's report; why so slow, it does not say",
    "P066": "128 experts of 2,880 x 2,880 and one sequence: products that small lose more than is counted",
    "P073": "8 bits are fitted to torchao; Megatron's Transformer Engine is quicker in all of these rows",
    "P080": "8 bits are fitted to torchao; Megatron's Transformer Engine is quicker in all of these rows",
}


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published run. ``expected`` has ``tokens_per_s_per_gpu``, and memory as ``tensors_gib`` and the like."""

    id: str
    kind: str
    model: Transformer
    setup: Setup
    gpu: str
    gpus: int
    expected: dict[str, float]
    source: str
    lora: Lora | None = None
    frozen_bytes: float = 0.0
    float8: bool = False
    tensor_overlap: bool = False

    @property
    def tower(self) -> Tower:
        """The model, with its adapters where it has some."""
        return Tower(model=self.model, trained=self.lora is None, lora=self.lora, frozen_bytes=self.frozen_bytes)


def rows(run: Run) -> Iterator[Row]:
    """Each figure of a run."""
    what = f"{run.model.name} x{run.gpus} {run.gpu} {run.setup.strategy}"
    for key, wanted in run.expected.items():
        if key == "tokens_per_s_per_gpu":
            yield Row(run.id, what, wanted, _speed(run), "tok/s", kind=f"{run.kind}: speed")
        elif run.setup.pipeline == 1:
            worst = footprint_of((run.tower,), run.setup).worst
            got = getattr(worst, key.removesuffix("_gib")) / GIB
            yield Row(run.id, what, wanted, got, "GiB", kind=f"{run.kind}: memory")


def _speed(run: Run) -> float:
    conditions = Conditions(float8=run.float8, tensor_overlap=run.tensor_overlap)
    cluster = Cluster.of(run.gpu, run.gpus)
    if run.setup.pipeline > 1:
        return step(run.model, run.setup, cluster, conditions).tokens_per_s_per_gpu
    return step_of((run.tower,), run.setup, cluster, conditions).tokens_per_s_per_gpu


def main(arguments: Sequence[str] = ()) -> int:
    """Print the table."""
    runs = msgspec.json.decode(RUNS.read_bytes(), type=list[Run])
    found = [row for run in runs for row in rows(run)]
    said, fine = report(found, REASONS, lines="-q" not in arguments)
    sys.stdout.write(said)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
