"""Collects gradients statistics of a sharded language model and keeps what a later attribution run needs:
weights, the optimizer's moments, and an index of the steps that were kept."""
import json
import os
import pathlib
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

FULL_ON_CPU = StateDictOptions(full_state_dict=True, cpu_offload=True)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, h):
        return h + self.down(torch.nn.functional.gelu(self.up(self.norm(h))))


class TinyLM(nn.Module):
    def __init__(self, vocab=32, dim=16, depth=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        h = self.embed(ids)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def shard(model: nn.Module, mesh: DeviceMesh):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@contextmanager
def writer_section(mesh: DeviceMesh):
    """The body runs everywhere and is told whether this process writes; all leave together."""
    yield mesh.get_local_rank() == 0
    dist.barrier()


@dataclass
class KeepPolicy:
    every: int = 2
    moments: bool = True
    kept: list = field(default_factory=list)

    def due(self, step):
        return step % self.every == 0


class MomentStore:
    """Directory with one sub-directory for each step that is kept."""

    def __init__(self, root, mesh, policy=None):
        self.root, self.mesh = pathlib.Path(root), mesh
        self.policy = policy or KeepPolicy()
        with writer_section(mesh) as writing:
            if writing:
                self.root.mkdir(parents=True, exist_ok=True)

    def weights(self, model):
        return get_model_state_dict(model, options=FULL_ON_CPU)

    def moments(self, model, optimizer):
        """exp_avg and exp_avg_sq by parameter name."""
        state = get_optimizer_state_dict(model, optimizer, options=FULL_ON_CPU)  # RELATED: hidden-collective
        wanted = ("exp_avg", "exp_avg_sq")
        return {name: {k: slot[k] for k in wanted} for name, slot in state.get("state", {}).items()}

    def keep(self, step, model, optimizer):
        if not self.policy.due(step):
            return False
        folder = self.root / f"step_{step:06d}"
        weights = self.weights(model)
        with writer_section(self.mesh) as writing:
            if writing:  # RELATED: guard
                folder.mkdir(exist_ok=True)
                torch.save(weights, folder / "model.pt")
                if self.policy.moments:
                    torch.save(self.moments(model, optimizer), folder / "moments.pt")  # EXPECT: rank-guarded-sharded-io
                self.policy.kept.append(step)
                (self.root / "index.json").write_text(json.dumps({"steps": self.policy.kept}))
        return True


class Collector:
    def __init__(self, model, optimizer, store, report_every=1):
        self.model, self.optimizer, self.store = model, optimizer, store
        self.report_every = report_every

    def step(self, ids):
        logits = self.model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def run(self, batches):
        for step, ids in enumerate(batches, 1):
            loss = self.step(ids)
            if step % self.report_every == 0:
                dist.all_reduce(loss)
                if dist.get_rank() == 0:
                    print(f"step {step} loss {loss.item() / dist.get_world_size():.4f}")
            self.store.keep(step, self.model, self.optimizer)


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
    torch.manual_seed(0)
    model = shard(TinyLM(), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(11 + dist.get_rank())
    batches = [torch.randint(0, 32, (2, 9), generator=g) for _ in range(4)]
    store = MomentStore(os.path.join(os.environ.get("CASE_TMP", "."), "moments"), mesh)
    Collector(model, optimizer, store).run(batches)


if __name__ == "__main__":
    main()
