import torch
import torch.distributed as dist


@torch.no_grad()
def clip_grad_norm_across_experts(parameters, max_norm, norm_type=2.0):
    """Clip by the norm over the gradients of the experts of all ranks."""
    grads = [p.grad for p in parameters if p.grad is not None]
    if len(grads) == 0:
        return torch.tensor(0.0)
    norm_p = torch.zeros((), device=grads[0].device)
    for g in grads:
        norm_p += torch.linalg.vector_norm(g.float(), norm_type).pow(norm_type)
    dist.all_reduce(norm_p, op=dist.ReduceOp.SUM)
    total_norm = norm_p.pow(1.0 / norm_type)
    coef = torch.clamp(max_norm / (total_norm + 1e-6), max=1.0)
    for g in grads:
        g.mul_(coef)
    return total_norm
