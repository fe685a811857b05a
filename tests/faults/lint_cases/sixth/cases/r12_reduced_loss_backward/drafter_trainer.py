import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class DrafterTrainer:
    """Fits a small drafter to the logits and hidden states of the policy."""

    def __init__(self, drafter, args, device):
        self.args = args
        self.device = device
        self.module = FSDP(drafter.to(device), device_id=device)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=args.lr, betas=(0.9, 0.95))
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1.0, (step + 1) / args.warmup))

    def _local_sums(self, batch):
        logits, hidden = self.module(batch["hidden"])
        mask = batch["mask"].float()
        target = batch["target_logits"].softmax(-1)
        ce = -(target * F.log_softmax(logits, dim=-1)).sum(-1)
        reg = F.smooth_l1_loss(hidden, batch["next_hidden"], reduction="none").mean(-1)
        return ((ce + self.args.reg_weight * reg) * mask).sum(), mask.sum()

    def _aggregate(self, loss_sum, tokens):
        totals = torch.stack([loss_sum, tokens])
        dist.all_reduce(totals, op=dist.ReduceOp.SUM)
        return totals[0] / totals[1].clamp(min=1.0)

    def training_step(self, batch):
        batch = {k: v.to(self.device, non_blocking=True) for k, v in batch.items()}
        loss_sum, tokens = self._local_sums(batch)
        loss = self._aggregate(loss_sum, tokens)
        self.optimizer.zero_grad()
        loss.backward()
        norm = self.module.clip_grad_norm_(self.args.max_norm)
        self.optimizer.step()
        self.scheduler.step()
        return {"loss": loss.item(), "grad_norm": norm.item(), "lr": self.scheduler.get_last_lr()[0]}

    def fit(self, loader):
        step = 0
        for epoch in range(self.args.epochs):
            loader.sampler.set_epoch(epoch)
            for batch in loader:
                stats = self.training_step(batch)
                step += 1
                if step % self.args.log_every == 0 and dist.get_rank() == 0:
                    print(f"step {step} " + " ".join(f"{k} {v:.5f}" for k, v in stats.items()))
