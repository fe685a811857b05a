import json
import os

import torch


def save_checkpoint(checkpoint_dir, step, model_data, optimizer_data, meta, rank=0):
    if rank == 0:
        os.makedirs(checkpoint_dir, exist_ok=True)
        torch.save(model_data, os.path.join(checkpoint_dir, f"model_{step:06d}.pt"))
        with open(os.path.join(checkpoint_dir, f"meta_{step:06d}.json"), "w", encoding="utf-8") as f:
            json.dump(meta, f, indent=2)
    optimizer_path = os.path.join(checkpoint_dir, f"optim_{step:06d}_rank{rank}.pt")
    torch.save(optimizer_data, optimizer_path)


def load_checkpoint(checkpoint_dir, step, device, rank=0):
    model_data = torch.load(os.path.join(checkpoint_dir, f"model_{step:06d}.pt"), map_location=device)
    optimizer_path = os.path.join(checkpoint_dir, f"optim_{step:06d}_rank{rank}.pt")
    optimizer_data = torch.load(optimizer_path, map_location=device)
    with open(os.path.join(checkpoint_dir, f"meta_{step:06d}.json"), encoding="utf-8") as f:
        meta = json.load(f)
    return model_data, optimizer_data, meta
