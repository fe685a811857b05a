"""One forward, one backward: stages nearer to the input run more forwards before their first backward."""
from collections import deque
from typing import Callable, List, Optional

import torch

from p2p import P2P


class OneForwardOneBackward:
    def __init__(self, p2p: P2P, forward_fn: Callable, micro_batches: int):
        self.p2p, self.forward_fn, self.n = p2p, forward_fn, micro_batches

    @property
    def warmup(self) -> int:
        return min(self.p2p.stages - self.p2p.stage - 1, self.n)

    def _forward(self, batches, hidden, losses: List[torch.Tensor]):
        out = self.forward_fn(next(batches), hidden)
        if self.p2p.last:
            out = out / self.n
            losses.append(out.detach())
        return out

    @staticmethod
    def _backward(hidden, out, grad) -> Optional[torch.Tensor]:
        torch.autograd.backward(out, grad)
        return hidden.grad if hidden is not None else None

    def run(self, batches) -> torch.Tensor:
        stash, losses, p2p = deque(), [], self.p2p
        batches = iter(batches)
        for _ in range(self.warmup):
            hidden = p2p.recv_forward()
            out = self._forward(batches, hidden, losses)
            p2p.send_forward(out)
            stash.append((hidden, out))

        steady = self.n - self.warmup
        hidden = p2p.recv_forward() if steady > 0 else None
        for i in range(steady):
            out = self._forward(batches, hidden, losses)
            grad = p2p.send_forward_recv_backward(out)
            stash.append((hidden, out))
            upstream = self._backward(*stash.popleft(), grad)
            if i == steady - 1:
                p2p.send_backward(upstream)
            else:
                hidden = p2p.send_backward_recv_forward(upstream)

        for _ in range(self.warmup):
            grad = p2p.recv_backward()
            p2p.send_backward(self._backward(*stash.popleft(), grad))
        return torch.stack(losses).sum() if losses else torch.zeros((), device=p2p.device)
