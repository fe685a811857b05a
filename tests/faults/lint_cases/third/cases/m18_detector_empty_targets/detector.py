import torch
from lightning.pytorch import LightningModule
from torch import nn


class GridDetector(LightningModule):
    """Predicts one score and four box coordinates for each cell of a grid."""

    def __init__(self, stride=16, width=64, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        layers, channels = [], 3
        for _ in range(4):
            layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.ReLU()]
            channels = width
        self.backbone = nn.Sequential(*layers)
        self.box_head = nn.Conv2d(width, 5, 1)

    def forward(self, images):
        return self.box_head(self.backbone(images))

    def box_loss(self, pred, boxes):
        loss = 0.0
        stride = self.hparams.stride
        for p, b in zip(pred, boxes):
            for box in b:
                cx = ((box[0] + box[2]) / 2 / stride).long().clamp(0, p.size(2) - 1)
                cy = ((box[1] + box[3]) / 2 / stride).long().clamp(0, p.size(1) - 1)
                cell = p[:, cy, cx]
                loss = loss + nn.functional.softplus(-cell[0]) + (cell[1:] - box / stride).abs().mean()
        return loss / sum(len(b) for b in boxes)

    def training_step(self, batch, batch_idx):
        images, boxes = batch
        if sum(len(b) for b in boxes) == 0:
            # no ground truth in this batch
            return torch.tensor(0.0, requires_grad=True, device=self.device)
        pred = self(images)
        loss = self.box_loss(pred, boxes)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
