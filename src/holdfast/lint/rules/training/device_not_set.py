"""A GPU that is selected too late or never."""

from __future__ import annotations

from holdfast.causes.gpu.duplicate_gpu import DUPLICATE_GPU
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, describe_operation, short_location


def _message(divergence: Divergence) -> str:
    if divergence.kind == "no-device":
        return (
            "all ranks of a host use its first GPU: init_process_group has no device_id, and "
            "set_device is never called"
        )
    return (
        f"{divergence.text} is called after {describe_operation(divergence)} at "
        f"{short_location(divergence.guard)}: until then all ranks used GPU 0"
    )


RULE = Rule(
    name="device-not-set",
    cause=DUPLICATE_GPU,
    tier=RuleTier.ADVICE,
    what_it_does=(
        "Finds torch.cuda.set_device after the first collective of a group created without "
        'device_id, and scripts that create an "nccl" group and use "cuda" without selecting a '
        "GPU, themselves or in their imports. Advice: the global rank as index of a GPU, loads of "
        "all ranks onto GPU 0, a GPU used before it is selected, and CUDA used before a fork."
    ),
    known_misses=(
        "If the launcher shows each process a single GPU (CUDA_VISIBLE_DEVICES, --gpus-per-task), "
        "both are correct; that is not in the source. Tensors with an explicit device are on the "
        "right GPU before set_device."
    ),
    bad="""\
import os


def setup():
    dist.init_process_group("nccl")
    dist.barrier()


def main():
    setup()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # found
    dist.destroy_process_group()


main()
""",
    good="""\
import os


def setup():
    dist.init_process_group("nccl")


def main():
    setup()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.barrier()
    dist.destroy_process_group()


main()
""",
    kinds=("device", "no-device", "habit-device"),
    message=_message,
)
