import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from saving import FullCheckpoint


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(12)])
    model = FSDP(net, device_id=local_rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    checkpoint = FullCheckpoint("ckpt")
    torch.manual_seed(1 + dist.get_rank())
    for step in range(1, 5001):
        x = torch.randn(16, 2048, device="cuda")
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 1000 == 0:
            path = checkpoint.save(model, step)
            if path is not None:
                print(f"step {step}: wrote {path}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
