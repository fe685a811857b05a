"""How a checkpoint follows its configuration: what each form saves and loads, and what is asked of ``ckpt convert``.

One row for each form; the commands of all pairs follow from it, and so does what the guide says of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from holdfast.plan.generate.migration import Format


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One form's checkpoints.

    ``source`` is what is given to ``ckpt convert`` ('' where it saves nothing of its own that is read), ``saved`` the
    call that made it. ``options`` make what it loads, by the call ``loaded``; ``mind`` is what has to be seen to.
    """

    title: str
    saved: str
    source: str
    options: str
    loaded: str
    mind: str = ""


_ZERO_RANKS = (
    "ZeRO loads on as many ranks as a checkpoint was written for: `--ranks` is the job's data-parallel ranks; "
    "`zero2` is the stage of its JSON (else `zero1`, `zero3`). `--to universal` loads on any number of ranks, with "
    '`"checkpoint": {"load_universal": true}`'
)

#: The configuration's form, and None for plain torch, which has no configuration.
SIDES: Mapping[Format | None, Side] = {
    Format.DEEPSPEED: Side(
        title="DeepSpeed",
        saved='engine.save_checkpoint("saved")',
        source="saved",
        options="--to zero2 --ranks 8",
        loaded='engine.load_checkpoint("converted")',
        mind=_ZERO_RANKS,
    ),
    Format.FSDP2: Side(
        title="FSDP2",
        saved='dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id="saved")',
        source="saved",
        options="--to dcp",
        loaded='dcp.load(state, checkpoint_id="converted")',
        mind="`model, optimizer = get_state_dict(module, adam)` stands before both, `set_state_dict` after the second; "
        "any number of ranks loads it",
    ),
    Format.ACCELERATE_FSDP2: Side(
        title="Accelerate with FSDP",
        saved='accelerator.save_state("saved")',
        source="saved",
        options="--to accelerate --form fsdp-full",
        loaded='accelerator.load_state("converted")',
        mind="`fsdp_state_dict_type: FULL_STATE_DICT` while it is loaded; what is saved afterwards may be sharded",
    ),
    Format.ACCELERATE_DEEPSPEED: Side(
        title="Accelerate with DeepSpeed",
        saved='accelerator.save_state("saved")',
        source="saved",
        options="--to zero2 --ranks 8 --tag pytorch_model",
        loaded='accelerator.load_state("converted")',
        mind="`pytorch_model` is the name by which Accelerate looks for it; ranks and stage as with DeepSpeed",
    ),
    None: Side(
        title="torch, DDP",
        saved='torch.save({"model": …, "optimizer": …}, "saved.pt")',
        source="saved.pt",
        options="--to torch",
        loaded='torch.load("converted", weights_only=True, mmap=True)',
        mind="`model` and `optimizer` are for `load_state_dict` of the unwrapped module and of the optimizer. The "
        "optimizer's state is by number: make its groups in the order in which the source had them. Of a source "
        "that is such a file, say which weights are frozen: `--frozen 'vision.*'`",
    ),
}


class Pair(msgspec.Struct, frozen=True):
    """What carries a checkpoint from one form to another."""

    origin: Side
    to: Side
    command: str


def pairs() -> Iterator[Pair]:
    """Of all two forms that differ."""
    for origin in SIDES.values():
        for to in SIDES.values():
            if origin is not to:
                yield Pair(origin, to, f"holdfast ckpt convert {origin.source} converted {to.options}")
