import torch
import torch.distributed as dist
import torch.nn.functional as F


def gather_embeddings(x):
    """Embeddings of all ranks, in rank order."""
    parts = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)


def contrastive_loss(visual, text, scale):
    visual, text = F.normalize(visual, dim=-1), F.normalize(text, dim=-1)
    all_visual, all_text = gather_embeddings(visual), gather_embeddings(text)
    targets = torch.arange(len(visual), device=visual.device) + dist.get_rank() * len(visual)
    retrieve_text = F.cross_entropy(scale.exp() * visual @ all_text.T, targets)
    retrieve_image = F.cross_entropy(scale.exp() * text @ all_visual.T, targets)
    return (retrieve_text + retrieve_image) / 2
