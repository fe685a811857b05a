import torch
import torch.distributed as dist


class MetricCalculator:
    """Relative L2 errors of the surface fields."""

    fields = ("pressure", "shear_x", "shear_y", "shear_z")

    def __init__(self, device, process_group=None):
        self.device = device
        self.process_group = process_group
        self.reset()

    def reset(self):
        self.num = torch.zeros(len(self.fields), device=self.device)
        self.den = torch.zeros(len(self.fields), device=self.device)

    @torch.no_grad()
    def update(self, prediction, target):
        self.num += (prediction - target).pow(2).sum(dim=(0, 1))
        self.den += target.pow(2).sum(dim=(0, 1))

    def _all_reduce(self, tensor):
        if self.process_group is None:
            return tensor
        tensor = tensor.clone()
        dist.all_reduce(tensor, group=self.process_group)
        return tensor

    def compute(self):
        error = (self._all_reduce(self.num) / self._all_reduce(self.den)).sqrt()
        return {f"l2_{name}": value.item() for name, value in zip(self.fields, error)}
