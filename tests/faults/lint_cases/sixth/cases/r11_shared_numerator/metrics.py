import torch
import torch.nn.functional as F


def step_accuracy(logits, targets, alive, mask):
    """Counts for one draft step.

    ``full`` is measured over all supervised positions, ``cond`` over the positions
    whose earlier draft steps were all right. Returns the counts and the new ``alive``.
    """
    right = (logits.argmax(-1) == targets) & alive & mask
    correct = right.sum().float()
    full_total = mask.sum().float()
    cond_total = (alive & mask).sum().float()
    return correct, full_total, correct, cond_total, right


def draft_metrics(step_logits, targets, mask):
    metrics = {}
    loss = 0.0
    alive = torch.ones_like(mask)
    for k, logits in enumerate(step_logits):
        shifted = targets[:, k:]
        valid = mask[:, k:]
        logits = logits[:, : shifted.size(1)]
        nll = F.cross_entropy(logits.transpose(1, 2), shifted, reduction="none")
        loss = loss + (nll * valid).sum() / valid.sum().clamp(min=1)
        full, full_total, cond, cond_total, right = step_accuracy(logits, shifted, alive[:, : shifted.size(1)], valid)
        alive = right
        metrics[f"full_acc_{k}_sum"], metrics[f"full_acc_{k}_total"] = full, full_total
        metrics[f"cond_acc_{k}_sum"], metrics[f"cond_acc_{k}_total"] = cond, cond_total
    return loss, metrics


def finalize(metrics):
    out = {}
    for name in metrics:
        if name.endswith("_sum"):
            key = name[: -len("_sum")]
            out[key] = (metrics[name] / metrics[f"{key}_total"].clamp(min=1)).item()
    return out
