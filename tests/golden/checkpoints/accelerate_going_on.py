"""Resume from an Accelerate folder; run as a module with FOLDER FORM CHECKPOINT under torchrun.

FORM is the strategy: ``ddp``, or ``fsdp1`` or ``fsdp2`` with the type of its state_dict
(``fsdp2-full``). ``--steady`` as the last argument disables the scheduler. FOLDER/losses.json
receives the mean losses over all ranks of the next two steps.
"""

import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import (
    Accelerator,
    DataLoaderConfiguration,
    DistributedType,
    FullyShardedDataParallelPlugin,
    PartialState,
)
from accelerate.state import AcceleratorState

from tests.golden.checkpoints.making import leave
from tests.golden.checkpoints.model import STEPS, Block, loss_of, model, optimizer_of

TYPES = {"full": "FULL_STATE_DICT", "sharded": "SHARDED_STATE_DICT"}


def accelerator_of(form):
    """Return the Accelerator of this form, on CPU."""
    version, _, kind = form.removeprefix("fsdp").partition("-")
    plugin = None
    if form != "ddp":
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=int(version),
            state_dict_type=TYPES[kind],
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=[Block.__name__],
            use_orig_params=True,
        )
    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True)
    )
    if plugin is not None:  # Accelerate enables FSDP only on GPUs, although it works on CPUs
        accelerator.state.fsdp_plugin = plugin
        PartialState().distributed_type, PartialState().device = (
            DistributedType.FSDP,
            torch.device("cpu"),
        )
        AcceleratorState()  # copies the values of PartialState
    return accelerator


def prepared(accelerator, *, steady):
    """Return a differently initialized model, its optimizer, and its scheduler if any."""
    module = model()
    with torch.no_grad():
        for each in module.parameters():
            each.mul_(0.5)
    optimizer = optimizer_of(module)
    if steady:
        return *accelerator.prepare(module, optimizer), None
    return accelerator.prepare(
        module, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    )


def main(folder, form, checkpoint, *options):
    """Load, then continue training."""
    accelerator = accelerator_of(form)
    module, optimizer, scheduler = prepared(accelerator, steady="--steady" in options)
    accelerator.load_state(checkpoint)
    losses = []
    for step in (STEPS, STEPS + 1):
        loss = loss_of(module, step, accelerator.process_index, accelerator.num_processes)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    if accelerator.is_main_process:
        Path(folder, "losses.json").write_text(json.dumps(losses))
    if dist.is_initialized():
        dist.destroy_process_group()
    leave()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
