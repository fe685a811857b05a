"""Resume from a checkpoint; run as a module with FOLDER FORM CHECKPOINT under torchrun.

FORM is the loader: ``fsdp2`` (dcp.load), ``holdfast`` (Checkpoint.load into FSDP2), ``fsdp1`` and
``ddp`` (torch.load). FOLDER/losses.json receives the mean losses of the next two steps.
DeepSpeed's program does the same with ``--load``.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

from tests.golden.checkpoints.making import leave
from tests.golden.checkpoints.model import STEPS, model, optimizer_of
from tests.golden.checkpoints.torch_distributed import ddp, fsdp1, fsdp2, of_type, trained


def from_dcp(checkpoint, module, optimizer):
    """Load with torch into this job's sharding."""
    weights, states = get_state_dict(module, optimizer)
    state = {"model": weights, "optimizer": states}
    dcp.load(state, checkpoint_id=checkpoint)
    set_state_dict(
        module, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )


def from_holdfast(checkpoint, module, optimizer):
    """Load with holdfast."""
    import holdfast

    restored = holdfast.Checkpoint(checkpoint, model=module, optimizer=optimizer).load()
    assert restored.step == STEPS


def from_file(checkpoint, module, optimizer):
    """Load a torch.save file into DDP."""
    state = torch.load(checkpoint, weights_only=True)
    module.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def from_full(checkpoint, module, optimizer):
    """Load a torch.save file into FSDP1, whose optimizer needs the states by name first."""
    state = torch.load(checkpoint, weights_only=True)
    with of_type(module, StateDictType.FULL_STATE_DICT):
        module.load_state_dict(state["model"])
        states = FullyShardedDataParallel.optim_state_dict_to_load(
            module, optimizer, state["optimizer"]
        )
    optimizer.load_state_dict(states)


FORMS = {
    "fsdp2": (fsdp2, from_dcp), "holdfast": (fsdp2, from_holdfast), "fsdp1": (fsdp1, from_full),
    "ddp": (ddp, from_file),
}  # fmt: skip


def main(folder, form, checkpoint):
    """Load, then continue training."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    wrap, load = FORMS[form]
    module = model()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()  # correct values can only come from the checkpoint
    module = wrap(module, ())
    optimizer = optimizer_of(module)
    load(checkpoint, module, optimizer)
    losses = trained(module, optimizer, range(STEPS, STEPS + 2))
    if dist.get_rank() == 0:
        Path(folder, "losses.json").write_text(json.dumps(losses))
    dist.barrier()
    dist.destroy_process_group()
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
