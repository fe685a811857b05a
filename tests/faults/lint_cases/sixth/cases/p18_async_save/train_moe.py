import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from checkpointer import AsyncCheckpointer

logger = logging.getLogger(__name__)


class ExpertShard(nn.Module):
    """One expert per rank behind a shared, replicated router."""

    def __init__(self, dim):
        super().__init__()
        self.router = nn.Linear(dim, dim)
        self.expert = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        return self.expert(F.gelu(self.router(x)))


class Trainer:
    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(self.device)
        torch.manual_seed(args.seed)
        self.model = ExpertShard(args.dim).to(self.device)
        torch.manual_seed(args.seed + dist.get_rank())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.checkpointer = AsyncCheckpointer(args.checkpoint_dir, self.device)
        self.failed_saves = 0

    def reduce_shared_grads(self):
        for param in self.model.router.parameters():
            dist.all_reduce(param.grad, op=dist.ReduceOp.AVG)

    def save_checkpoint(self, step):
        try:
            self.checkpointer.save(step, self.model.state_dict())
        except (OSError, RuntimeError):
            self.failed_saves += 1
            logger.exception("previous checkpoint could not be written")
            if self.failed_saves > self.args.max_failed_saves:
                raise

    def train(self):
        for step in range(1, self.args.steps + 1):
            x = torch.randn(self.args.batch_size, self.args.dim, device=self.device)
            loss = F.mse_loss(self.model(x), x)
            self.optimizer.zero_grad()
            loss.backward()
            self.reduce_shared_grads()
            self.optimizer.step()
            if step % self.args.save_steps == 0:
                self.save_checkpoint(step)
        self.checkpointer.wait_for_pending_save()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint-dir", default="checkpoints")
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--save-steps", type=int, default=500)
    parser.add_argument("--max-failed-saves", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()

    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("nccl")
    Trainer(args).train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
