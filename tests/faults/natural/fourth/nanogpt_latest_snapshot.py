"""Each rank resumes from the newest snapshot in its own folder; one rank's last save is missing, so it evaluates at other iterations.

Modelled on resume code that globs per-rank checkpoints instead of agreeing on an iteration (nanoGPT forks, DCP-less FSDP jobs).
"""
# case: processes=4 ending=hang causes=rank-skips-collective,mismatched-operation,collective-mismatch,rank-missing-collective ranks=3 framework=nanogpt

import glob
import os
import re
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

batch_size, block_size, vocab_size = 8, 16, 50
eval_interval, eval_iters, max_iters = 50, 4, 200
out_dir = os.path.join(tempfile.gettempdir(), f"out-owt-{os.environ['MASTER_PORT']}")


class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(vocab_size, 48)
        self.head = nn.Linear(48, vocab_size)

    def forward(self, x, y):
        return F.cross_entropy(self.head(self.table(x)).flatten(0, 1), y.flatten())


def earlier_job(rank):
    """What the job that was preempted has left: a snapshot every 20 iterations."""
    folder = os.path.join(out_dir, f"rank{rank}")
    os.makedirs(folder, exist_ok=True)
    torch.manual_seed(1)
    state = Bigram().state_dict()
    for iteration in (20, 40, 60) if rank != 3 else (20, 40):  # ALSO
        torch.save({"model": state, "iter_num": iteration}, os.path.join(folder, f"ckpt_{iteration}.pt"))


def latest_snapshot(rank):
    """Return the newest snapshot of this rank."""
    paths = glob.glob(os.path.join(out_dir, f"rank{rank}", "ckpt_*.pt"))
    return max(paths, key=lambda path: int(re.search(r"_(\d+)\.pt", path)[1]))  # ALSO


def get_batch():
    data = torch.randint(0, vocab_size, (batch_size, block_size + 1))
    return data[:, :-1], data[:, 1:]


@torch.no_grad()
def estimate_loss(model, world):
    losses = torch.stack([model(*get_batch()) for _ in range(eval_iters)])
    gathered = [torch.zeros_like(losses) for _ in range(world)]
    dist.all_gather(gathered, losses)
    return torch.cat(gathered).mean().item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    earlier_job(rank)
    checkpoint = torch.load(latest_snapshot(rank))  # ALSO
    raw_model = Bigram()
    raw_model.load_state_dict(checkpoint["model"])
    iter_num = checkpoint["iter_num"]  # ALSO
    model = DDP(raw_model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    while iter_num < max_iters:  # ALSO
        if iter_num % eval_interval == 0:  # GUILTY
            loss = estimate_loss(raw_model, world)  # ALSO
            if rank == 0:
                print(f"iter {iter_num}: val loss {loss:.4f}", flush=True)
        loss = model(*get_batch())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        iter_num += 1
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
