import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.fsdp import FullStateDictConfig, FullOptimStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

MODEL_NAME = "pytorch_model.bin"
OPTIMIZER_NAME = "optimizer.bin"
TRAINER_NAME = "trainer_state.bin"


class TinyLM(nn.Module):
    def __init__(self, vocab, dim, layers):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
            for _ in range(layers)
        )
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        h = self.emb(ids)
        for block in self.blocks:
            h = h + block(h)
        return self.head(h)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.rank = dist.get_rank()
        self.device = torch.device("cuda", torch.cuda.current_device())
        torch.manual_seed(args.seed)
        self.model = FSDP(TinyLM(args.vocab, args.dim, args.layers).to(self.device), use_orig_params=True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, args.max_steps)
        self.global_step = 0
        self.data_gen = torch.Generator(device=self.device)

    def full_state(self):
        return FSDP.state_dict_type(
            self.model,
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(offload_to_cpu=True, rank0_only=False),
            FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=False),
        )

    def save_checkpoint(self, folder):
        with self.full_state():
            model_state = self.model.state_dict()
        if self.rank == 0:
            os.makedirs(folder, exist_ok=True)
            torch.save(model_state, os.path.join(folder, MODEL_NAME))
            torch.save(self.optimizer.state_dict(), os.path.join(folder, OPTIMIZER_NAME))
            trainer_state = {"step": self.global_step, "scheduler": self.lr_scheduler.state_dict()}
            torch.save(trainer_state, os.path.join(folder, TRAINER_NAME))
        dist.barrier()

    def load_checkpoint(self, folder):
        model_state = torch.load(os.path.join(folder, MODEL_NAME), map_location="cpu")
        optim_state = torch.load(os.path.join(folder, OPTIMIZER_NAME), map_location="cpu")
        with self.full_state():
            self.model.load_state_dict(model_state)
        self.optimizer.load_state_dict(optim_state)
        trainer_state = torch.load(os.path.join(folder, TRAINER_NAME), map_location="cpu")
        self.lr_scheduler.load_state_dict(trainer_state["scheduler"])
        self.global_step = trainer_state["step"]
        dist.barrier()

    def next_batch(self):
        self.data_gen.manual_seed(self.global_step * dist.get_world_size() + self.rank)
        shape = (self.args.batch_size, self.args.seq_len + 1)
        return torch.randint(0, self.args.vocab, shape, device=self.device, generator=self.data_gen)

    def train(self):
        if self.args.resume_from_checkpoint:
            self.load_checkpoint(self.args.resume_from_checkpoint)
        while self.global_step < self.args.max_steps:
            ids = self.next_batch()
            logits = self.model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            loss.backward()
            self.model.clip_grad_norm_(1.0)
            self.optimizer.step()
            self.lr_scheduler.step()
            self.optimizer.zero_grad()
            self.global_step += 1
            if self.global_step % self.args.save_steps == 0:
                self.save_checkpoint(os.path.join(self.args.output_dir, f"checkpoint-{self.global_step}"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--resume_from_checkpoint", default=None)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--seq_len", type=int, default=512)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--max_steps", type=int, default=5000)
    parser.add_argument("--save_steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=42)
    cli = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    Trainer(cli).train()
    dist.destroy_process_group()
