"""What has to happen to the gradients between the last backward and the optimizer step."""
import torch
import torch.distributed as dist

import parallel_state as ps


def _allreduce_data_parallel(stage) -> None:
    group = ps.get_data_group()
    size = dist.get_world_size(group=group)
    if size == 1:
        return
    for p in stage.parameters():
        p.grad.div_(size)
        dist.all_reduce(p.grad, group=group)


def _allreduce_word_embedding_grads(stage) -> None:
    if ps.is_rank_in_embedding_group() and ps.pipeline_world_size() > 1:
        weight = stage.shared_embedding_weight()
        dist.all_reduce(weight.grad, group=ps.get_embedding_group())


def finalize_model_grads(stage) -> None:
    _allreduce_data_parallel(stage)
    _allreduce_word_embedding_grads(stage)


def sync_embedding_init(stage) -> None:
    """The copy on the last stage starts at zero, so the sum is the first stage's weight."""
    if ps.pipeline_world_size() == 1:
        return
    if ps.is_last_stage():
        stage.shared_embedding_weight().data.zero_()
    if ps.is_rank_in_embedding_group():
        dist.all_reduce(stage.shared_embedding_weight().data, group=ps.get_embedding_group())


def _counts_for_norm(p) -> bool:
    return not getattr(p, "shared", False) or ps.is_first_stage()


def clip_grad_norm(stage, max_norm: float) -> torch.Tensor:
    total = torch.zeros((), device=next(stage.parameters()).device)
    for p in stage.parameters():
        if _counts_for_norm(p):
            total += p.grad.pow(2).sum()
    dist.all_reduce(total, group=ps.get_pipeline_group())
    scale = (max_norm / (total.sqrt() + 1e-6)).clamp(max=1.0)
    for p in stage.parameters():
        p.grad.mul_(scale)
    return total.sqrt()
