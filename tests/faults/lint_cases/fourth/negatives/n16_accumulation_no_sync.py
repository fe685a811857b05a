import contextlib
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


@dataclass(frozen=True)
class Hyper:
    micro_batch: int = 16
    accumulation: int = 8
    epochs: int = 4
    lr: float = 3e-4
    clip: float = 1.0


class Accumulator:
    def __init__(self, model, optimizer, hyper):
        self.model, self.optimizer, self.hyper = model, optimizer, hyper
        self.micro = 0

    @property
    def last(self):
        return (self.micro + 1) % self.hyper.accumulation == 0

    def __call__(self, loss_of, batch):
        context = contextlib.nullcontext() if self.last else self.model.no_sync()
        with context:
            loss = loss_of(self.model, batch) / self.hyper.accumulation
            loss.backward()
        if self.last:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.hyper.clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        self.micro += 1
        return loss.detach() * self.hyper.accumulation


def language_loss(model, batch):
    (ids,) = batch
    ids = ids.cuda(non_blocking=True)
    logits = model(ids[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


class LSTMLM(nn.Module):
    def __init__(self, vocab=10_000, dim=512):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.LSTM(dim, dim, 2, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


def main():
    hyper = Hyper()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    data = TensorDataset(torch.load("wikitext_ids.pt").view(-1, 257))
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, hyper.micro_batch, sampler=sampler, drop_last=True, pin_memory=True)
    model = DDP(LSTMLM().cuda(), device_ids=[local_rank])
    accumulate = Accumulator(model, torch.optim.AdamW(model.parameters(), lr=hyper.lr), hyper)
    for epoch in range(hyper.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(2, device="cuda")
        for batch in loader:
            total += torch.stack([accumulate(language_loss, batch), torch.ones((), device="cuda")])
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {(total[0] / total[1]).item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
