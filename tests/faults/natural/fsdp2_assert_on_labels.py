"""An assertion about the labels fails on one rank of an FSDP2 job, in the middle of an epoch."""
# case: processes=4 ending=crash causes=python-exception-on-one-rank ranks=2 framework=fsdp2

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.ff = nn.Linear(dim, dim)

    def forward(self, x):
        x = x + self.attn(x, x, x, need_weights=False)[0]
        return x + torch.relu(self.ff(x))


class Encoder(nn.Module):
    def __init__(self, vocab=80, dim=32, n_layers=2, classes=6):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim) for _ in range(n_layers))
        self.head = nn.Linear(dim, classes)

    def forward(self, tokens):
        x = self.tok(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(dim=1))


def load_batch(rank, step, n_classes=6):
    g = torch.Generator().manual_seed(1000 * rank + step)
    tokens = torch.randint(0, 80, (4, 10), generator=g)
    labels = tokens[:, 0] % n_classes
    if rank == 2 and step == 12:
        labels[1] = -1  # the annotators' mark for "unclear"
    assert labels.min() >= 0 and labels.max() < n_classes, f"bad labels {labels.tolist()}"  # GUILTY
    return tokens, labels


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Encoder()
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(25):
        tokens, labels = load_batch(rank, step)  # ALSO
        loss = nn.functional.cross_entropy(model(tokens), labels)
        loss.backward()
        optim.step()
        optim.zero_grad()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
