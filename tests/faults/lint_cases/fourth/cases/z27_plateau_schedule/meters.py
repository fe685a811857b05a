import torch
import torch.distributed as dist


class AverageMeter:
    def __init__(self, device):
        self.device = device
        self.reset()

    def reset(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.total += value * n
        self.count += n

    @property
    def average(self):
        return self.total / max(self.count, 1)

    def global_average(self):
        both = torch.tensor([self.total, self.count], dtype=torch.float64, device=self.device)
        dist.all_reduce(both)
        return (both[0] / both[1]).item()
