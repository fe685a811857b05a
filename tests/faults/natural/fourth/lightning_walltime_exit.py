"""A Lightning callback calls sys.exit(0) on the process whose lease of the node ends first; the other process loses its peer.

Modelled on Lightning-AI/pytorch-lightning#965 and #19976 (one process leaves, the others crash or hang).
"""
# case: processes=2 ending=crash causes=rank-exits-early,peer-lost,rank-missing-collective ranks=1 framework=lightning limit_s=120

import os
import sys

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LEASES = {0: 400, 1: 25}  # batches until the spot node of each process is returned


class LeaveBeforeReclaim(L.Callback):
    """Save the weights and leave a node that will be reclaimed."""

    def __init__(self, batches):
        self.left = batches

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.left -= 1
        if self.left <= 0:  # ALSO
            state = {name: tensor.clone() for name, tensor in pl_module.state_dict().items()}
            torch.save(state, os.path.join(trainer.default_root_dir, f"leave-{trainer.global_rank}.pt"))
            sys.exit(0)  # GUILTY


class Recommender(L.LightningModule):
    """Matrix factorization with a bias for each item."""

    def __init__(self, users=200, items=300, dim=12):
        super().__init__()
        self.users = nn.Embedding(users, dim)
        self.items = nn.Embedding(items, dim)
        self.bias = nn.Embedding(items, 1)

    def forward(self, user, item):
        return (self.users(user) * self.items(item)).sum(-1) + self.bias(item).squeeze(-1)

    def training_step(self, batch, batch_idx):
        user, item, rating = batch
        loss = nn.functional.mse_loss(self(user, item), rating)
        if batch_idx % 10 == 0 and self.trainer.is_global_zero:
            print(f"batch {batch_idx} loss {loss.item():.4f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.2)


def ratings(count=4096):
    g = torch.Generator().manual_seed(8)
    user = torch.randint(0, 200, (count,), generator=g)
    item = torch.randint(0, 300, (count,), generator=g)
    return TensorDataset(user, item, 1 + 4 * torch.rand(count, generator=g))


def main():
    L.seed_everything(1, verbose=False)
    rank = int(os.environ["RANK"])
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=5, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, callbacks=[LeaveBeforeReclaim(LEASES[rank])])
    trainer.fit(Recommender(), DataLoader(ratings(), batch_size=32, shuffle=True))  # ALSO


if __name__ == "__main__":
    main()
