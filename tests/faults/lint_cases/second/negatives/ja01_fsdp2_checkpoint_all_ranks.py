"""ViT-ish pretraining with FSDP2; full checkpoints through torch.distributed.checkpoint.state_dict."""
import os
import tempfile
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


@dataclass
class Config:
    dim: int = 32
    layers: int = 2
    classes: int = 10
    steps: int = 8
    save_every: int = 4
    out: str = os.path.join(tempfile.gettempdir(), "vit_fsdp2_full.pt")


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v))


class ViT(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.embed = nn.Linear(27, cfg.dim)
        self.layers = nn.ModuleList(Layer(cfg.dim) for _ in range(cfg.layers))
        self.head = nn.Linear(cfg.dim, cfg.classes)

    def forward(self, x):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(h.mean(1))


class Checkpointer:
    def __init__(self, path, is_writer):
        self.path, self.is_writer = path, is_writer
        self.options = StateDictOptions(full_state_dict=True, cpu_offload=True)

    def gather(self, model):
        return get_model_state_dict(model, options=self.options)

    def save(self, model, step):
        state = self.gather(model)
        if self.is_writer:
            self._write({"model": state, "step": step})
        dist.barrier()

    def _write(self, payload):
        tmp = f"{self.path}.{os.getpid()}"
        torch.save(payload, tmp)
        os.replace(tmp, self.path)
        print(f"saved step {payload['step']} with {len(payload['model'])} tensors", flush=True)


class Callback:
    def on_step_end(self, trainer, step):
        pass


class SaveEvery(Callback):
    def __init__(self, checkpointer, every):
        self.checkpointer, self.every = checkpointer, every

    def on_step_end(self, trainer, step):
        if step % self.every == 0:
            self.checkpointer.save(trainer.model, step)


class Trainer:
    def __init__(self, cfg, callbacks):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        model = ViT(cfg)
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        self.model = fully_shard(model, mesh=mesh)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.callbacks = callbacks

    def fit(self, batches):
        for step, (x, y) in enumerate(batches, 1):
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            self.optim.step()
            self.optim.zero_grad()
            for cb in self.callbacks:
                cb.on_step_end(self, step)


def batches(cfg, rank):
    g = torch.Generator().manual_seed(rank)
    for _ in range(cfg.steps):
        yield torch.randn(8, 9, 27, generator=g), torch.randint(0, cfg.classes, (8,), generator=g)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    cfg = Config()
    saver = Checkpointer(cfg.out, is_writer=dist.get_rank() == 0)
    Trainer(cfg, [SaveEvery(saver, cfg.save_every)]).fit(batches(cfg, dist.get_rank()))
    dist.destroy_process_group()
