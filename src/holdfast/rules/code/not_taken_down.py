"""A process group that is left as it is when the script ends."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier


def _wants(parting: Parting) -> bool:
    return parting.kind == "not-taken-down"


def _says(parting: Parting) -> str:  # noqa: ARG001  every rule is asked with its parting
    return (
        "nothing calls destroy_process_group before the script ends: a thread of the group may abort the process then"
    )


RULE = Rule(
    name="group-left-at-exit",
    cause=by_name("group-left-at-exit"),
    tier=Tier.ADVICE,
    what_it_does='Finds scripts (with `if __name__ == "__main__"`) that make a group of "nccl" and take it down '
    "nowhere, nor in what they import; the group may be made there too.",
    known_misses="Backends that are chosen by a variable; scripts without that test; ways out that leave the call "
    "out. Where a framework holds the group (Accelerate, Lightning, DeepSpeed, Ray, Megatron) nothing is said.",
    bad="""\
def main():
    dist.init_process_group("nccl")  # found
    dist.barrier()


if __name__ == "__main__":
    main()
""",
    good="""\
def main():
    dist.init_process_group("nccl")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
""",
    wants=_wants,
    says=_says,
)
