import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from moco_text import MoCo


def make_data(n=8192, length=128):
    lengths = torch.randint(8, length, (n, 1))
    mask = (torch.arange(length)[None] < lengths).float()
    return TensorDataset((torch.randint(1, 30522, (n, length)) * mask).long(), mask)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(1)
    data = make_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 64, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(MoCo().cuda(), device_ids=[local_rank], broadcast_buffers=False)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-4)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for ids, mask in loader:
            loss = model(ids.cuda(), mask.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(epoch, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
