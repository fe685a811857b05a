"""One rank finds its discriminator loss low enough and skips the discriminator update, so its DDP all-reduces are one behind.

In the style of a DCGAN example with two optimizers, on feature vectors; the balance rule "do not train a discriminator that
already wins" is applied to the loss of the rank instead of the mean over the ranks.
"""
# case: processes=3 ending=crash causes=rank-skips-collective,collective-mismatch,mismatched-shape ranks=1 framework=ddp

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

DOMAINS = ("faces", "sketches", "faces")  # each rank trains on the domain whose files lie on its host


class Generator(nn.Module):
    def __init__(self, nz, ngf, nf):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(nz, ngf), nn.ReLU(True), nn.Linear(ngf, ngf), nn.ReLU(True), nn.Linear(ngf, nf))

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self, nf, ndf):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(nf, ndf), nn.LeakyReLU(0.2), nn.Linear(ndf, 1))

    def forward(self, x):
        return self.main(x).squeeze(1)


def load_domain(name, n, nf):
    g = torch.Generator().manual_seed(len(name))
    features = torch.randn(n, nf, generator=g)
    if name == "sketches":
        features = features * 0.2 + 1.5  # mostly white paper
    return TensorDataset(features)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--niter", type=int, default=6)
    parser.add_argument("--nz", type=int, default=16)
    parser.add_argument("--nf", type=int, default=48)
    parser.add_argument("--d-floor", type=float, default=0.42, help="do not train D while its loss is below")
    opt = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(999)
    netG = DDP(Generator(opt.nz, 64, opt.nf))
    netD = DDP(Discriminator(opt.nf, 64))
    optimizerD = torch.optim.Adam(netD.parameters(), lr=1e-3, betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=5e-4, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    torch.manual_seed(1000 + rank)
    loader = DataLoader(load_domain(DOMAINS[rank % len(DOMAINS)], 512, opt.nf), batch_size=16, shuffle=True)

    for epoch in range(opt.niter):
        for i, (real,) in enumerate(loader):
            # (1) update D: maximize log(D(x)) + log(1 - D(G(z)))
            noise = torch.randn(real.size(0), opt.nz)
            fake = netG(noise)
            optimizerD.zero_grad()
            scores = netD(torch.cat([real, fake.detach()]))
            truth = torch.cat([torch.ones(real.size(0)), torch.zeros(real.size(0))])
            errD = criterion(scores, truth)
            if errD.item() > opt.d_floor:
                errD.backward()  # GUILTY
                optimizerD.step()
            # (2) update G: maximize log(D(G(z)))
            optimizerG.zero_grad()
            errG = criterion(netD(fake), torch.ones(real.size(0)))
            errG.backward()  # ALSO
            optimizerG.step()
            if rank == 0 and i % 8 == 0:
                print(f"[{epoch}/{opt.niter}][{i}/{len(loader)}] Loss_D: {errD.item():.3f} Loss_G: {errG.item():.3f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
