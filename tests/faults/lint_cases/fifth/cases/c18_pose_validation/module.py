import lightning as L
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from keypoint_eval import average_precision


class PoseModule(L.LightningModule):
    def __init__(self, joints=17, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 64, 7, 4, 3), nn.ReLU(),
            nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(),
            nn.Conv2d(128, joints, 1),
        )
        self.results = []

    def forward(self, images):
        heat = self.backbone(images)
        b, j, h, w = heat.shape
        prob = heat.flatten(2).softmax(-1).view(b, j, h, w)
        ys = torch.linspace(0, 1, h, device=heat.device)
        xs = torch.linspace(0, 1, w, device=heat.device)
        x = (prob.sum(2) * xs).sum(-1)
        y = (prob.sum(3) * ys).sum(-1)
        return torch.stack([x, y], dim=-1), prob.amax(dim=(2, 3)).mean(1)

    def training_step(self, batch, batch_idx):
        images, keypoints, _ = batch
        pred, _ = self(images)
        loss = F.smooth_l1_loss(pred, keypoints)
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, keypoints, area = batch
        pred, score = self(images)
        loss = F.smooth_l1_loss(pred, keypoints)
        self.log("val/loss", loss, on_epoch=True, sync_dist=True)
        for p, k, a, s in zip(pred.cpu().numpy(), keypoints.cpu().numpy(), area.tolist(), score.tolist()):
            self.results.append({"pred": p, "gt": k, "area": a, "score": s})

    def on_validation_epoch_end(self):
        parts = [None] * self.trainer.world_size
        dist.all_gather_object(parts, self.results)
        self.results.clear()
        if self.trainer.is_global_zero:
            merged = [r for part in parts for r in part]
            ap = average_precision(merged)
            self.print(f"epoch {self.current_epoch}: AP {ap:.4f} on {len(merged)} persons")
            self.log("val/ap", ap, on_epoch=True, sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, [60, 80])]
