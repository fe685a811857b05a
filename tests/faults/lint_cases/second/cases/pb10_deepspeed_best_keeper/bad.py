"""Continue pretraining of a causal LM under DeepSpeed ZeRO-2, with best-checkpoint keeping."""
import argparse
import json
import os
from dataclasses import dataclass
from functools import partial

import deepspeed
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset

DS_CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 2, "overlap_comm": True},
    "bf16": {"enabled": True},
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "weight_decay": 0.1}},
}


class TokenBlocks(Dataset):
    def __init__(self, path, length):
        tokens = torch.load(path, weights_only=True) if path else torch.randint(0, 512, (1 << 16,))
        self.blocks = tokens[: len(tokens) // (length + 1) * (length + 1)].view(-1, length + 1)

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, i):
        return self.blocks[i]


class CausalLM(nn.Module):
    def __init__(self, vocab=512, dim=128, layers=2, length=64):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(dim, vocab)

    def forward(self, block):
        ids, labels = block[:, :-1], block[:, 1:]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device, dtype=self.head.weight.dtype)
        logits = self.head(self.body(self.embed(ids), mask=mask, is_causal=True))
        return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


@dataclass
class BestKeeper:
    """Remembers the best validation loss and saves the engine whenever it improves."""

    engine: object
    directory: str
    best: float = float("inf")

    def _describe(self, step, loss):
        with open(os.path.join(self.directory, "best.json"), "w") as f:
            json.dump({"step": step, "loss": loss}, f)

    def _store(self, step, loss):
        self.engine.save_checkpoint(self.directory, tag="best", client_state={"step": step, "loss": loss})  # RELATED: hidden-collective
        self._describe(step, loss)

    def offer(self, step, loss):
        if loss >= self.best:
            return
        self.best = loss
        if self.engine.global_rank == 0:  # RELATED: guard
            self._store(step, loss)  # EXPECT: rank-guarded-sharded-io


@torch.no_grad()
def evaluate(engine, loader, rounds=8):
    engine.eval()
    total = torch.zeros(2, device=engine.device)
    for _, block in zip(range(rounds), loader):
        total += torch.stack([engine(block.to(engine.device)).float(), total.new_ones(())])
    engine.train()
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def train(engine, loader, validate, keeper, steps, every):
    step, epoch = 0, 0
    while step < steps:
        loader.data_sampler.set_epoch(epoch)
        for block in loader:
            loss = engine(block.to(engine.device))
            engine.backward(loss)
            engine.step()
            step += 1
            if step % every == 0:
                keeper.offer(step, validate())
            if step >= steps:
                break
        epoch += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--data", default="")
    parser.add_argument("--out", default="runs/zero2")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--eval-every", type=int, default=50)
    args = parser.parse_args()
    deepspeed.init_distributed()
    os.makedirs(args.out, exist_ok=True)
    torch.manual_seed(31)
    data = TokenBlocks(args.data, length=64)
    dev_set = torch.utils.data.Subset(data, range(17 * dist.get_rank(), len(data), 17 * dist.get_world_size()))
    model = CausalLM()
    engine, _, loader, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), training_data=data, config=DS_CONFIG)
    dev_loader = engine.deepspeed_io(dev_set, batch_size=4, route="eval")
    keeper = BestKeeper(engine, args.out)
    train(engine, loader, partial(evaluate, engine, dev_loader), keeper, args.steps, args.eval_every)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
