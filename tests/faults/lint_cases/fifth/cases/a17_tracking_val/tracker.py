from pathlib import Path

import lightning as L
import torch
from torch import nn

from metrics import evaluate_sequences


class CenterTracker(L.LightningModule):
    def __init__(self, out_dir="tracks", lr=1e-4):
        super().__init__()
        self.out_dir = Path(out_dir)
        self.lr = lr
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 64, 7, stride=4, padding=3), nn.ReLU(), nn.Conv2d(64, 64, 3, stride=2, padding=1), nn.ReLU()
        )
        self.center = nn.Conv2d(64, 1, 1)
        self.embed = nn.Conv2d(64, 32, 1)

    def forward(self, frame):
        features = self.backbone(frame)
        return self.center(features), self.embed(features)

    def training_step(self, batch, batch_idx):
        heat, embed = self(batch["frame"])
        loss = nn.functional.binary_cross_entropy_with_logits(heat, batch["heat"])
        loss = loss + 0.1 * (embed * batch["heat"]).pow(2).mean()
        self.log("train/loss", loss, sync_dist=True)
        return loss

    def on_validation_epoch_start(self):
        if self.trainer.is_global_zero:
            self.out_dir.mkdir(parents=True, exist_ok=True)
        self.trainer.strategy.barrier("tracks_dir")

    def validation_step(self, batch, batch_idx):
        heat, embed = self(batch["frame"])
        scores, cells = heat.sigmoid().flatten(1).topk(50)
        features = embed.flatten(2).gather(2, cells[:, None].expand(-1, 32, -1))
        for i, name in enumerate(batch["name"]):
            rows = {"score": scores[i].cpu(), "cell": cells[i].cpu(), "embed": features[i].T.cpu()}
            part = self.out_dir / f"{name}.{self.global_rank}.part"
            torch.save(rows, part)
            part.replace(self.out_dir / f"{name}.pt")

    def on_validation_epoch_end(self):
        self.trainer.strategy.barrier("tracks_written")
        if self.trainer.is_global_zero:
            results = evaluate_sequences(self.out_dir, self.trainer.datamodule.ground_truth)
            for name, value in results.items():
                self.log(f"val/{name}", value, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)
