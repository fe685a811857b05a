"""Generates Accelerator.save_state folders; run as a module with FOLDER FORM [options].

Under torchrun. FORM is as in ``accelerate_going_on``. ``--bin`` saves the model by torch.save,
``--named`` gives the optimizer names (torch 2.6), ``--trained`` freezes nothing, ``--steady``
leaves the learning rate as it is. FOLDER gets ``saved``, and ``truth.pt``.
"""

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)

from tests.golden.checkpoints.accelerate_going_on import accelerator_of
from tests.golden.checkpoints.making import leave
from tests.golden.checkpoints.model import LEARNING_RATE, STEPS, loss_of, model, optimizer_of


def optimizer_for(module, *, named):
    """Return the common optimizer, or one with parameter names."""
    if not named:
        return optimizer_of(module)
    trained = [(name, each) for name, each in module.named_parameters() if each.requires_grad]
    flat = [pair for pair in trained if pair[1].dim() <= 1]
    deep = [pair for pair in trained if pair[1].dim() > 1]
    groups = [{"params": deep, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE)


def truth_of(module, optimizer):
    """Return all tensors of model and optimizer, on each rank."""
    if hasattr(module, "no_sync") and not hasattr(module, "_fsdp_wrapped_module"):
        module = module.module
    whole = StateDictOptions(full_state_dict=True)
    weights = get_model_state_dict(module, options=whole)
    states = get_optimizer_state_dict(module, optimizer, options=whole)["state"]
    return {
        "model": {name: each.detach().clone() for name, each in weights.items()},
        "optimizer": {
            name: {key: torch.as_tensor(each).clone() for key, each in state.items()}
            for name, state in states.items()
        },
    }


def main(folder, form, *options):
    """Train, save, continue training."""
    accelerator = accelerator_of(form)
    bare = model(frozen="--trained" not in options)
    made = optimizer_for(bare, named="--named" in options)
    schedule = torch.optim.lr_scheduler.StepLR(made, 2, 1.0 if "--steady" in options else 0.5)
    module, optimizer, scheduler = accelerator.prepare(bare, made, schedule)
    losses = []
    for step in range(STEPS + 2):
        if step == STEPS:
            accelerator.save_state(f"{folder}/saved", safe_serialization="--bin" not in options)
            truth = truth_of(module, optimizer.optimizer)
        loss = loss_of(module, step, accelerator.process_index, accelerator.num_processes)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    if accelerator.is_main_process:
        torch.save({**truth, "losses": losses[STEPS:]}, Path(folder, "truth.pt"))
    if dist.is_initialized():
        dist.destroy_process_group()
    leave()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
