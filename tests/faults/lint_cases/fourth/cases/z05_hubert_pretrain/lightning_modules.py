import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor, nn


class HuBERTLoss(nn.Module):
    def __init__(self, masked_weight=1.0, feature_weight=10.0):
        super().__init__()
        self.masked_weight = masked_weight
        self.feature_weight = feature_weight

    def forward(self, logits: Tensor, labels: Tensor, feature_penalty: Tensor):
        loss = self.masked_weight * F.cross_entropy(logits, labels, reduction="sum")
        return loss + self.feature_weight * feature_penalty * logits.shape[0]


class HuBERTPreTrainModule(LightningModule):
    def __init__(self, model, learning_rate=5e-4, warmup_updates=32000, max_updates=250000, clip_norm=10.0):
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.loss = HuBERTLoss()
        self.learning_rate = learning_rate
        self.warmup_updates = warmup_updates
        self.max_updates = max_updates
        self.clip_norm = clip_norm
        self.scaler = torch.cuda.amp.GradScaler()

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.learning_rate, betas=(0.9, 0.98))

        def ramp(step):
            if step < self.warmup_updates:
                return step / self.warmup_updates
            return max(0.0, (self.max_updates - step) / (self.max_updates - self.warmup_updates))

        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, ramp)]

    def _step(self, batch, step_type):
        waveforms, labels, lengths = batch
        logit, masked_labels, feature_penalty = self.model(waveforms, labels, lengths)
        loss = self.loss(logit, masked_labels, feature_penalty)
        self.log(f"{step_type}_loss", loss / max(logit.size(0), 1), on_step=True)
        return loss, logit.size(0)

    def training_step(self, batch, batch_idx):
        opt = self.optimizers()
        opt.zero_grad()
        with torch.cuda.amp.autocast(enabled=True):
            loss, num_frame = self._step(batch, "train")
        if torch.isinf(loss) or torch.isnan(loss):
            opt.zero_grad()
            return None

        # the loss is summed over frames: normalise by the number of frames of all GPUs
        num_frames = self.all_gather(torch.tensor(num_frame, device=self.device))
        loss = loss * num_frames.numel() / num_frames.sum()
        self.manual_backward(self.scaler.scale(loss))
        self.scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        self.scaler.step(opt)
        self.scaler.update()
        self.lr_schedulers().step()

    def validation_step(self, batch, batch_idx):
        loss, num_frame = self._step(batch, "val")
        self.log("val_loss", loss / max(num_frame, 1), sync_dist=True, on_epoch=True)
