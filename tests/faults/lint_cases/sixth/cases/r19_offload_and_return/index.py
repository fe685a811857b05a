import torch


class FlatIndex:
    """Exact inner-product search on one GPU over a normalised corpus."""

    def __init__(self, device):
        self.device = device
        self.vectors = None

    def build(self, vectors):
        self.vectors = vectors.to(self.device, torch.float16)

    @torch.no_grad()
    def search(self, queries, k):
        scores = queries.to(self.device, torch.float16) @ self.vectors.t()
        return scores.topk(k, dim=-1).indices.cpu()

    def release(self):
        self.vectors = None
        torch.cuda.empty_cache()
