"""Each rank creates only the tensor-parallel group it belongs to, although all ranks must create all groups.

Modelled on many PyTorch forum threads about dist.new_group in home-made tensor parallelism.
"""
# case: processes=4 ending=hang causes=new-group-by-some-ranks,store-wait,rank-skips-collective,collective-mismatch,collective-order-inversion ranks=- framework=tensor-parallel

import torch
import torch.distributed as dist
from torch import nn

WIDTH, TP = 32, 2


class ReduceFromModelParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)  # ALSO
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class CopyToModelParallel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class ParallelMLP(nn.Module):
    def __init__(self, group):
        super().__init__()
        self.group = group
        self.up = nn.Linear(WIDTH, 4 * WIDTH // TP)
        self.down = nn.Linear(4 * WIDTH // TP, WIDTH, bias=False)

    def forward(self, x):
        h = torch.relu(self.up(CopyToModelParallel.apply(x, self.group)))
        return x + ReduceFromModelParallel.apply(self.down(h), self.group)


def model_parallel_groups(rank, world):
    """Return the tensor-parallel and the data-parallel group of this rank."""
    first = rank // TP * TP
    tensor = dist.new_group([first + i for i in range(TP)])  # GUILTY
    data = dist.new_group(list(range(rank % TP, world, TP)))  # ALSO
    return tensor, data


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    tensor, data = model_parallel_groups(rank, world)  # ALSO
    torch.manual_seed(rank % TP)
    model = nn.Sequential(ParallelMLP(tensor), ParallelMLP(tensor), nn.Linear(WIDTH, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(rank // TP)
    for step in range(50):
        x, y = torch.randn(16, WIDTH, generator=g), torch.randint(0, 4, (16,), generator=g)
        loss = nn.functional.cross_entropy(model(x), y)  # ALSO
        optimizer.zero_grad()
        loss.backward()  # ALSO
        for p in model.parameters():
            dist.all_reduce(p.grad, group=data)  # ALSO
            p.grad /= world // TP
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
