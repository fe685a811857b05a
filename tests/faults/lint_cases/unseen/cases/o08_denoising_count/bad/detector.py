"""A query detector with an auxiliary denoising group, and its criterion."""
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


@dataclass
class DenoisingConfig:
    enabled: bool = True
    num_denoising: int = 6
    box_noise: float = 0.2


def world_size():
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def build_denoising_group(targets, embed, cfg):
    """Noised copies of the ground truth as extra decoder queries; ``(None, None)`` when there is nothing to noise."""
    counts = [len(t["boxes"]) for t in targets]
    widest = max(counts)
    if not cfg.enabled or widest == 0:  # RELATED: taint-source
        return None, None
    groups = max(cfg.num_denoising // widest, 1)
    queries = embed.weight.new_zeros(len(targets), widest * groups, embed.embedding_dim)
    boxes = embed.weight.new_zeros(len(targets), widest * groups, 4)
    mask = torch.zeros(len(targets), widest * groups, dtype=torch.bool)
    for i, target in enumerate(targets):
        for g in range(groups):
            lo, hi = g * widest, g * widest + counts[i]
            queries[i, lo:hi] = embed(target["labels"])
            boxes[i, lo:hi] = target["boxes"]
            mask[i, lo:hi] = True
    noisy = (boxes + cfg.box_noise * (torch.rand_like(boxes) - 0.5)).clamp(0, 1)
    meta = {"boxes": boxes, "mask": mask, "num_positive": int(mask.sum())}
    return torch.cat([queries, noisy], dim=-1), meta


class QueryDetector(nn.Module):
    def __init__(self, num_classes=3, dim=16, num_queries=5, dn_cfg=None):
        super().__init__()
        self.dn_cfg = dn_cfg or DenoisingConfig()
        self.backbone = nn.Sequential(nn.Linear(10, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.queries = nn.Parameter(torch.randn(num_queries, dim) * 0.1)
        self.label_embed = nn.Embedding(num_classes, dim)
        self.dn_proj = nn.Linear(dim + 4, dim)
        self.decoder = nn.Sequential(nn.Linear(dim, dim), nn.ReLU())
        self.class_head = nn.Linear(dim, num_classes + 1)
        self.box_head = nn.Linear(dim, 4)

    def _decode(self, queries, memory):
        hidden = self.decoder(queries + memory[:, None])
        return self.class_head(hidden), self.box_head(hidden).sigmoid()

    def forward(self, images, targets=None):
        memory = self.backbone(images)
        logits, boxes = self._decode(self.queries[None].expand(len(images), -1, -1), memory)
        out = {"logits": logits, "boxes": boxes, "dn_boxes": None, "dn_meta": None}
        if self.training and targets is not None:
            dn_queries, meta = build_denoising_group(targets, self.label_embed, self.dn_cfg)
            if meta is not None:
                _, out["dn_boxes"] = self._decode(self.dn_proj(dn_queries), memory)
                out["dn_meta"] = meta
        return out


class SetCriterion(nn.Module):
    def __init__(self, weights, dn_cfg):
        super().__init__()
        self.weights = weights
        self.dn_cfg = dn_cfg

    def _global_count(self, count, device):
        """Average number over the processes, at least one."""
        total = torch.as_tensor([float(count)], device=device)
        if world_size() > 1:
            dist.all_reduce(total)  # RELATED: hidden-collective
        return torch.clamp(total / world_size(), min=1).item()

    def loss_labels(self, out, targets):
        logits = out["logits"]
        classes = torch.full(logits.shape[:2], logits.shape[-1] - 1)
        for i, t in enumerate(targets):
            n = min(len(t["labels"]), logits.shape[1])
            classes[i, :n] = t["labels"][:n]
        return F.cross_entropy(logits.flatten(0, 1), classes.flatten())

    def loss_boxes(self, out, targets, num_boxes):
        total = out["boxes"].sum() * 0
        for i, t in enumerate(targets):
            n = min(len(t["boxes"]), out["boxes"].shape[1])
            total = total + (out["boxes"][i, :n] - t["boxes"][:n]).abs().sum()
        return total / num_boxes

    def loss_denoising(self, out, num_dn):
        meta = out["dn_meta"]
        diff = (out["dn_boxes"] - meta["boxes"]).abs().sum(-1)
        return (diff * meta["mask"]).sum() / num_dn

    def forward(self, out, targets):
        device = out["logits"].device
        num_boxes = self._global_count(sum(len(t["boxes"]) for t in targets), device)
        losses = {"labels": self.loss_labels(out, targets), "boxes": self.loss_boxes(out, targets, num_boxes)}
        meta = out["dn_meta"]
        if meta is not None:  # RELATED: guard
            num_dn = self._global_count(meta["num_positive"], device)  # EXPECT: local-data-branch
            losses["denoising"] = self.loss_denoising(out, num_dn)
        return {k: v * self.weights[k] for k, v in losses.items()}
