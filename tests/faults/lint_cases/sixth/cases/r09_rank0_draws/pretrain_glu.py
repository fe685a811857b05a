import argparse
import os
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from engine import Engine


def set_random_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class GLUBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.gate = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class ContextModel(nn.Module):
    def __init__(self, vocab, dim, layers, window):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.mix = nn.Linear(window * dim, dim)
        self.blocks = nn.Sequential(*[GLUBlock(dim) for _ in range(layers)])
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.out(self.blocks(self.mix(self.embed(ids).flatten(1))))


def show_examples(dataset, count):
    for i in torch.randint(len(dataset), (count,)).tolist():
        window, target = dataset[i]
        print(f"[{i}] {window.tolist()} -> {target.item()}")


def main(args):
    set_random_seed(args.seed)
    blob = torch.load(args.data, map_location="cpu")
    dataset = TensorDataset(blob["windows"], blob["targets"])
    if dist.get_rank() == 0:
        show_examples(dataset, args.show)
    model = ContextModel(args.vocab, args.dim, args.layers, blob["windows"].size(1)).cuda()
    engine = Engine(model, args)
    sampler = DistributedSampler(dataset, seed=args.seed)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for it, (windows, targets) in enumerate(loader):
            loss = F.cross_entropy(engine.model(windows.cuda()), targets.cuda())
            engine.backward(loss)
            engine.step()
            if it % 100 == 0 and dist.get_rank() == 0:
                print(f"epoch {epoch} it {it} loss {loss.item():.4f}")
        engine.save(f"ctx_{epoch:02d}.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    for name, value in (("vocab", 30000), ("dim", 512), ("layers", 6), ("batch-size", 256), ("epochs", 5),
                        ("show", 4), ("seed", 1234), ("bucket-mb", 25)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--clip", type=float, default=1.0)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    main(parser.parse_args())
    dist.destroy_process_group()
