import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader

from samplers import ContiguousSampler


class Validator:
    def __init__(self, dataset, args, device):
        self.device = device
        self.loader = DataLoader(dataset, args.val_batch, sampler=ContiguousSampler(dataset, args.val_batch),
                                 num_workers=args.workers, pin_memory=True)
        self.rounds = len(self.loader)

    @torch.no_grad()
    def __call__(self, net):
        net.eval()
        stats = torch.zeros(3, dtype=torch.float64, device=self.device)
        for images, labels in self.loader:
            images, labels = images.to(self.device), labels.to(self.device)
            logits = net(images)
            stats[0] += F.cross_entropy(logits, labels, reduction="sum")
            stats[1] += (logits.argmax(1) == labels).sum()
            stats[2] += labels.numel()
        dist.all_reduce(stats)
        loss, correct, seen = stats.tolist()
        return {"loss": loss / seen, "top1": correct / seen, "images": int(seen)}
