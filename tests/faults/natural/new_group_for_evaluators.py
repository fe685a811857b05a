"""Only the ranks that evaluate create their process group, but new_group() must be called by all ranks."""
# case: processes=4 ending=hang causes=new-group-by-some-ranks ranks=0,1 framework=ddp

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

EVAL_RANKS = [0, 1]


class Evaluator:
    """Averages a metric over the ranks that have validation data."""

    def __init__(self, ranks, data):
        self.group = dist.new_group(ranks=ranks)  # GUILTY
        self.data = data

    @torch.no_grad()
    def run(self, model):
        x, y = self.data
        error = (model(x) - y).abs().mean()
        dist.all_reduce(error, group=self.group)
        return error.item() / dist.get_world_size(self.group)


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.head = nn.Linear(64, 1)

    def forward(self, x):
        return self.head(self.body(x))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(Regressor())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    evaluator = None
    if rank in EVAL_RANKS:  # ALSO
        val = torch.randn(128, 10)
        evaluator = Evaluator(EVAL_RANKS, (val, val[:, :1]))  # ALSO
    checkpoint_group = dist.new_group(backend="gloo")  # ALSO

    for step in range(1, 81):
        x = torch.randn(32, 10)
        loss = nn.functional.l1_loss(model(x), x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0 and evaluator is not None:
            error = evaluator.run(model.module)
            if rank == 0:
                print(f"step {step} val error {error:.4f}")
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, {"loss": loss.item()}, group=checkpoint_group)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
