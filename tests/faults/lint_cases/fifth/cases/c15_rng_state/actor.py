import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Actor:
    """FSDP2 policy that samples its own rollouts."""

    def __init__(self, vocab, device, seed):
        torch.manual_seed(seed)
        self.device = device
        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        self.model = nn.Sequential(
            nn.Embedding(vocab, 512),
            nn.Dropout(0.1),
            nn.Linear(512, 2048), nn.GELU(),
            nn.Linear(2048, vocab),
        ).to(device)
        for layer in (self.model[2], self.model[4]):
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        torch.manual_seed(seed + dist.get_rank())

    def rollout(self, length, batch_size):
        tokens = torch.zeros(batch_size, 1, dtype=torch.long, device=self.device)
        with torch.no_grad():
            for _ in range(length):
                probs = self.model(tokens[:, -1]).softmax(-1)
                tokens = torch.cat([tokens, torch.multinomial(probs, 1)], dim=1)
        return tokens

    def update(self, tokens, rewards):
        logp = self.model(tokens[:, :-1]).log_softmax(-1)
        chosen = logp.gather(-1, tokens[:, 1:, None]).squeeze(-1).sum(1)
        loss = -(chosen * (rewards - rewards.mean())).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()
