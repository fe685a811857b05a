import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from drafter_trainer import DrafterTrainer


class RolloutDataset(Dataset):
    KEYS = ("hidden", "next_hidden", "target_logits", "mask")

    def __init__(self, folder):
        self.files = sorted(os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".pt"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        sample = torch.load(self.files[i], map_location="cpu")
        return {k: sample[k].float() for k in self.KEYS}


class Drafter(nn.Module):
    def __init__(self, dim, vocab):
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, hidden):
        hidden = hidden + self.body(hidden)
        return self.head(hidden), hidden


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--reg-weight", type=float, default=0.1)
    parser.add_argument("--max-norm", type=float, default=1.0)
    parser.add_argument("--log-every", type=int, default=20)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(17)
    data = RolloutDataset(args.folder)
    loader = DataLoader(data, args.batch_size, sampler=DistributedSampler(data), num_workers=4, drop_last=True)
    trainer = DrafterTrainer(Drafter(args.dim, args.vocab), args, torch.device("cuda", local_rank))
    trainer.fit(loader)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
