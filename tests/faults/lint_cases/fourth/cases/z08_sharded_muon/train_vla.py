import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from muon import Muon


class TwoTower(nn.Module):
    def __init__(self, dim=512):
        super().__init__()
        self.text = nn.Linear(dim, dim, bias=False)
        self.image = nn.Linear(dim, dim, bias=False)
        self.aux = nn.Linear(dim, dim, bias=False)

    def forward(self, text, image, use_aux):
        h = self.text(text) + self.image(image)
        return self.aux(h) if use_aux else h


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    torch.manual_seed(dist.get_rank())
    model = DDP(TwoTower().to(device), device_ids=[local_rank], find_unused_parameters=True)
    optimizer = Muon(model.parameters())
    for step in range(2000):
        text, image = torch.randn(2, 64, 512, device=device)
        loss = model(text, image, use_aux=step >= 500).pow(2).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 100 == 0 and dist.get_rank() == 0:
            print(step, loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
