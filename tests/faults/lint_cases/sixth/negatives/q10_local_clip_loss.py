import argparse
import math
import os

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_fn
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Pairs(Dataset):
    def __init__(self, n, image_dim, vocab, seed):
        gen = torch.Generator().manual_seed(seed)
        self.images = torch.randn(n, image_dim, generator=gen)
        self.texts = torch.randint(0, vocab, (n, 32), generator=gen)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.texts[index]


class CLIP(nn.Module):
    def __init__(self, image_dim, vocab, dim):
        super().__init__()
        self.visual = nn.Sequential(nn.Linear(image_dim, dim), nn.GELU(), nn.Linear(dim, dim))
        self.text = nn.EmbeddingBag(vocab, dim)
        self.text_proj = nn.Linear(dim, dim)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, images, texts):
        image_features = F.normalize(self.visual(images), dim=-1)
        text_features = F.normalize(self.text_proj(self.text(texts)), dim=-1)
        return image_features, text_features, self.logit_scale.exp()


class ClipLoss(nn.Module):
    """Each rank scores its own rows against the features of all ranks."""

    def __init__(self, rank, world_size):
        super().__init__()
        self.rank = rank
        self.world_size = world_size

    def gather(self, features):
        if self.world_size == 1:
            return features
        return torch.cat(dist_fn.all_gather(features), dim=0)

    def forward(self, image_features, text_features, logit_scale):
        all_images = self.gather(image_features)
        all_texts = self.gather(text_features)
        logits_per_image = logit_scale * image_features @ all_texts.t()
        logits_per_text = logit_scale * text_features @ all_images.t()
        count = image_features.size(0)
        labels = torch.arange(count, device=image_features.device) + count * self.rank
        return 0.5 * (F.cross_entropy(logits_per_image, labels) + F.cross_entropy(logits_per_text, labels))


def main(args):
    dist.init_process_group("nccl")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(args.seed)

    dataset = Pairs(args.num_pairs, args.image_dim, args.vocab, args.seed)
    sampler = DistributedSampler(dataset, shuffle=True, seed=args.seed)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, drop_last=True)
    model = DDP(CLIP(args.image_dim, args.vocab, args.dim).to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.2)
    criterion = ClipLoss(rank, world_size)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (images, texts) in enumerate(loader):
            image_features, text_features, scale = model(images.to(device), texts.to(device))
            loss = criterion(image_features, text_features, scale)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                model.module.logit_scale.clamp_(0, math.log(100))
            if step % 50 == 0:
                shown = loss.detach().clone()
                dist.all_reduce(shown)
                if rank == 0:
                    print(f"epoch {epoch} step {step} loss {shown.item() / world_size:.4f}")
        if rank == 0:
            torch.save({"epoch": epoch, "state_dict": model.module.state_dict()}, args.checkpoint)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-pairs", type=int, default=65536)
    parser.add_argument("--image-dim", type=int, default=768)
    parser.add_argument("--vocab", type=int, default=49408)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--checkpoint", default="clip.pt")
    parser.add_argument("--seed", type=int, default=4)
    main(parser.parse_args())
