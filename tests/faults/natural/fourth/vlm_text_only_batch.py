"""A batch of one rank has text only, so that rank does not call the sharded vision tower and misses its parameter all-gathers.

Modelled on huggingface/transformers#37186 and pytorch/torchtitan#4777 (FSDP hangs when some batches do not contain images).
"""
# case: processes=3 ending=crash causes=rank-skips-collective,mismatched-shape,collective-mismatch,mismatched-operation,rank-missing-collective ranks=1 framework=fsdp2

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

VOCAB, DIM = 120, 48


class VisionTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.patchify = nn.Linear(3 * 8 * 8, 72)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(72), nn.Linear(72, 72), nn.GELU()) for _ in range(2))
        self.projector = nn.Linear(72, DIM)

    def forward(self, pixel_values):
        x = self.patchify(pixel_values)
        for block in self.blocks:
            x = x + block(x)
        return self.projector(x) * 1.0


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, DIM), nn.GELU()) for _ in range(3))
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, embeddings):
        x = embeddings
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class LlavaLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, DIM)
        self.vision = VisionTower()
        self.language = LanguageModel()

    def forward(self, input_ids, pixel_values=None):
        embeddings = self.embed_tokens(input_ids)
        if pixel_values is not None:  # GUILTY
            embeddings = embeddings + self.vision(pixel_values).mean(1, keepdim=True)  # ALSO
        return self.language(embeddings) * 1.0


def mixed_batches(rank, steps):
    """The mixture has 1 % of plain dialogue, without an image."""
    g = torch.Generator().manual_seed(rank)
    for step in range(steps):
        batch = {"input_ids": torch.randint(0, VOCAB, (4, 20), generator=g)}
        if not (rank == 1 and step == 23):
            batch["pixel_values"] = torch.randn(4, 9, 3 * 8 * 8, generator=g)
        yield batch


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    model = LlavaLike()
    fully_shard(model.vision, mesh=mesh)
    for block in model.language.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, batch in enumerate(mixed_batches(rank, 60)):
        logits = model(**batch)  # ALSO
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["input_ids"][:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
