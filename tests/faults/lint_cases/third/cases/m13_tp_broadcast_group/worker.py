import os
import random

import torch
import torch.distributed as dist
from torch import nn

from communication_op import broadcast_tensor_dict, get_tp_group, initialize_tensor_parallel, tp_all_reduce


class ColumnRowMLP(nn.Module):
    def __init__(self, dim, hidden, tp_size):
        super().__init__()
        self.up = nn.Linear(dim, hidden // tp_size, bias=False)
        self.down = nn.Linear(hidden // tp_size, dim, bias=False)

    def forward(self, x):
        return tp_all_reduce(self.down(torch.relu(self.up(x))))


class Worker:
    def __init__(self, tp_size, dim=512, vocab=32000):
        self.tp_size = tp_size
        self.driver_rank = dist.get_rank() // tp_size * tp_size
        self.is_driver = dist.get_rank() == self.driver_rank
        torch.manual_seed(0)
        self.embed = nn.Embedding(vocab, dim).cuda()
        self.mlp = ColumnRowMLP(dim, 4 * dim, tp_size).cuda()

    def schedule(self, replica, step):
        rng = random.Random(replica * 7919 + step)
        n = rng.randint(1, 16)
        return {"input_ids": torch.randint(0, 32000, (n, 64), device="cuda"), "temperature": 0.7}

    @torch.no_grad()
    def execute_model(self, step):
        request = self.schedule(self.driver_rank // self.tp_size, step) if self.is_driver else None
        request = broadcast_tensor_dict(request, src=self.driver_rank, group=get_tp_group())
        return self.mlp(self.embed(request["input_ids"])) / request["temperature"]


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    tp_size = int(os.environ.get("TP_SIZE", 2))
    initialize_tensor_parallel(tp_size)
    worker = Worker(tp_size)
    for step in range(1000):
        worker.execute_model(step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
