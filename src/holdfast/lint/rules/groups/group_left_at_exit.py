"""A process group that is not destroyed before the script ends."""

from __future__ import annotations

from holdfast.causes.process.group_left_at_exit import GROUP_LEFT_AT_EXIT
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier


def _message(divergence: Divergence) -> str:  # noqa: ARG001
    return (
        "destroy_process_group is not called before the script ends: a thread of the group may "
        "abort the process at exit"
    )


RULE = Rule(
    name="group-left-at-exit",
    cause=GROUP_LEFT_AT_EXIT,
    tier=RuleTier.ADVICE,
    what_it_does=(
        'Finds scripts (with `if __name__ == "__main__"`) that create an "nccl" group and destroy '
        "it neither themselves nor in what they import; the group may be created in an import too."
    ),
    known_misses=(
        "Backends chosen by a variable; scripts without that test; paths that skip the call. If a "
        "framework owns the group (Accelerate, Lightning, DeepSpeed, Ray, Megatron) nothing is "
        "reported."
    ),
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
    kinds=("not-destroyed",),
    message=_message,
)
