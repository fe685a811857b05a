import torch
import torch.distributed as dist


def gather_all_tensors(tensor):
    """Gathers tensors whose first dimension differs between ranks."""
    world_size = dist.get_world_size()
    size = torch.tensor([tensor.size(0)], device=tensor.device)
    sizes = [torch.zeros_like(size) for _ in range(world_size)]
    dist.all_gather(sizes, size)
    longest = max(int(s) for s in sizes)
    padded = tensor.new_zeros(longest, *tensor.shape[1:])
    padded[: tensor.size(0)] = tensor
    gathered = [torch.zeros_like(padded) for _ in range(world_size)]
    dist.all_gather(gathered, padded)
    return [g[: int(s)] for g, s in zip(gathered, sizes)]


class MeanAveragePrecision:
    """Average precision at one threshold of the overlap, for one class."""

    def __init__(self, device, threshold=0.5):
        self.device = device
        self.threshold = threshold
        self.reset()

    def reset(self):
        self.hits = []
        self.num_targets = torch.zeros(1, device=self.device)

    def update(self, boxes, scores, targets):
        self.num_targets += len(targets)
        if len(boxes) == 0:
            return
        order = scores.argsort(descending=True)
        boxes, scores = boxes[order], scores[order]
        hit = torch.zeros(len(boxes), device=self.device)
        taken = set()
        for i, box in enumerate(boxes):
            for j, target in enumerate(targets):
                if j not in taken and self._overlap(box, target) >= self.threshold:
                    taken.add(j)
                    hit[i] = 1.0
                    break
        self.hits.append(torch.stack([scores, hit], dim=1))

    @staticmethod
    def _overlap(a, b):
        lo, hi = torch.maximum(a[:2], b[:2]), torch.minimum(a[2:], b[2:])
        inter = (hi - lo).clamp(min=0).prod()
        return inter / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - inter)

    def _sync_dist(self):
        dist.all_reduce(self.num_targets)
        output = []
        for entry in self.hits:
            output.extend(gather_all_tensors(entry))
        self.hits = output

    def compute(self):
        self._sync_dist()
        if not self.hits:
            return 0.0
        rows = torch.cat(self.hits)
        hit = rows[rows[:, 0].argsort(descending=True), 1]
        tp = hit.cumsum(0)
        precision = tp / torch.arange(1, len(hit) + 1, device=self.device)
        return ((precision * hit).sum() / self.num_targets.clamp(min=1)).item()
