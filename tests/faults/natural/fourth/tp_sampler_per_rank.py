"""The sampler of a tensor-parallel job uses the global rank, so the ranks of one model replica feed prompts of different lengths.

Modelled on SPA-VL-RLHF#2 and deepspeedai/DeepSpeed#3131 (ranks that share a model need the same batch).
"""
# case: processes=2 ending=crash causes=mismatched-shape,collective-mismatch,data-not-shared-out,python-exception-on-one-rank ranks=- framework=dtensor-tp

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, Dataset, DistributedSampler

VOCAB, DIM = 90, 32


class Instructions(Dataset):
    """Instructions of 12 to 40 tokens; a short prefix of the file has equal lengths."""

    def __init__(self, length=96):
        g = torch.Generator().manual_seed(0)
        lengths = [20] * 48 + torch.randint(12, 41, (length - 48,), generator=g).tolist()
        self.rows = [torch.randint(1, VOCAB, (n,), generator=g) for n in lengths]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def pad(rows):
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.w1 = nn.Linear(DIM, 4 * DIM)
        self.w2 = nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        return x + self.w2(F.gelu(self.w1(self.norm(x))))


class TinyLlama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(FeedForward() for _ in range(2))
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = TinyLlama()
    for layer in model.layers:
        parallelize_module(layer, mesh, {"w1": ColwiseParallel(), "w2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    data = Instructions()
    sampler = DistributedSampler(data, num_replicas=world, rank=rank, shuffle=False)  # GUILTY
    loader = DataLoader(data, batch_size=4, sampler=sampler, collate_fn=pad)  # ALSO
    for step, ids in enumerate(loader):  # ALSO
        logits = model(ids)  # ALSO
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
