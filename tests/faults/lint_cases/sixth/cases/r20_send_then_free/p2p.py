import torch
import torch.distributed as dist


class StageLink:
    """Point-to-point transfers between neighbouring pipeline stages."""

    def __init__(self, shape, dtype, device):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.shape, self.dtype, self.device = shape, dtype, device

    @property
    def first(self):
        return self.rank == 0

    @property
    def last(self):
        return self.rank == self.size - 1

    def recv_forward(self):
        if self.first:
            return None
        buffer = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        dist.recv(buffer, self.rank - 1)
        return buffer.requires_grad_()

    def send_forward(self, output):
        return None if self.last else dist.isend(output, self.rank + 1)

    def recv_backward(self):
        if self.last:
            return None
        buffer = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        dist.recv(buffer, self.rank + 1)
        return buffer

    def send_backward(self, grad):
        if not self.first:
            dist.send(grad.contiguous(), self.rank - 1)
