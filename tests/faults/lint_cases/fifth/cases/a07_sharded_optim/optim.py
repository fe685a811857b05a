import torch
import torch.distributed as dist


class ShardedAdamW:
    """Each rank keeps the moments of its own parameters and broadcasts the updated weights."""

    def __init__(self, params, lr):
        self.params = list(params)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        own = [p for i, p in enumerate(self.params) if i % self.world == self.rank]
        self.inner = torch.optim.AdamW(own, lr=lr) if own else None

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def step(self):
        for p in self.params:
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        if self.inner is not None:
            self.inner.step()
        for i, p in enumerate(self.params):
            dist.broadcast(p.data, src=i % self.world)

    def state_dict(self):
        return self.inner.state_dict() if self.inner is not None else {}

    def load_state_dict(self, state):
        if self.inner is not None:
            self.inner.load_state_dict(state)
