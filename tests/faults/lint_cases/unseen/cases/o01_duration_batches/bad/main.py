"""Train a small acoustic language model; layout follows the usual recipe (params dict, tracker, epochs)."""
import argparse
import logging
import os
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from data import FEATURE_DIM, DurationBatches, synthesize_manifest


def get_params():
    return SimpleNamespace(
        num_epochs=2, max_frames=240, base_lr=0.02, log_interval=2, valid_interval=3, num_cuts=61, exp_dir=None
    )


class MetricsTracker(dict):
    """Sums of named quantities; ``norm_items`` turns them into per-frame averages."""

    def __missing__(self, key):
        return 0.0

    def __add__(self, other):
        out = MetricsTracker(self)
        for k, v in other.items():
            out[k] = out[k] + v
        return out

    def norm_items(self):
        frames = max(self["frames"], 1)
        return {k: v / frames for k, v in self.items() if k != "frames"}

    def reduce(self, device):
        keys = sorted(self)
        vec = torch.tensor([float(self[k]) for k in keys], device=device)
        dist.all_reduce(vec)
        for k, v in zip(keys, vec.tolist()):
            self[k] = v


class AcousticLM(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.proj = nn.Linear(FEATURE_DIM, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, FEATURE_DIM)

    def forward(self, feats):
        hidden, _ = self.rnn(torch.tanh(self.proj(feats)))
        return self.out(hidden)


def compute_loss(params, model, batch, is_training):
    feats, lens = batch["feats"], batch["feat_lens"]
    with torch.set_grad_enabled(is_training):
        pred = model(feats[:, :-1])
        mask = torch.arange(feats.shape[1] - 1)[None] < (lens - 1)[:, None]
        loss = ((pred - feats[:, 1:]).pow(2).mean(-1) * mask).sum()
    info = MetricsTracker(loss=loss.detach().item(), frames=int(mask.sum()))
    return loss / max(info["frames"], 1), info


def compute_validation_loss(params, model, valid_dl, device):
    net = model.module if isinstance(model, DDP) else model
    net.eval()
    tot = MetricsTracker(loss=0.0, frames=0)
    for batch in valid_dl:
        tot = tot + compute_loss(params, net, batch, is_training=False)[1]
    if dist.is_initialized() and dist.get_world_size() > 1:
        tot.reduce(device)
    net.train()
    return tot


def train_step(params, model, optimizer, batch):
    loss, info = compute_loss(params, model, batch, is_training=True)
    optimizer.zero_grad()
    loss.backward()  # RELATED: hidden-collective
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    return info


def train_one_epoch(params, model, optimizer, train_dl, valid_dl, rank, device):
    tot = MetricsTracker()
    for batch_idx, batch in enumerate(train_dl):  # EXPECT: uneven-loop
        tot = tot + train_step(params, model, optimizer, batch)
        if rank == 0 and batch_idx % params.log_interval == 0:
            logging.info("epoch %d batch %d %s", params.cur_epoch, batch_idx, tot.norm_items())
        if batch_idx and batch_idx % params.valid_interval == 0:
            valid = compute_validation_loss(params, model, valid_dl, device)
            if rank == 0:
                logging.info("validation %s", valid.norm_items())
    tot.reduce(device)
    return tot


def save_checkpoint(params, model, rank):
    if rank != 0 or params.exp_dir is None:
        return
    torch.save(model.module.state_dict(), os.path.join(params.exp_dir, f"epoch-{params.cur_epoch}.pt"))


def run(rank, world_size, params):
    device = torch.device("cpu")
    torch.manual_seed(42)
    model = AcousticLM().to(device)
    if world_size > 1:
        model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=params.base_lr)

    cuts = synthesize_manifest(params.num_cuts)
    train_set = DurationBatches(cuts, params.max_frames, rank, world_size, shuffle=True)
    valid_set = DurationBatches(synthesize_manifest(9, seed=7), params.max_frames, rank, world_size)
    train_dl = DataLoader(train_set, batch_size=None)
    valid_dl = DataLoader(valid_set, batch_size=None)

    for epoch in range(1, params.num_epochs + 1):
        params.cur_epoch = epoch
        train_set.set_epoch(epoch)
        tot = train_one_epoch(params, model, optimizer, train_dl, valid_dl, rank, device)
        if rank == 0:
            logging.info("epoch %d done %s", epoch, tot.norm_items())
        save_checkpoint(params, model, rank)
        dist.barrier()


def main():
    logging.basicConfig(level=logging.INFO)
    parser = argparse.ArgumentParser()
    parser.add_argument("--exp-dir", default=os.environ.get("CASE_TMP"))
    args, _ = parser.parse_known_args()
    params = get_params()
    params.exp_dir = args.exp_dir
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    run(dist.get_rank(), dist.get_world_size(), params)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
