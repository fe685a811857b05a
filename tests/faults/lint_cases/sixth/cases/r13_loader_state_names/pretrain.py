import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

from groups import build_groups
from stream import TokenStream


def loader_file(folder, group):
    return os.path.join(folder, f"dataloader_{dist.get_rank(group):05d}.pt")


class Pretrainer:
    def __init__(self, args, device):
        self.args, self.device = args, device
        self.groups = build_groups(args.shard_size)
        torch.manual_seed(args.seed)
        net = nn.Sequential(nn.Embedding(args.vocab, args.dim), nn.Linear(args.dim, args.dim), nn.GELU(),
                            nn.Linear(args.dim, args.vocab)).to(device)
        self.model = FSDP(net, device_mesh=self.groups.mesh, device_id=device,
                          sharding_strategy=ShardingStrategy.HYBRID_SHARD, use_orig_params=True)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.stream = TokenStream(args.tokens, args.seq_len, args.batch_size,
                                  dist.get_rank(self.groups.data), dist.get_world_size(self.groups.data))
        self.step = 0

    def save(self):
        folder = os.path.join(self.args.out, f"iter_{self.step:07d}")
        model_state, optim_state = get_state_dict(self.model, self.optim)
        dcp.save({"model": model_state, "optim": optim_state}, checkpoint_id=folder)
        torch.save(self.stream.state_dict(), loader_file(folder, self.groups.replicate))
        dist.barrier()
        if dist.get_rank() == 0:
            with open(os.path.join(self.args.out, "latest"), "w") as handle:
                handle.write(str(self.step))

    def load(self, step):
        folder = os.path.join(self.args.out, f"iter_{step:07d}")
        model_state, optim_state = get_state_dict(self.model, self.optim)
        dcp.load({"model": model_state, "optim": optim_state}, checkpoint_id=folder)
        set_state_dict(self.model, self.optim, model_state_dict=model_state, optim_state_dict=optim_state)
        self.stream.load_state_dict(torch.load(loader_file(folder, self.groups.replicate)))
        self.step = step

    def run(self):
        while self.step < self.args.steps:
            batch = self.stream.next_batch().to(self.device)
            logits = self.model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            self.optim.zero_grad()
            loss.backward()
            self.optim.step()
            self.step += 1
            if self.step % self.args.save_every == 0:
                self.save()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("tokens")
    p.add_argument("--out", default="ckpt")
    p.add_argument("--resume", type=int, default=0)
    for name, value in (("shard-size", 4), ("vocab", 32000), ("dim", 1024), ("seq-len", 1024), ("batch-size", 4),
                        ("steps", 20000), ("save-every", 1000), ("seed", 3)):
        p.add_argument(f"--{name}", type=int, default=value)
    p.add_argument("--lr", type=float, default=3e-4)
    cli = p.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    trainer = Pretrainer(cli, torch.device("cuda", torch.cuda.current_device()))
    if cli.resume:
        trainer.load(cli.resume)
    trainer.run()
    dist.destroy_process_group()
