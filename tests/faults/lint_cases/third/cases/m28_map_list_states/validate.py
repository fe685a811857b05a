import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from mean_ap import MeanAveragePrecision


class Scenes(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        n = int(torch.randint(0, 4, (1,), generator=g))
        xy = torch.rand(n, 2, generator=g)
        return torch.rand(3, 128, 128, generator=g), torch.cat([xy, xy + 0.2], dim=1)


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    device = torch.device("cuda", local_rank)
    model = nn.Sequential(nn.Conv2d(3, 16, 8, 8), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 256, 50)).to(device)
    scenes = Scenes()
    loader = DataLoader(scenes, batch_size=None, sampler=DistributedSampler(scenes, shuffle=False))
    metric = MeanAveragePrecision(device)
    with torch.no_grad():
        for image, targets in loader:
            out = model(image[None].to(device)).view(10, 5).sigmoid()
            keep = out[:, 4] > 0.5
            metric.update(out[keep, :4], out[keep, 4], targets.to(device))
    value = metric.compute()
    if dist.get_rank() == 0:
        print(f"AP50 {value:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
