import argparse

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from gang import Gang


class Encoder(nn.Module):
    def __init__(self, dim, num_targets):
        super().__init__()
        self.frontend = nn.Conv1d(1, dim, kernel_size=400, stride=320)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.proj = nn.Linear(dim, num_targets)

    def forward(self, wav):
        feats = F.gelu(self.frontend(wav.unsqueeze(1))).transpose(1, 2)
        return self.proj(self.encoder(feats)[0])


class Evaluator:
    """Runs held-out batches on a part of the cluster."""

    def __init__(self, gang, model, num_batches, batch_size):
        self.gang = gang
        self.model = model
        self.num_batches = num_batches
        self.batch_size = batch_size

    @torch.no_grad()
    def run(self):
        gen = torch.Generator(device=self.gang.device).manual_seed(1000 + self.gang.rank)
        total = torch.zeros(1, device=self.gang.device)
        for _ in range(self.num_batches):
            wav = torch.randn(self.batch_size, 16000, device=self.gang.device, generator=gen)
            logits = self.model(wav)
            total += F.cross_entropy(logits.flatten(0, 1), logits.argmax(-1).flatten())
        return self.gang.all_reduce_mean(total / self.num_batches).item()


class Recipe:
    def __init__(self, args):
        self.args = args
        self.root = Gang.init_root()
        torch.manual_seed(args.seed)
        self.net = Encoder(args.dim, args.num_targets).to(self.root.device)
        self.model = DDP(self.net, device_ids=[self.root.device.index])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, factor=0.5, patience=1)
        self.eval_gang = self.root.create_gang(list(range(min(args.num_eval_ranks, self.root.size))))
        torch.manual_seed(args.seed + self.root.rank)

    def evaluate(self):
        result = torch.zeros(1, device=self.root.device)
        if self.eval_gang is not None:
            self.net.eval()
            evaluator = Evaluator(self.eval_gang, self.net, self.args.eval_batches, self.args.batch_size)
            result += evaluator.run() / self.eval_gang.size
            self.net.train()
        return self.root.all_reduce_sum(result).item()

    def train(self):
        for step in range(1, self.args.max_steps + 1):
            wav = torch.randn(self.args.batch_size, 16000, device=self.root.device)
            logits = self.model(wav)
            targets = torch.randint(0, self.args.num_targets, logits.shape[:2], device=self.root.device)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % self.args.eval_every == 0:
                score = self.evaluate()
                self.scheduler.step(score)
                if self.root.rank == 0:
                    print(f"step {step} held-out loss {score:.4f} lr {self.optimizer.param_groups[0]['lr']:.2e}")
        self.root.barrier()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--num-targets", type=int, default=320)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--max-steps", type=int, default=2000)
    parser.add_argument("--eval-every", type=int, default=200)
    parser.add_argument("--eval-batches", type=int, default=10)
    parser.add_argument("--num-eval-ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=2)
    Recipe(parser.parse_args()).train()
    dist.destroy_process_group()
