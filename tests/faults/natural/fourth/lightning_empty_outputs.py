"""on_validation_epoch_end returns early if a process kept no prediction, so it misses the all_gather in which the others wait.

Modelled on Lightning-AI/pytorch-lightning#7129 and #16541 (all_gather at the end of the epoch that not all processes reach).
"""
# case: processes=2 ending=hang causes=rank-skips-collective,mismatched-operation,collective-mismatch,rank-missing-collective ranks=1 framework=lightning limit_s=120

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.classification import BinaryAccuracy


class Bearings(Dataset):
    """Vibration windows of bearings; a machine's windows are stored one after the other."""

    def __init__(self, machines, seed):
        g = torch.Generator().manual_seed(seed)
        self.windows = torch.randn(len(machines), 40, generator=g)
        self.labels = (self.windows[:, :5].sum(1) > 0).float()
        self.machines = torch.tensor(machines)

    def __len__(self):
        return len(self.machines)

    def __getitem__(self, i):
        return self.windows[i], self.labels[i], self.machines[i]


class FaultDetector(L.LightningModule):
    """Validate on the windows of the machines that are not in the training set."""

    def __init__(self, held_out):
        super().__init__()
        self.held_out = held_out
        self.net = nn.Sequential(nn.Linear(40, 32), nn.SiLU(), nn.Linear(32, 1))
        self.train_acc = BinaryAccuracy()
        self.predictions = []

    def training_step(self, batch, batch_idx):
        x, y, _ = batch
        logits = self.net(x).squeeze(-1)
        self.train_acc(logits, y)
        return nn.functional.binary_cross_entropy_with_logits(logits, y)

    def validation_step(self, batch, batch_idx):
        x, y, machine = batch
        keep = torch.isin(machine, self.held_out)
        if keep.any():
            logits = self.net(x[keep]).squeeze(-1)
            self.predictions.append(((logits > 0).float() == y[keep]).float().mean())

    def on_validation_epoch_end(self):
        if not self.predictions:  # GUILTY
            return  # ALSO
        score = self.all_gather(torch.stack(self.predictions).mean())
        if self.trainer.is_global_zero:
            print(f"epoch {self.current_epoch}: accuracy on new machines {score.mean():.3f}", flush=True)
        self.predictions.clear()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    L.seed_everything(4, verbose=False)
    train = Bearings([i % 6 for i in range(256)], seed=1)
    # machine 7 was recorded with every second slot of the recorder
    val = Bearings([7 if i % 2 == 0 else i % 6 for i in range(64)], seed=2)
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=3, logger=False, num_sanity_val_steps=0,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    model = FaultDetector(held_out=torch.tensor([6, 7]))
    trainer.fit(model, DataLoader(train, batch_size=16, shuffle=True), DataLoader(val, batch_size=8))


if __name__ == "__main__":
    main()
