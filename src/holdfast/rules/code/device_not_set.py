"""A GPU that is taken too late, or never."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier, operation, short


def _wants(parting: Parting) -> bool:
    return parting.kind in ("device", "no-device")


def _says(parting: Parting) -> str:
    if parting.kind == "no-device":
        return "all ranks of a host work on its first GPU: the group is told no device_id, and nobody calls set_device"
    return (
        f"{parting.text} comes after {operation(parting)} at {short(parting.guard)}: until then all ranks were on GPU 0"
    )


RULE = Rule(
    name="device-not-set",
    cause=by_name("duplicate-gpu"),
    tier=Tier.ADVICE,
    what_it_does="Finds torch.cuda.set_device after the first collective of a group that was told no device_id, and "
    'scripts that make a group of "nccl" and work on "cuda" where neither they nor what they import ever say which '
    "GPU.",
    known_misses="A launcher that shows each process one GPU alone (CUDA_VISIBLE_DEVICES, --gpus-per-task) makes both "
    "right, and is not in the source. Tensors whose device is named outright are on the right GPU before set_device.",
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
    wants=_wants,
    says=_says,
)
