import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import mpu
from layers import ParallelMLP


def build_loader(dataset, batch_size):
    sampler = DistributedSampler(dataset)
    return DataLoader(dataset, batch_size, sampler=sampler, drop_last=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensor-parallel", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    mpu.initialize_model_parallel(args.tensor_parallel)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20_000, 256, generator=generator)
    loader = build_loader(TensorDataset(x, x.roll(1, dims=1)), 64)
    torch.manual_seed(1234 + dist.get_rank() % args.tensor_parallel)
    model = ParallelMLP(256, 4096, args.tensor_parallel).cuda()
    model = DDP(model, device_ids=[local_rank], process_group=mpu.get_data_parallel_group())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs.cuda()), targets.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
