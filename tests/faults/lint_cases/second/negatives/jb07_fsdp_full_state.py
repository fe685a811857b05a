"""Pretraining with FSDP2-sharded weights and full-state checkpoints that are written by one rank."""
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

VOCAB, DIM = 73, 32


@dataclass
class SaveConfig:
    directory: str
    every: int = 10


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class BigramLM(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList([Block() for _ in range(layers)])
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def shard(model, mesh):
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if mesh.device_type == "cpu":  # gloo knows sums, not averages
        for module in (*model.blocks, model):
            module.set_force_sum_reduction_for_comms(True)
    return model


class FullStateSaver:
    def __init__(self, cfg, model):
        self.cfg, self.model = cfg, model
        self.options = StateDictOptions(full_state_dict=True, cpu_offload=True)

    @property
    def rank(self):
        return dist.get_rank()

    def _collect(self):
        return get_model_state_dict(self.model, options=self.options)

    def _write(self, step, state):
        os.makedirs(self.cfg.directory, exist_ok=True)
        target = os.path.join(self.cfg.directory, f"model-{step:06d}.pt")
        torch.save({"step": step, "model": state}, target + ".tmp")
        os.replace(target + ".tmp", target)

    def _try_write(self, step, state):
        try:
            self._write(step, state)
        except OSError as error:
            return f"step {step}: {error}"
        return ""

    def _agree(self, problem):
        box = [problem]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def save(self, step):
        state, problem = self._collect(), ""
        if self.rank == 0:
            problem = self._try_write(step, state)
        problem = self._agree(problem)
        if problem:
            raise RuntimeError(f"checkpoint could not be written, {problem}")

    def after_step(self, step):
        if (step + 1) % self.cfg.every == 0:
            self.save(step + 1)


def main():
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    if cuda:
        torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    torch.manual_seed(6)
    model = shard(BigramLM().to(device), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    run = os.environ.get("TORCHELASTIC_RUN_ID", "local")
    saver = FullStateSaver(SaveConfig(os.path.join(tempfile.gettempdir(), f"bigram-{run}")), model)
    gen = torch.Generator().manual_seed(900 + dist.get_rank())
    for step in range(30):
        ids = torch.randint(0, VOCAB, (8, 17), generator=gen).cumsum(1).remainder(VOCAB).to(device)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        saver.after_step(step)
    if dist.get_rank() == 0:
        print(f"last loss {loss.item():.3f}, checkpoints in {saver.cfg.directory}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
