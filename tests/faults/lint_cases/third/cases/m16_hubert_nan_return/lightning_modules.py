import torch
from lightning.pytorch import LightningModule
from torch import nn


class HuBERT(nn.Module):
    def __init__(self, dim=256, clusters=100):
        super().__init__()
        self.extractor = nn.Conv1d(1, dim, 400, stride=320)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(dim, 4, batch_first=True), 4)
        self.out = nn.Linear(dim, clusters)

    def forward(self, wave):
        x = self.extractor(wave[:, None]).transpose(1, 2)
        mask = torch.rand(x.shape[:2], device=x.device) < 0.65
        x = x.masked_fill(mask[..., None], 0.0)
        return self.out(self.encoder(x)), mask


class HuBERTPreTrainModule(LightningModule):
    def __init__(self, lr=5e-4, updates=250000):
        super().__init__()
        self.automatic_optimization = False
        self.model = HuBERT()
        self.lr = lr
        self.updates = updates

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.lr)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, self.updates)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    def _step(self, batch, step_type):
        wave, labels = batch
        logits, mask = self.model(wave)
        labels = labels[:, : logits.size(1)]
        loss = nn.functional.cross_entropy(logits[mask], labels[mask], reduction="sum")
        num_frame = mask.sum()
        self.log(f"{step_type}_loss", loss / num_frame, sync_dist=step_type == "val")
        return loss, num_frame

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        opt.zero_grad()
        loss, num_frame = self._step(batch, "train")
        if torch.isinf(loss) or torch.isnan(loss):
            opt.zero_grad()
            return None

        # normalise the loss by the number of frames on all ranks
        num_frames = self.all_gather(num_frame)
        loss = loss * num_frames.size(0) / num_frames.sum()
        self.manual_backward(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        opt.step()
        self.lr_schedulers().step()

    def validation_step(self, batch, batch_idx):
        loss, num_frame = self._step(batch, "val")
        return loss / num_frame
