"""Generates plain files on one process; run as a module with FOLDER.

FOLDER gets ``model.pt`` (torch.save, model and optimizer), ``model.safetensors``, ``huggingface``
(five files and their index, by huggingface_hub, as Transformers saves), and ``truth.pt``.
"""

import sys
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_model

from tests.golden.checkpoints.model import STEPS, loss_of, model, optimizer_of


def trained(module, optimizer, steps):
    """Train; return the losses."""
    losses = []
    for step in steps:
        loss = loss_of(module, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(folder):
    """Train, save, continue training."""
    folder = Path(folder)
    module = model()
    optimizer = optimizer_of(module)
    trained(module, optimizer, range(STEPS))
    weights = module.state_dict()
    states = {
        name: optimizer.state[each]
        for name, each in module.named_parameters()
        if each in optimizer.state
    }
    torch.save(
        {"model": weights, "optimizer": optimizer.state_dict(), "step": STEPS}, folder / "model.pt"
    )
    save_model(module, str(folder / "model.safetensors"))
    (folder / "huggingface").mkdir()
    save_torch_state_dict(weights, folder / "huggingface", max_shard_size=6_000)
    (folder / "huggingface" / "config.json").write_text('{"model_type": "small"}')
    copies = {
        name: {key: each.clone() for key, each in state.items()} for name, state in states.items()
    }
    truth = {"model": {name: each.clone() for name, each in weights.items()}, "optimizer": copies}
    torch.save(
        {**truth, "losses": trained(module, optimizer, range(STEPS, STEPS + 2))},
        folder / "truth.pt",
    )


if __name__ == "__main__":
    main(sys.argv[1])
