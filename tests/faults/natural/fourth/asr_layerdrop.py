"""LayerDrop draws from each rank's own random state, and gradients that are None are not reduced, so one rank reduces fewer layers.

Modelled on facebookresearch/fairseq#2389 (LayerDrop on several GPUs) and the legacy data parallel wrapper of fairseq.
"""
# case: processes=3 ending=hang causes=rank-skips-collective,mismatched-operation,collective-mismatch,silent-corruption-by-misaligned-collectives,rank-missing-collective ranks=1 framework=torch.distributed

import random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

MEL, DIM, LAYERS, PHONES = 20, 32, 4, 12
LAYERDROP = {0: 0.0, 1: 0.1, 2: 0.0}  # of the recipe: only the noisy corpus is regularized


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.conv = nn.Conv1d(DIM, DIM, 3, padding=1)

    def forward(self, x):
        return x + torch.relu(self.conv(self.norm(x).transpose(1, 2)).transpose(1, 2))


class Wav2VecLike(nn.Module):
    def __init__(self, layerdrop):
        super().__init__()
        self.layerdrop = layerdrop
        self.inp = nn.Linear(MEL, DIM)
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(LAYERS))
        self.out = nn.Linear(DIM, PHONES)

    def forward(self, mel):
        x = self.inp(mel)
        for layer in self.layers:
            if self.training and random.random() < self.layerdrop:  # GUILTY
                continue  # ALSO
            x = layer(x)
        return self.out(x)


class FlatReducer:
    """Average the gradients after backward, one message of fixed size per layer."""

    def __init__(self, model, world):
        self.blocks = [model.inp, *model.layers, model.out]
        self.world = world
        self.buffer = torch.zeros(max(sum(p.numel() for p in block.parameters()) for block in self.blocks))

    def reduce(self):
        for block in self.blocks:
            grads = [p.grad for p in block.parameters() if p.grad is not None]
            if not grads:  # ALSO
                continue  # ALSO
            flat = torch.cat([g.flatten() for g in grads])
            self.buffer[: len(flat)] = flat / self.world
            dist.all_reduce(self.buffer)
            for g, mean in zip(grads, self.buffer.split([g.numel() for g in grads] + [len(self.buffer) - len(flat)])):
                g.copy_(mean.view_as(g))


def utterances(rank, step):
    g = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(6, 50, MEL, generator=g), torch.randint(0, PHONES, (6, 50), generator=g)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    random.seed(104 + rank)
    model = Wav2VecLike(LAYERDROP[rank])
    reducer = FlatReducer(model, world)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(200):
        mel, phones = utterances(rank, step)
        loss = F.cross_entropy(model(mel).flatten(0, 1), phones.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        reducer.reduce()
        optimizer.step()
        logs = [None] * world
        dist.all_gather_object(logs, {"loss": loss.item(), "frames": phones.numel()})
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {sum(each['loss'] for each in logs) / world:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
