import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from utils import find_max_epoch, local_directory


class DiffWave(nn.Module):
    def __init__(self, hidden, layers, steps=50):
        super().__init__()
        self.inp = nn.Conv1d(1, hidden, 1)
        self.step = nn.Embedding(steps, hidden)
        self.convs = nn.ModuleList([nn.Conv1d(hidden, hidden, 3, padding=2**i, dilation=2**i) for i in range(layers)])
        self.out = nn.Conv1d(hidden, 1, 1)

    def forward(self, audio, t):
        x = self.inp(audio) + self.step(t)[:, :, None]
        for conv in self.convs:
            x = x + torch.relu(conv(x))
        return self.out(x)


def distributed_setup(rank, num_gpus):
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "23456")
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("nccl", rank=rank, world_size=num_gpus)


def train(rank, num_gpus, cfg):
    distributed_setup(rank, num_gpus)
    local_path, checkpoint_directory = local_directory(cfg["name"], cfg["model"], "checkpoint")
    dist.barrier()

    net = DiffWave(**cfg["model"]).cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-4)
    ckpt_iter = find_max_epoch(checkpoint_directory)
    if ckpt_iter >= 0:
        path = os.path.join(checkpoint_directory, f"{ckpt_iter}.pkl")
        checkpoint = torch.load(path, map_location="cpu")
        net.load_state_dict(checkpoint["model_state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
    dist.barrier()
    ddp = DistributedDataParallel(net, device_ids=[torch.cuda.current_device()])

    audio = TensorDataset(torch.randn(512, 1, 4000))
    sampler = DistributedSampler(audio)
    loader = DataLoader(audio, batch_size=8, sampler=sampler)
    n_iter = ckpt_iter + 1
    epoch = 0
    while n_iter < cfg["n_iters"]:
        sampler.set_epoch(epoch)
        for (wave,) in loader:
            wave = wave.cuda()
            t = torch.randint(0, 50, (len(wave),), device=wave.device)
            noise = torch.randn_like(wave)
            loss = nn.functional.mse_loss(ddp(wave + t[:, None, None] / 50 * noise, t), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if n_iter > 0 and n_iter % cfg["iters_per_ckpt"] == 0 and rank == 0:
                state = {"model_state_dict": net.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
                torch.save(state, os.path.join(checkpoint_directory, f"{n_iter}.pkl"))
                print(f"model {local_path} at iteration {n_iter} saved")
            n_iter += 1
        epoch += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="sc09")
    parser.add_argument("--n_iters", type=int, default=100000)
    args = parser.parse_args()
    config = {
        "name": args.name,
        "n_iters": args.n_iters,
        "iters_per_ckpt": 1000,
        "model": {"hidden": 64, "layers": 8},
    }
    num_gpus = torch.cuda.device_count()
    mp.spawn(train, args=(num_gpus, config), nprocs=num_gpus)
