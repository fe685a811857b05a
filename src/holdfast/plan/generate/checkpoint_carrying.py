"""Convert a checkpoint along with its configuration: the forms, and the ``ckpt convert`` arguments.

One row per form; the commands of all pairs and the guide's table are derived from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from holdfast.plan.generate.migration import ConfigFormat


class ConversionSide(msgspec.Struct, frozen=True, kw_only=True):
    """One form's checkpoints.

    ``source``: the input of ``ckpt convert`` ('' if its checkpoints cannot be read), ``saved``: the
    call that saves it. ``options``: how to convert to what it loads by the call ``loaded``;
    ``mind``: what to check.
    """

    title: str
    saved: str
    source: str
    options: str
    loaded: str
    mind: str = ""


_ZERO_RANKS = (
    "ZeRO loads a checkpoint only on the number of ranks it was written for: `--ranks` is the "
    "job's data-parallel ranks; "
    "`zero2` is the stage of its JSON (else `zero1`, `zero3`). `--to universal` loads on any "
    "number of ranks, with "
    '`"checkpoint": {"load_universal": true}`'
)

#: By configuration format; None is plain torch, which has no configuration.
CONVERSION_SIDES: Mapping[ConfigFormat | None, ConversionSide] = {
    ConfigFormat.DEEPSPEED: ConversionSide(
        title="DeepSpeed",
        saved='engine.save_checkpoint("saved")',
        source="saved",
        options="--to zero2 --ranks 8",
        loaded='engine.load_checkpoint("converted")',
        mind=_ZERO_RANKS,
    ),
    ConfigFormat.FSDP2: ConversionSide(
        title="FSDP2",
        saved='dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id="saved")',
        source="saved",
        options="--to dcp",
        loaded='dcp.load(state, checkpoint_id="converted")',
        mind="call `model, optimizer = get_state_dict(module, adam)` before both, `set_state_dict` "
        "after the second; loads on any number of ranks",
    ),
    ConfigFormat.ACCELERATE_FSDP2: ConversionSide(
        title="Accelerate with FSDP",
        saved='accelerator.save_state("saved")',
        source="saved",
        options="--to accelerate --form fsdp-full",
        loaded='accelerator.load_state("converted")',
        mind="`fsdp_state_dict_type: FULL_STATE_DICT` for loading; later checkpoints may be "
        "sharded",
    ),
    ConfigFormat.ACCELERATE_DEEPSPEED: ConversionSide(
        title="Accelerate with DeepSpeed",
        saved='accelerator.save_state("saved")',
        source="saved",
        options="--to zero2 --ranks 8 --tag pytorch_model",
        loaded='accelerator.load_state("converted")',
        mind="`pytorch_model` is the tag that Accelerate loads; ranks and stage as with DeepSpeed",
    ),
    None: ConversionSide(
        title="torch, DDP",
        saved='torch.save({"model": …, "optimizer": …}, "saved.pt")',
        source="saved.pt",
        options="--to torch",
        loaded='torch.load("converted", weights_only=True, mmap=True)',
        mind="`model` and `optimizer` are for `load_state_dict` of the unwrapped module and of the "
        "optimizer. The optimizer's state is by index: create its groups in the order of the "
        "source. If the source is such a file, name the frozen weights: `--frozen 'vision.*'`",
    ),
}


class ConversionPair(msgspec.Struct, frozen=True):
    """The command that converts a checkpoint from one form to another."""

    origin: ConversionSide
    to: ConversionSide
    command: str


def conversion_pairs() -> Iterator[ConversionPair]:
    """Yield all pairs of different forms."""
    for origin in CONVERSION_SIDES.values():
        for to in CONVERSION_SIDES.values():
            if origin is not to:
                yield ConversionPair(
                    origin, to, f"holdfast ckpt convert {origin.source} converted {to.options}"
                )
