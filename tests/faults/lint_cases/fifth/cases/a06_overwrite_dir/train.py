import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import checkpoints
from config import cli


class ActionHead(nn.Module):
    def __init__(self, state_dim=32, horizon=16, action_dim=7):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(state_dim, 512), nn.SiLU(), nn.Linear(512, horizon * action_dim))

    def forward(self, state, action):
        return (self.net(state) - action.flatten(1)).pow(2).mean()


def setup():
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank), dist.get_rank() == 0


def train_loop(config, device, is_main):
    resuming = checkpoints.initialize_checkpoint_dir(config)
    torch.manual_seed(config.seed + dist.get_rank())
    model = ActionHead().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2.5e-5)
    start = checkpoints.load(config, model, optimizer, device) if resuming else 0
    ddp = DistributedDataParallel(model, device_ids=[device.index])
    for step in range(start, config.num_train_steps):
        state = torch.randn(config.batch_size, 32, device=device)
        action = torch.randn(config.batch_size, 16, 7, device=device)
        optimizer.zero_grad(set_to_none=True)
        loss = ddp(state, action)
        loss.backward()
        optimizer.step()
        if is_main and step % 100 == 0:
            logging.info("step %d loss %.4f", step, loss.item())
        if is_main and (step + 1) % config.save_interval == 0:
            checkpoints.save(config, step + 1, model, optimizer)


def main():
    config = cli()
    device, is_main = setup()
    logging.basicConfig(level=logging.INFO if is_main else logging.WARNING)
    train_loop(config, device, is_main)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
