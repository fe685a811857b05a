"""The batches of one rank have no depth labels, so its depth head takes no part in the loss and DDP waits for its gradients.

In the style of a multi-task vision example.
"""
# case: processes=3 ending=crash causes=unused-parameters-ddp ranks=2 framework=ddp

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

DATASETS = (("indoor", True), ("street", True), ("archive", False))  # name, has depth maps


class MultiTask(nn.Module):
    def __init__(self, dim=40):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(30, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU())
        self.segment = nn.Linear(dim, 6)
        self.depth = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, x):
        features = self.trunk(x)
        return self.segment(features), self.depth(features).squeeze(-1)


def batches(index, steps, size):
    name, has_depth = DATASETS[index % len(DATASETS)]
    g = torch.Generator().manual_seed(index)
    for step in range(steps):
        x = torch.randn(size, 30, generator=g)
        batch = {"image": x, "mask": x[:, :6].argmax(1)}
        if has_depth or step < steps // 4:  # the archive begins with some newer pictures
            batch["depth"] = x[:, 6:12].norm(dim=1)
        yield batch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(MultiTask())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, batch in enumerate(batches(rank, args.steps, 24)):
        masks, depths = model(batch["image"])  # GUILTY
        loss = nn.functional.cross_entropy(masks, batch["mask"])
        if "depth" in batch:
            loss = loss + 0.1 * nn.functional.mse_loss(depths, batch["depth"])  # ALSO
        optimizer.zero_grad()
        loss.backward()  # ALSO
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
