"""Accelerate script: a trigger set on any process ends training on all, the weights are collected by all and written by one."""
import argparse
import math
import os
from pathlib import Path

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset


class Sines(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.freq = torch.randint(1, 5, (n,), generator=g)
        self.phase = torch.rand(n, generator=g) * 2 * math.pi

    def __len__(self):
        return len(self.freq)

    def __getitem__(self, i):
        t = torch.linspace(0, 2 * math.pi, 24)
        return {"wave": torch.sin(self.freq[i] * t + self.phase[i]), "label": self.freq[i] - 1}


class WaveNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4))

    def forward(self, wave, label):
        logits = self.net(wave)
        return logits, nn.functional.cross_entropy(logits, label)


class LossWatch:
    """Looks at this process's own losses, a window at a time."""

    def __init__(self, limit, window):
        self.limit, self.window, self.values = limit, window, []

    def add(self, loss):
        self.values.append(loss.detach())

    def full(self, step):
        return step % self.window == 0

    def exploded(self):
        mean = torch.stack(self.values).mean().item()
        self.values.clear()
        return not math.isfinite(mean) or mean > self.limit


def prepare_data(accelerator, root: Path):
    with accelerator.local_main_process_first():
        root.mkdir(parents=True, exist_ok=True)
    return Sines(512, 1), Sines(90, 2)


def evaluate(accelerator, model, loader):
    model.eval()
    hits, count = 0, 0
    for batch in loader:
        with torch.no_grad():
            logits, _ = model(**batch)
        pred, ref = accelerator.gather_for_metrics((logits.argmax(-1), batch["label"]))
        hits += (pred == ref).sum()
        count += ref.numel()
    model.train()
    return float(hits) / max(count, 1)


def save_weights(accelerator, model, path: Path):
    accelerator.wait_for_everyone()
    state = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        tmp = path.with_suffix(".tmp")
        torch.save(state, tmp)
        os.replace(tmp, path)
    accelerator.wait_for_everyone()


def train(args):
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulate)
    set_seed(args.seed)
    train_set, val_set = prepare_data(accelerator, args.out)
    model = WaveNet()
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    model, opt, train_loader, val_loader = accelerator.prepare(
        model, opt, DataLoader(train_set, batch_size=16, shuffle=True, drop_last=True), DataLoader(val_set, batch_size=16))
    watch = LossWatch(args.loss_limit, args.window)
    step, stopped, best = 0, False, -1.0
    for epoch in range(args.epochs):
        train_loader.set_epoch(epoch)
        for batch in train_loader:
            with accelerator.accumulate(model):
                _, loss = model(**batch)
                accelerator.backward(loss)
                opt.step()
                opt.zero_grad()
            step += 1
            watch.add(loss)
            if watch.full(step):
                if watch.exploded():
                    accelerator.set_trigger()
                if accelerator.check_trigger():
                    stopped = True
                    break
        if stopped:
            accelerator.print(f"loss out of bounds on some process at step {step}")
            break
        acc = evaluate(accelerator, model, val_loader)
        accelerator.print(f"epoch {epoch} accuracy {acc:.3f}")
        if acc > best:
            best = acc
            save_weights(accelerator, model, args.out / "best.pt")
    if accelerator.is_main_process and not stopped:
        raw = accelerator.unwrap_model(model)
        print(f"{sum(p.numel() for p in raw.parameters())} parameters, best {best:.3f}")
    accelerator.end_training()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--loss-limit", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=Path("waves"))
    train(parser.parse_args())


if __name__ == "__main__":
    main()
