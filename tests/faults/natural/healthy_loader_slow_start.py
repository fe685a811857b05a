"""Healthy: the data-loader workers build an index for 12 s before the first batch, in every rank."""
# case: processes=2 ending=well framework=ddp

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

INDEX_S = 12


class WebShards(IterableDataset):
    def __init__(self, rank, world_size, samples=320):
        self.rank, self.world_size, self.samples = rank, world_size, samples

    def build_index(self):
        """List the bucket page by page."""
        index = []
        for page in range(INDEX_S * 2):
            time.sleep(0.5)
            index += range(page * 20, page * 20 + 20)
        return index

    def __iter__(self):
        index = self.build_index()
        worker = get_worker_info()
        stride = self.world_size * worker.num_workers
        first = self.rank * worker.num_workers + worker.id
        for i in index[first : self.samples : stride]:
            g = torch.Generator().manual_seed(i)
            yield torch.randn(10, generator=g)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dataset = WebShards(rank, dist.get_world_size())
    loader = DataLoader(dataset, batch_size=8, num_workers=2)
    model = DDP(nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, x in enumerate(loader):
        loss = (model(x) - x.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    del model  # before its group (PROC013)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
