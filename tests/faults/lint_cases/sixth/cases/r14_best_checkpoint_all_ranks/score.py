import torch
import torch.distributed as dist


class SegmentationMetric:
    def __init__(self, nclass, device):
        self.nclass = nclass
        self.confusion = torch.zeros(nclass, nclass, dtype=torch.int64, device=device)

    def update(self, logits, target):
        pred = logits.argmax(1)
        keep = (target >= 0) & (target < self.nclass)
        index = target[keep] * self.nclass + pred[keep]
        self.confusion += torch.bincount(index, minlength=self.nclass ** 2).view_as(self.confusion)

    def get(self):
        matrix = self.confusion.clone()
        if dist.is_initialized():
            dist.all_reduce(matrix)
        matrix = matrix.double()
        pix_acc = matrix.diag().sum() / matrix.sum().clamp(min=1)
        iou = matrix.diag() / (matrix.sum(0) + matrix.sum(1) - matrix.diag()).clamp(min=1)
        return pix_acc.item(), iou.mean().item()
