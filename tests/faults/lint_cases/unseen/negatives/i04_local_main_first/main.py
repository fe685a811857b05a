import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from data import Windows, load_tokens, load_vocab
from dist_utils import local_main_first, local_rank, setup


class Bigram(nn.Module):
    def __init__(self, vocab, width=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.out = nn.Linear(width, vocab)

    def forward(self, x, y):
        return F.cross_entropy(self.out(self.emb(x)).flatten(0, 1), y.flatten())


def compile_extension(device):
    """Stands for a JIT build: the first process of a machine fills the build folder, the others find it there."""
    return torch.jit.script(nn.ReLU()).to(device)


def loaders(batch_size):
    train, valid = Windows(load_tokens("train", 2001), 8), Windows(load_tokens("valid", 401), 8)
    sampler = DistributedSampler(train, shuffle=True, drop_last=True)
    return (DataLoader(train, batch_size=batch_size, sampler=sampler, drop_last=True), sampler,
            DataLoader(valid, batch_size=batch_size, sampler=DistributedSampler(valid, shuffle=False)))


def validate(model, loader, device):
    total = torch.zeros(2, device=device)
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            total += torch.stack([model(x.to(device), y.to(device)), torch.ones((), device=device)])
    model.train()
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def main(epochs=2):
    device = setup()
    try:
        vocab = load_vocab()
        train, sampler, valid = loaders(16)
        with local_main_first():
            compile_extension(device)
        model = DDP(Bigram(len(vocab)).to(device), device_ids=[local_rank()] if device.type == "cuda" else None)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for x, y in train:
                opt.zero_grad(set_to_none=True)
                model(x.to(device), y.to(device)).backward()
                opt.step()
            loss = validate(model, valid, device)
            if dist.get_rank() == 0:
                print(f"epoch {epoch} valid {loss:.4f}")
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
