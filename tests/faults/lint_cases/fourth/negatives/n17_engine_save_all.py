import argparse
import json
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def ds_config(args):
    return {
        "train_micro_batch_size_per_gpu": args.micro_batch,
        "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": args.lr}},
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3},
    }


class RunFolder:
    def __init__(self, root, keep=2):
        self.root, self.keep = Path(root), keep

    def save(self, engine, step, loss):
        tag = f"step{step}"
        engine.save_checkpoint(str(self.root), tag=tag, client_state={"step": step})
        if dist.get_rank() == 0:
            history = self.root / "history.jsonl"
            with history.open("a") as f:
                f.write(json.dumps({"tag": tag, "loss": loss}) + "\n")

    def resume(self, engine):
        path, client = engine.load_checkpoint(str(self.root))
        return 0 if path is None else client["step"]


class Autoencoder(nn.Module):
    def __init__(self, dim=4096, hidden=16384):
        super().__init__()
        self.encode = nn.Linear(dim, hidden)
        self.decode = nn.Linear(hidden, dim)

    def forward(self, x):
        return nn.functional.mse_loss(self.decode(torch.relu(self.encode(x))), x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--activations", default="activations.pt")
    parser.add_argument("--root", default="sae")
    parser.add_argument("--micro_batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--save_every", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--local_rank", type=int, default=-1)
    args = parser.parse_args()
    deepspeed.init_distributed()
    model = Autoencoder()
    data = TensorDataset(torch.load(args.activations))
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=ds_config(args)
    )
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, args.micro_batch, sampler=sampler, drop_last=True)
    folder = RunFolder(args.root)
    step = folder.resume(engine)
    while step < args.steps:
        sampler.set_epoch(step // len(loader))
        for (x,) in loader:
            loss = engine(x.to(engine.device).bfloat16())
            engine.backward(loss)
            engine.step()
            step += 1
            if step % args.save_every == 0:
                folder.save(engine, step, loss.item())
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
