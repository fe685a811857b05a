import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


class StageGroups:
    def __init__(self, pp):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (dist.get_world_size() // pp, pp), mesh_dim_names=("dp", "pp"))
        self.pp, self.dp = mesh.get_group("pp"), mesh.get_group("dp")
        self.stage, self.replica = mesh.get_local_rank("pp"), mesh.get_local_rank("dp")
        self.stages = pp
        self.last_rank = dist.get_global_rank(self.pp, pp - 1)

    @property
    def is_last(self):
        return self.stage == self.stages - 1


def build_stage(groups, dim, layers):
    torch.manual_seed(groups.stage)
    return nn.Sequential(*(nn.Sequential(nn.Linear(dim, dim), nn.Tanh()) for _ in range(layers))).cuda()


def average_gradients(module, group):
    for p in module.parameters():
        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=group)


def mean_loss(losses, groups):
    """Only the last stage has losses; it averages over its replicas and tells the other stages."""
    value = torch.zeros(1, device="cuda")
    if groups.is_last:
        value += torch.stack(losses).mean().detach()
        dist.all_reduce(value, op=dist.ReduceOp.AVG, group=groups.dp)
    dist.broadcast(value, src=groups.last_rank, group=groups.pp)
    return value.item()


class Plateau:
    def __init__(self, patience, factor=0.5):
        self.patience, self.factor = patience, factor
        self.best, self.bad = float("inf"), 0

    def step(self, loss, optimizer):
        if loss < self.best * 0.999:
            self.best, self.bad = loss, 0
            return False
        self.bad += 1
        if self.bad % self.patience == 0:
            for group in optimizer.param_groups:
                group["lr"] *= self.factor
        return self.bad >= 4 * self.patience


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pp", type=int, default=4)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--steps", type=int, default=5000)
    args = parser.parse_args()
    groups = StageGroups(args.pp)
    module = build_stage(groups, args.dim, layers=4)
    device = torch.device("cuda", torch.cuda.current_device())
    stage = PipelineStage(module, groups.stage, groups.stages, device, group=groups.pp)
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    plateau = Plateau(patience=20)
    data = torch.Generator("cuda").manual_seed(9000 + groups.replica)

    for step in range(args.steps):
        optimizer.zero_grad()
        batch = torch.randn(32, args.dim, generator=data, device=device)
        losses = []
        if groups.stage == 0:
            schedule.step(batch)
        elif groups.is_last:
            schedule.step(target=batch.tanh(), losses=losses)
        else:
            schedule.step()
        average_gradients(module, groups.dp)
        optimizer.step()
        if step % 10 == 0:
            loss = mean_loss(losses, groups)
            if dist.get_rank() == 0:
                print(f"step {step} loss {loss:.4f}")
            if plateau.step(loss, optimizer):
                break
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
