import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data.distributed import DistributedSampler

from retriever import RetrieverTrainer


class Encoder(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.embed = nn.EmbeddingBag(vocab, dim, mode="mean")
        self.net = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, tokens):
        return F.normalize(self.net(self.embed(tokens)), dim=-1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--output", default="retriever.pt")
    for name, value in (("vocab", 30522), ("dim", 768), ("negatives", 7), ("batch-size", 32), ("encode-batch", 512),
                        ("epochs", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--temperature", type=float, default=0.05)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(11)
    blob = torch.load(args.data, map_location="cpu")
    sampler = DistributedSampler(blob["queries"], drop_last=True)
    trainer = RetrieverTrainer(Encoder(args.vocab, args.dim), blob["corpus"], blob["queries"], blob["positives"],
                               args, torch.device("cuda", local_rank))
    trainer.train(sampler)
    dist.destroy_process_group()
