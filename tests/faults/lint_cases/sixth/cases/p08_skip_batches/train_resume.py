import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import TensorDataset

from data_loader import prepare_data_loader, skip_first_batches


class Session:
    def __init__(self, args, device):
        self.args = args
        self.device = device
        self.net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1)).to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=args.lr, momentum=0.9)
        self.completed_steps = 0
        self.path = os.path.join(args.checkpoint_dir, "state.pt")

    def save(self):
        if dist.get_rank() == 0:
            os.makedirs(self.args.checkpoint_dir, exist_ok=True)
            state = {
                "net": self.net.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "completed_steps": self.completed_steps,
            }
            torch.save(state, self.path + ".part")
            os.replace(self.path + ".part", self.path)
        dist.barrier()

    def load(self):
        state = torch.load(self.path, map_location=self.device)
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.completed_steps = state["completed_steps"]


def run_epoch(session, model, batches):
    criterion = nn.MSELoss()
    for x, y in batches:
        loss = criterion(model(x.to(session.device)).squeeze(-1), y.to(session.device))
        session.optimizer.zero_grad()
        loss.backward()
        session.optimizer.step()
        session.completed_steps += 1
        if session.completed_steps % session.args.checkpointing_steps == 0:
            session.save()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint-dir", default="runs/regression")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--num-samples", type=int, default=64000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--num-epochs", type=int, default=10)
    parser.add_argument("--checkpointing-steps", type=int, default=50)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=11)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(args.seed)

    gen = torch.Generator().manual_seed(args.seed)
    inputs = torch.randn(args.num_samples, 256, generator=gen)
    dataset = TensorDataset(inputs, inputs.mean(dim=1))
    loader = prepare_data_loader(dataset, args.batch_size, dist.get_rank(), dist.get_world_size(), args.seed)

    session = Session(args, device)
    if args.resume:
        session.load()
    model = DDP(session.net, device_ids=[device.index])

    starting_epoch, resume_batch = divmod(session.completed_steps, len(loader))
    for epoch in range(starting_epoch, args.num_epochs):
        loader.set_epoch(epoch)
        active = loader
        if epoch == starting_epoch and resume_batch > 0:
            active = skip_first_batches(loader, resume_batch)
        run_epoch(session, model, active)
        if dist.get_rank() == 0:
            print(f"finished epoch {epoch} at step {session.completed_steps}")

    session.save()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
