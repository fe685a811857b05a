import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

from sampling import ContiguousShardSampler


@dataclass
class Config:
    manifest: str = "data/cuts_train.pt"
    batch_size: int = 4
    epochs: int = 10
    lr: float = 5e-4
    vocab: int = 500


class Cuts(Dataset):
    def __init__(self, manifest):
        self.cuts = torch.load(manifest, weights_only=False)

    def __len__(self):
        return len(self.cuts)

    def __getitem__(self, i):
        cut = self.cuts[i]
        return cut["features"], torch.as_tensor(cut["tokens"])


def collate(batch):
    feats = nn.utils.rnn.pad_sequence([f for f, _ in batch], batch_first=True)
    lens = torch.tensor([len(f) for f, _ in batch])
    targets = torch.cat([t for _, t in batch])
    target_lens = torch.tensor([len(t) for _, t in batch])
    return feats, lens, targets, target_lens


class Encoder(nn.Module):
    def __init__(self, vocab, dim=256):
        super().__init__()
        self.proj = nn.Linear(80, dim)
        self.rnn = nn.LSTM(dim, dim, num_layers=3, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, feats):
        return self.out(self.rnn(self.proj(feats))[0]).log_softmax(-1)


def train_one_epoch(cfg, model, loader, optimizer, device):
    total = torch.zeros(2, device=device)
    for feats, lens, targets, target_lens in loader:
        log_probs = model(feats.to(device)).transpose(0, 1)
        loss = nn.functional.ctc_loss(log_probs, targets.to(device), lens, target_lens, zero_infinity=True)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        total += torch.tensor([loss.item(), 1.0], device=device)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def run(cfg):
    dist.init_process_group("nccl")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)

    data = Cuts(cfg.manifest)
    sampler = ContiguousShardSampler(data.cuts, rank, world_size)
    loader = DataLoader(data, cfg.batch_size, sampler=sampler, collate_fn=collate, num_workers=2)
    model = DDP(Encoder(cfg.vocab).to(device), device_ids=[local_rank])
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        sampler.set_epoch(epoch)
        loss = train_one_epoch(cfg, model, loader, optimizer, device)
        if rank == 0:
            print(f"epoch {epoch}: {loss:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    run(Config())
