import torch
import torch.distributed as dist


def newton_schulz(matrix, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix.bfloat16()
    x = x / (x.norm() + 1e-7)
    transposed = x.size(0) > x.size(1)
    if transposed:
        x = x.T
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.T if transposed else x).to(matrix.dtype)


class ShardedMuon(torch.optim.Optimizer):
    """Muon whose matrices are spread over the ranks of a replica."""

    def __init__(self, params, state, lr=0.02, momentum=0.95):
        super().__init__(params, dict(lr=lr, momentum=momentum))
        self.parallel = state

    def owner_of(self, index):
        return index % self.parallel.shard_size

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for index, param in enumerate(group["params"]):
                if self.owner_of(index) == self.parallel.shard_rank:
                    self._update(param, group)
            for index, param in enumerate(group["params"]):
                dist.broadcast(param.data, src=self.owner_of(index), group=self.parallel.shard_group)

    def _update(self, param, group):
        state = self.state[param]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(param)
        buf = state["momentum_buffer"]
        buf.mul_(group["momentum"]).add_(param.grad)
        update = newton_schulz(param.grad.add(buf, alpha=group["momentum"]))
        param.add_(update, alpha=-group["lr"] * max(1.0, param.size(0) / param.size(1)) ** 0.5)
