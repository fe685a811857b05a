"""Fine-tune a small sequence classifier with DeepSpeed and keep the best checkpoint."""
import json
import os
import pathlib
from dataclasses import asdict, dataclass, field

import deepspeed
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from dist_utils import get_logger, global_rank, main_process_only, mean_over_ranks, world_size

log = get_logger("finetune")


@dataclass
class RunConfig:
    out_dir: str = field(default_factory=lambda: os.environ.get("CASE_TMP", "runs"))
    hidden: int = 32
    classes: int = 4
    epochs: int = 2
    micro_batch: int = 8
    lr: float = 1e-3
    zero_stage: int = 3
    seed: int = 17

    def deepspeed_config(self) -> dict:
        return {
            "train_micro_batch_size_per_gpu": self.micro_batch,
            "gradient_accumulation_steps": 1,
            "optimizer": {"type": "AdamW", "params": {"lr": self.lr, "torch_adam": True}},
            "zero_optimization": {"stage": self.zero_stage},
        }


class Classifier(torch.nn.Module):
    def __init__(self, cfg: RunConfig):
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(16, cfg.hidden), torch.nn.GELU())
        self.head = torch.nn.Linear(cfg.hidden, cfg.classes)

    def forward(self, x):
        return self.head(self.encoder(x).mean(dim=1))


class Callback:
    def on_run_start(self, run): ...
    def on_step_end(self, run, step, loss): ...
    def on_evaluate(self, run, epoch, metrics): ...


class ConfigDump(Callback):
    @main_process_only
    def on_run_start(self, run):
        run.out.mkdir(parents=True, exist_ok=True)
        (run.out / "config.json").write_text(json.dumps(asdict(run.cfg), indent=2))


class StepLog(Callback):
    def __init__(self, every=10):
        self.every = every

    def on_step_end(self, run, step, loss):
        if step % self.every == 0:
            shown = mean_over_ranks(loss.detach().float())
            log.info("step %d loss %.4f", step, shown.item())


class KeepBest(Callback):
    """Stores the model state whenever the monitored metric improves."""

    def __init__(self, monitor="accuracy"):
        self.monitor, self.best = monitor, float("-inf")

    def on_evaluate(self, run, epoch, metrics):
        score = metrics[self.monitor]
        if score <= self.best:
            return
        self.best = score
        self._store(run, f"best-{epoch:03d}", metrics)

    @main_process_only
    def _store(self, run, tag, metrics):
        run.engine.save_checkpoint(str(run.out), tag=tag, client_state={"best": self.best})  # EXPECT: rank-guarded-sharded-io
        (run.out / "best.json").write_text(json.dumps({"tag": tag, **metrics}))
        log.info("new best %s=%.4f -> %s", self.monitor, self.best, tag)


class FineTune:
    def __init__(self, cfg: RunConfig, callbacks):
        self.cfg, self.callbacks = cfg, callbacks
        self.out = pathlib.Path(cfg.out_dir)
        model = Classifier(cfg)
        self.engine, _, _, _ = deepspeed.initialize(
            model=model, model_parameters=model.parameters(), config=cfg.deepspeed_config()
        )

    def loader(self, n, train):
        gen = torch.Generator().manual_seed(self.cfg.seed + int(train))
        x = torch.randn(n, 6, 16, generator=gen)
        y = x.mean(1)[:, : self.cfg.classes].argmax(-1)
        data = TensorDataset(x, y)
        sampler = DistributedSampler(data, world_size(), global_rank(), shuffle=train)
        return DataLoader(data, self.cfg.micro_batch, sampler=sampler, drop_last=True)

    def fire(self, event, *args):
        for cb in self.callbacks:
            getattr(cb, event)(self, *args)

    @torch.no_grad()
    def evaluate(self, loader):
        self.engine.eval()
        hit, seen = torch.zeros(()), torch.zeros(())
        for x, y in loader:
            pred = self.engine(x.to(self.engine.device)).argmax(-1).cpu()
            hit += (pred == y).sum()
            seen += len(y)
        self.engine.train()
        ratio = mean_over_ranks((hit / seen.clamp(min=1)).to(self.engine.device))
        return {"accuracy": ratio.item()}

    def run(self):
        self.fire("on_run_start")
        train, val = self.loader(128, True), self.loader(64, False)
        step = 0
        for epoch in range(self.cfg.epochs):
            train.sampler.set_epoch(epoch)
            for x, y in train:
                logits = self.engine(x.to(self.engine.device))
                loss = F.cross_entropy(logits, y.to(self.engine.device))
                self.engine.backward(loss)
                self.engine.step()
                step += 1
                self.fire("on_step_end", step, loss)
            self.fire("on_evaluate", epoch, self.evaluate(val))


def main():
    cfg = RunConfig()
    torch.manual_seed(cfg.seed)
    deepspeed.init_distributed()
    FineTune(cfg, [ConfigDump(), StepLog(), KeepBest()]).run()


if __name__ == "__main__":
    main()
