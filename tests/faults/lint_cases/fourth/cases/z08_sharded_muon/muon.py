import torch
import torch.distributed as dist


def zeropower(G, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    X = G.bfloat16()
    if G.size(-2) > G.size(-1):
        X = X.mT
    X = X / (X.norm() + 1e-7)
    for _ in range(steps):
        A = X @ X.mT
        B = b * A + c * A @ A
        X = a * X + B @ X
    return X.mT if G.size(-2) > G.size(-1) else X


def muon_update(grad, momentum, beta=0.95):
    momentum.lerp_(grad, 1 - beta)
    return zeropower(grad.lerp(momentum, beta))


class Muon(torch.optim.Optimizer):
    """Each rank orthogonalises every world_size-th parameter; the results are gathered."""

    def __init__(self, params, lr=0.02, weight_decay=0.0, momentum=0.95):
        params = sorted(params, key=lambda p: p.numel(), reverse=True)
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum))

    @torch.no_grad()
    def step(self):
        rank, world = dist.get_rank(), dist.get_world_size()
        for group in self.param_groups:
            params = group["params"]
            padded = params + [torch.empty_like(params[-1])] * (-len(params) % world)
            for base in range(0, len(params), world):
                if base + rank < len(params):
                    p = params[base + rank]
                    if p.grad is None:
                        continue
                    state = self.state[p]
                    if not state:
                        state["momentum"] = torch.zeros_like(p)
                    update = muon_update(p.grad, state["momentum"], group["momentum"])
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(update.type_as(p), alpha=-group["lr"])
                dist.all_gather(padded[base : base + world], padded[base + rank])
