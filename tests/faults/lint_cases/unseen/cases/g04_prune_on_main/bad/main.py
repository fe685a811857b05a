"""Recipe: small keyword spotter, speech-toolkit style."""
import os
import pathlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from checkpoints import Checkpointer
from ddp_utils import ddp_init, if_main_process, main_process_only, run_on_main

HPARAMS = {"n_mels": 10, "n_words": 4, "lr": 0.05, "number_of_epochs": 3, "keep": 1}


class TrainLogger:
    def __init__(self, path):
        self.path = path

    def log_stats(self, stats_meta, **stats):
        with open(self.path, "a") as f:
            print(" ".join(f"{k}={v}" for k, v in {**stats_meta, **stats}.items()), file=f)


class KeywordBrain:
    def __init__(self, hparams, checkpointer, logger):
        self.hparams, self.checkpointer, self.logger = hparams, checkpointer, logger
        self.raw = nn.Sequential(nn.Linear(hparams["n_mels"], 16), nn.ReLU(), nn.Linear(16, hparams["n_words"]))
        self.model = DistributedDataParallel(self.raw) if dist.is_initialized() else self.raw
        self.optimizer = torch.optim.SGD(self.raw.parameters(), lr=hparams["lr"])
        checkpointer.add_recoverable("model", self.raw)
        checkpointer.add_recoverable("optimizer", self.optimizer)

    def compute_loss(self, batch, model):
        feats, words = batch
        return nn.functional.cross_entropy(model(feats), words)

    def fit(self, epochs, train_set, valid_set):
        for epoch in epochs:
            self.model.train()
            for batch in train_set:
                loss = self.compute_loss(batch, self.model)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            self.on_valid_end(epoch, loss.item(), self.validate(valid_set))

    @torch.no_grad()
    def validate(self, valid_set):
        self.raw.eval()
        total = sum(self.compute_loss(b, self.raw) for b in valid_set) / len(valid_set)
        if dist.is_initialized():
            dist.all_reduce(total)
            total /= dist.get_world_size()
        return total.item()

    def on_valid_end(self, epoch, train_loss, valid_loss):
        if valid_loss != valid_loss:
            raise ValueError("validation loss is not finite")
        self.write_stats(epoch, train_loss, valid_loss)

    @main_process_only
    def write_stats(self, epoch, train_loss, valid_loss):
        meta = {"epoch": epoch, "valid_loss": valid_loss}
        self.logger.log_stats({"epoch": epoch}, train=train_loss, valid=valid_loss)
        self.checkpointer.save_checkpoint(meta)
        self.checkpointer.delete_checkpoints(self.hparams["keep"], min_key="valid_loss")  # EXPECT: rank-guarded-collective


def make_set(seed, n, hparams):
    g = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(6, hparams["n_mels"], generator=g), torch.randint(0, hparams["n_words"], (6,), generator=g))
        for _ in range(n)
    ]


def main():
    ddp_init()
    torch.manual_seed(1)
    out = pathlib.Path(os.environ.get("CASE_TMP", ".")) / "results"
    run_on_main(out.mkdir, kwargs={"parents": True, "exist_ok": True})
    rank = dist.get_rank() if dist.is_initialized() else 0
    brain = KeywordBrain(HPARAMS, Checkpointer(out / "save"), TrainLogger(out / "train_log.txt"))
    brain.fit(range(HPARAMS["number_of_epochs"]), make_set(10 + rank, 4, HPARAMS), make_set(90 + rank, 2, HPARAMS))
    if if_main_process():
        print("best:", brain.checkpointer.find_checkpoint(min_key="valid_loss").meta)


if __name__ == "__main__":
    main()
