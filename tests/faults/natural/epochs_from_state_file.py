"""Each rank reads the epoch to resume at from its node's trainer_state.json; one copy is of a later epoch."""
# case: processes=4 ending=hang causes=uneven-inputs,mismatched-operation,rank-missing-collective ranks=2 framework=ddp

import json
import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

MAX_EPOCHS = 6


def write_local_states(folder, rank):
    """Write what the previous run left on each node: node 2 saved once more before it was ended."""
    epoch = 3 if rank == 2 else 2
    with open(os.path.join(folder, "trainer_state.json"), "w") as f:
        json.dump({"epoch": epoch, "lr": 1e-3}, f)


def load_state(folder):
    with open(os.path.join(folder, "trainer_state.json")) as f:
        return json.load(f)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(1, 8, 5)
        self.conv2 = nn.Conv1d(8, 16, 5)
        self.fc = nn.Linear(16 * 24, 10)

    def forward(self, x):
        x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
        return self.fc(x.flatten(1))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    scratch = tempfile.mkdtemp()  # of the node
    write_local_states(scratch, rank)
    state = load_state(scratch)

    model = DDP(Net())
    optimizer = torch.optim.Adam(model.parameters(), lr=state["lr"])
    start_epoch = state["epoch"] + 1  # ALSO
    for epoch in range(start_epoch, MAX_EPOCHS):  # ALSO
        for _ in range(15):
            x, y = torch.randn(16, 1, 32), torch.randint(0, 10, (16,))
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)

    result = torch.tensor([loss.item()])
    dist.reduce(result, dst=0)  # GUILTY
    if rank == 0:
        print(f"mean final loss {result.item() / dist.get_world_size():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
