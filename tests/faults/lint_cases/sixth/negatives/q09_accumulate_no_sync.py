import argparse
import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Encoder(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, dim, mode="mean")
        self.proj = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, dim))

    def forward(self, queries, documents):
        q = F.normalize(self.proj(self.bag(queries)), dim=-1)
        d = F.normalize(self.proj(self.bag(documents)), dim=-1)
        return q @ d.t() / 0.05


def windows(loader, size):
    """Groups of ``size`` batches; the last one of an epoch may be shorter."""
    window = []
    for batch in loader:
        window.append(batch)
        if len(window) == size:
            yield window
            window = []
    if window:
        yield window


class Trainer:
    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.manual_seed(args.seed)
        self.model = DDP(Encoder(args.vocab, args.dim).to(self.device), device_ids=[self.device.index])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        gen = torch.Generator().manual_seed(args.seed)
        queries = torch.randint(0, args.vocab, (args.num_pairs, 16), generator=gen)
        documents = torch.cat([queries, torch.randint(0, args.vocab, (args.num_pairs, 48), generator=gen)], dim=1)
        dataset = TensorDataset(queries, documents)
        self.sampler = DistributedSampler(dataset, shuffle=True, seed=args.seed, drop_last=True)
        self.loader = DataLoader(dataset, args.batch_size, sampler=self.sampler, drop_last=True)

    def loss(self, batch):
        queries, documents = (t.to(self.device, non_blocking=True) for t in batch)
        scores = self.model(queries, documents)
        return F.cross_entropy(scores, torch.arange(len(scores), device=self.device))

    def optimizer_step(self, window):
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self.device)
        for index, batch in enumerate(window):
            last = index == len(window) - 1
            context = contextlib.nullcontext() if last else self.model.no_sync()
            with context:
                loss = self.loss(batch) / len(window)
                loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return total

    def train(self):
        step = 0
        for epoch in range(self.args.epochs):
            self.sampler.set_epoch(epoch)
            for window in windows(self.loader, self.args.accumulation_steps):
                loss = self.optimizer_step(window)
                step += 1
                if step % self.args.log_every == 0:
                    dist.all_reduce(loss, op=dist.ReduceOp.AVG)
                    if dist.get_rank() == 0:
                        print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
        if dist.get_rank() == 0:
            torch.save(self.model.module.state_dict(), self.args.output)
        dist.barrier()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocab", type=int, default=30000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--num-pairs", type=int, default=100003)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--accumulation-steps", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--output", default="retriever.pt")
    parser.add_argument("--seed", type=int, default=12)
    cli = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    Trainer(cli).train()
    dist.destroy_process_group()
