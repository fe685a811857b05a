"""Transfers between neighbouring stages."""
from typing import Optional

import torch
import torch.distributed as dist


class P2P:
    def __init__(self, stage: int, stages: int, shape, device):
        self.stage, self.stages, self.shape, self.device = stage, stages, shape, device

    @property
    def first(self) -> bool:
        return self.stage == 0

    @property
    def last(self) -> bool:
        return self.stage == self.stages - 1

    def _empty(self) -> torch.Tensor:
        return torch.empty(self.shape, device=self.device)

    def recv_forward(self) -> Optional[torch.Tensor]:
        if self.first:
            return None
        buf = self._empty()
        dist.recv(buf, src=self.stage - 1)
        return buf.requires_grad_()

    def recv_backward(self) -> Optional[torch.Tensor]:
        if self.last:
            return None
        buf = self._empty()
        dist.recv(buf, src=self.stage + 1)
        return buf

    def send_forward(self, out: torch.Tensor) -> None:
        if not self.last:
            dist.send(out.detach(), dst=self.stage + 1)

    def send_backward(self, grad: Optional[torch.Tensor]) -> None:
        if not self.first:
            dist.send(grad, dst=self.stage - 1)

    def _both(self, tensor: torch.Tensor, peer: int) -> torch.Tensor:
        buf = self._empty()
        ops = [dist.P2POp(dist.isend, tensor.contiguous(), peer), dist.P2POp(dist.irecv, buf, peer)]
        for req in dist.batch_isend_irecv(ops):
            req.wait()
        return buf

    def send_forward_recv_backward(self, out: torch.Tensor) -> Optional[torch.Tensor]:
        return None if self.last else self._both(out.detach(), self.stage + 1)

    def send_backward_recv_forward(self, grad: Optional[torch.Tensor]) -> Optional[torch.Tensor]:
        return None if self.first else self._both(grad, self.stage - 1).requires_grad_()
