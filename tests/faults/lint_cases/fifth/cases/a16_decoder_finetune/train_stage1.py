import argparse
import copy
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms

from autoencoder import RepresentationAutoencoder
from losses import reconstruction_loss


@torch.no_grad()
def update_ema(ema, model, decay=0.999):
    for a, b in zip(ema.parameters(), model.parameters()):
        a.lerp_(b, 1 - decay)


def make_loader(args):
    transform = transforms.Compose(
        [transforms.Resize(256), transforms.CenterCrop(256), transforms.ToTensor()]
    )
    dataset = datasets.ImageFolder(args.data, transform)
    sampler = DistributedSampler(dataset, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, num_workers=8, drop_last=True)
    return loader, sampler


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    rank, device = dist.get_rank(), torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(args.seed + rank)

    model = RepresentationAutoencoder().to(device)
    model.encoder.load_state_dict(torch.load(args.encoder, map_location=device))
    ddp = DistributedDataParallel(model, device_ids=[device.index])
    raw = ddp.module
    ema = copy.deepcopy(raw).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW((p for p in raw.parameters() if p.requires_grad), lr=2e-4)
    loader, sampler = make_loader(args)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        ddp.train()
        for step, (images, _) in enumerate(loader):
            images = images.to(device, non_blocking=True)
            latents = raw.encode(images)
            recon = raw(latents)
            loss = reconstruction_loss(recon, images)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(raw.parameters(), 1.0)
            optimizer.step()
            update_ema(ema, raw)
            if step % 100 == 0:
                shown = loss.detach()
                dist.all_reduce(shown, op=dist.ReduceOp.AVG)
                if rank == 0:
                    print(f"epoch {epoch} step {step} loss {shown.item():.4f}")
        if rank == 0:
            torch.save({"model": raw.state_dict(), "ema": ema.state_dict()}, f"decoder-{epoch:03d}.pt")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
