"""Two-dimensional mesh (stages x replicas): which process reduces, logs and writes follows from its place in the mesh."""
import os
from dataclasses import dataclass
from typing import Optional

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

DIM, BATCH = 24, 8


@dataclass
class ParallelDims:
    pp: int
    world_size: int
    mesh: Optional[DeviceMesh] = None

    def build(self, device_type: str) -> "ParallelDims":
        if self.world_size % self.pp:
            raise ValueError(f"{self.world_size} processes cannot form {self.pp} stages")
        self.mesh = init_device_mesh(device_type, (self.pp, self.world_size // self.pp), mesh_dim_names=("pp", "dp"))
        return self

    @property
    def stage(self) -> int:
        return self.mesh["pp"].get_local_rank()

    @property
    def replica(self) -> int:
        return self.mesh["dp"].get_local_rank()

    @property
    def has_first_stage(self) -> bool:
        return self.stage == 0

    @property
    def has_last_stage(self) -> bool:
        return self.stage == self.pp - 1

    def stage_peer(self, stage: int) -> int:
        return dist.get_global_rank(self.mesh.get_group("pp"), stage)


def build_metric_rank(dims: ParallelDims) -> bool:
    return dims.has_last_stage and dims.replica == 0


class MetricsProcessor:
    def __init__(self, dims: ParallelDims, every: int):
        self.dims, self.every = dims, every
        self.sink = print if build_metric_rank(dims) else None

    def should_log(self, step: int) -> bool:
        return step == 1 or step % self.every == 0

    def log(self, step: int, loss: torch.Tensor) -> None:
        if self.sink is not None:
            self.sink(f"step {step} loss {loss.item():.4f}")


class Trainer:
    def __init__(self, dims: ParallelDims, device):
        self.dims, self.device = dims, device
        torch.manual_seed(50 + dims.stage)
        self.part = nn.Sequential(nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM)).to(device)
        self.opt = torch.optim.AdamW(self.part.parameters(), lr=2e-3)
        self.metrics = MetricsProcessor(dims, every=10)
        self.gen = torch.Generator().manual_seed(800 + dims.replica)

    def _receive(self, stage: int) -> torch.Tensor:
        buf = torch.empty(BATCH, DIM, device=self.device)
        dist.recv(buf, src=self.dims.stage_peer(stage))
        return buf

    def forward_backward(self) -> Optional[torch.Tensor]:
        dims = self.dims
        batch = torch.randn(BATCH, DIM, generator=self.gen).to(self.device)
        inp = batch if dims.has_first_stage else self._receive(dims.stage - 1).requires_grad_()
        out = self.part(inp)
        loss = None
        if dims.has_last_stage:
            loss = (out - batch.cumsum(1)).pow(2).mean()
            loss.backward()
        else:
            dist.send(out.detach(), dst=dims.stage_peer(dims.stage + 1))
            out.backward(self._receive(dims.stage + 1))
        if not dims.has_first_stage:
            dist.send(inp.grad, dst=dims.stage_peer(dims.stage - 1))
        return loss.detach() if loss is not None else None

    def reduce_gradients(self) -> None:
        group, n = self.dims.mesh.get_group("dp"), self.dims.mesh["dp"].size()
        for p in self.part.parameters():
            dist.all_reduce(p.grad, group=group)
            p.grad /= n

    def train_step(self, step: int) -> None:
        self.opt.zero_grad(set_to_none=True)
        loss = self.forward_backward()
        self.reduce_gradients()
        self.opt.step()
        if not self.metrics.should_log(step):
            return
        if self.dims.has_last_stage:
            dist.all_reduce(loss, group=self.dims.mesh.get_group("dp"))
            self.metrics.log(step, loss / self.dims.mesh["dp"].size())

    def export(self, root: str) -> None:
        """Each stage's first replica writes the stage; weights travel as shards over the replicas on the way."""
        state = {}
        for name, p in self.part.named_parameters():
            shard: DTensor = distribute_tensor(p.detach(), self.dims.mesh["dp"], [Shard(0)])
            state[name] = shard.full_tensor().cpu()
        if self.dims.replica == 0:
            os.makedirs(root, exist_ok=True)
            path = os.path.join(root, f"stage{self.dims.stage}.pt")
            torch.save(state, path + ".tmp")
            os.replace(path + ".tmp", path)
        dist.barrier()


def main():
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    try:
        dims = ParallelDims(pp=int(os.environ.get("PP_DEGREE", "2")), world_size=dist.get_world_size()).build(device.type)
        trainer = Trainer(dims, device)
        for step in range(1, 31):
            trainer.train_step(step)
        trainer.export(os.environ.get("EXPORT_DIR", "export"))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
