import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from stopper import EarlyStopper


class Seq2Seq(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.decoder = nn.GRU(dim, dim, batch_first=True)
        self.generator = nn.Linear(dim, vocab)

    def forward(self, src, tgt):
        _, state = self.encoder(self.emb(src))
        out, _ = self.decoder(self.emb(tgt), state)
        return self.generator(out)


class NMTTrainer:
    def __init__(self, args):
        self.args = args
        self.is_global_main = dist.get_rank() == 0
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.manual_seed(args.seed)
        self.core = Seq2Seq(args.vocab, args.dim).to(self.device)
        self.model = DDP(self.core, device_ids=[self.device.index])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)
        self.train_gen = torch.Generator().manual_seed(args.seed + 1 + dist.get_rank())

    def batch(self, gen):
        shape = (self.args.batch_size, self.args.max_len)
        src = torch.randint(4, self.args.vocab, shape, generator=gen)
        return src.to(self.device), src.flip(1).to(self.device)

    def loss(self, model, src, tgt):
        logits = model(src, tgt[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten())

    @torch.no_grad()
    def run_valid_epoch(self):
        self.core.eval()
        gen = torch.Generator().manual_seed(0)
        losses = [self.loss(self.core, *self.batch(gen)).item() for _ in range(self.args.valid_batches)]
        self.core.train()
        return sum(losses) / len(losses)

    def make_check_point(self, val_loss):
        os.makedirs(self.args.model_dir, exist_ok=True)
        name = f"model_{self.stopper.cur_step:06d}_{val_loss:.4f}.pkl"
        torch.save(self.core.state_dict(), os.path.join(self.args.model_dir, name))

    def train(self):
        self.stopper = EarlyStopper(patience=self.args.patience, min_steps=self.args.min_steps)
        for batch_count in range(1, self.args.steps + 1):
            src, tgt = self.batch(self.train_gen)
            loss = self.loss(self.model, src, tgt)
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
            self.optimizer.step()
            self.stopper.step()

            if batch_count % self.args.check_point == 0:
                if self.is_global_main:
                    val_loss = self.run_valid_epoch()
                    self.make_check_point(val_loss)
                    self.stopper.validation(val_loss)
                    print(f"step {batch_count} train {loss.item():.4f} valid {val_loss:.4f}")
                dist.barrier()
                stop = self.stopper.is_stop()
                if stop:
                    break
        dist.barrier()
        return self.stopper.best


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-dir", default="runs/nmt/models")
    parser.add_argument("--vocab", type=int, default=8000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--max-len", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100000)
    parser.add_argument("--check-point", type=int, default=1000)
    parser.add_argument("--valid-batches", type=int, default=20)
    parser.add_argument("--patience", type=int, default=5)
    parser.add_argument("--min-steps", type=int, default=4000)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=13)
    cli = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    NMTTrainer(cli).train()
    dist.destroy_process_group()
