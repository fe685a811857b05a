import torch
import torch.distributed as dist
from torch import nn


class ChunkedRecurrence(nn.Module):
    """Linear recurrence over a sequence that is split in chunks over the context-parallel ranks."""

    def __init__(self, dim, state):
        super().__init__()
        self.decay = nn.Parameter(torch.zeros(dim))
        self.inp = nn.Linear(dim, dim)

    def local_scan(self, x, carry):
        outputs = []
        a = self.decay.sigmoid()
        h = carry
        for t in range(x.shape[1]):
            h = a * h + x[:, t]
            outputs.append(h)
        return torch.stack(outputs, dim=1), h


def distributed_scan(layer, x, state):
    """Run the chunks one after the other and pass on the last hidden state."""
    x = layer.inp(x)
    carry = x.new_zeros(x.shape[0], x.shape[2])
    out = None
    for turn in range(state.cp_size):
        if state.cp_rank == turn:
            out, last = layer.local_scan(x, carry)
            buffer = last.detach().clone()
        else:
            buffer = torch.empty_like(carry)
        dist.broadcast(buffer, src=turn, group=state.cp_group)
        if state.cp_rank == turn + 1:
            carry = buffer
    return out
