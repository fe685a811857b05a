import torch
import torch.distributed as dist
from torch import nn


@torch.no_grad()
def concat_all_gather(tensor):
    """Concatenate a tensor of all ranks along the batch."""
    output = [torch.ones_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(output, tensor.contiguous())
    return torch.cat(output, dim=0)


class TextEncoder(nn.Module):
    def __init__(self, vocab=30522, dim=256):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.proj = nn.Linear(dim, dim)

    def forward(self, ids, mask):
        h = self.embed(ids) * mask[..., None]
        return nn.functional.normalize(self.proj(h.sum(1) / mask.sum(1, keepdim=True)), dim=-1)


class MoCo(nn.Module):
    def __init__(self, queue=4096, momentum=0.999, temperature=0.07):
        super().__init__()
        self.query, self.key = TextEncoder(), TextEncoder()
        self.key.load_state_dict(self.query.state_dict())
        for p in self.key.parameters():
            p.requires_grad_(False)
        self.momentum, self.temperature, self.size = momentum, temperature, queue
        self.register_buffer("queue", nn.functional.normalize(torch.randn(queue, 256), dim=-1))
        self.register_buffer("position", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def update_key(self):
        for q, k in zip(self.query.parameters(), self.key.parameters()):
            k.lerp_(q, 1 - self.momentum)

    @torch.no_grad()
    def enqueue(self, ids, mask):
        ids, mask = concat_all_gather(ids), concat_all_gather(mask)
        keys = self.key(ids, mask)
        start = int(self.position)
        rows = (start + torch.arange(len(keys), device=keys.device)) % self.size
        self.queue[rows] = keys
        self.position.fill_((start + len(keys)) % self.size)

    def forward(self, ids, mask):
        longest = int(mask.sum(1).max())
        ids, mask = ids[:, :longest], mask[:, :longest]
        q = self.query(ids, mask)
        with torch.no_grad():
            self.update_key()
            k = self.key(ids, mask)
        positive = (q * k).sum(-1, keepdim=True)
        logits = torch.cat([positive, q @ self.queue.clone().T], dim=1) / self.temperature
        self.enqueue(ids, mask)
        return nn.functional.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))
