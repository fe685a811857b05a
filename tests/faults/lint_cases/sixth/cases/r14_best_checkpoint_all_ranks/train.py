import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from checkpointing import save_checkpoint
from score import SegmentationMetric


def build_net(nclass):
    return nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(True),
                         nn.Conv2d(64, 128, 3, padding=2, dilation=2), nn.BatchNorm2d(128), nn.ReLU(True),
                         nn.Conv2d(128, nclass, 1))


class Trainer:
    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda", args.local_rank)
        self.save_to_disk = dist.get_rank() == 0
        train, val = (TensorDataset(*torch.load(f"{args.dataset}_{s}.pt", map_location="cpu")) for s in ("train", "val"))
        self.train_sampler = DistributedSampler(train, shuffle=True)
        self.train_loader = DataLoader(train, args.batch_size, sampler=self.train_sampler, drop_last=True)
        share = torch.utils.data.Subset(val, range(dist.get_rank(), len(val), dist.get_world_size()))
        self.val_loader = DataLoader(share, 1)
        net = nn.SyncBatchNorm.convert_sync_batchnorm(build_net(args.nclass)).to(self.device)
        self.model = DistributedDataParallel(net, device_ids=[args.local_rank])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
        self.best_pred = 0.0

    def train(self):
        for epoch in range(self.args.epochs):
            self.train_sampler.set_epoch(epoch)
            self.model.train()
            for images, targets in self.train_loader:
                logits = self.model(images.float().to(self.device))
                loss = F.cross_entropy(logits, targets.long().to(self.device), ignore_index=-1)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            if epoch % self.args.save_epoch == 0 and self.save_to_disk:
                save_checkpoint(self.model.module, self.args)
            if not self.args.skip_val:
                self.validation(epoch)

    @torch.no_grad()
    def validation(self, epoch):
        net = self.model.module
        net.eval()
        metric = SegmentationMetric(self.args.nclass, self.device)
        for image, target in self.val_loader:
            metric.update(net(image.float().to(self.device)), target.long().to(self.device))
        pix_acc, miou = metric.get()
        if self.save_to_disk:
            print(f"epoch {epoch} pixAcc {pix_acc:.3f} mIoU {miou:.3f}")
        new_pred = (pix_acc + miou) / 2
        is_best = new_pred > self.best_pred
        self.best_pred = max(self.best_pred, new_pred)
        save_checkpoint(net, self.args, is_best)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="fcn")
    parser.add_argument("--dataset", default="city")
    parser.add_argument("--save-dir", default="models")
    for name, value in (("nclass", 19), ("batch-size", 4), ("epochs", 60), ("save-epoch", 10)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--skip-val", action="store_true")
    args = parser.parse_args()
    args.local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(args.local_rank)
    dist.init_process_group("nccl")
    Trainer(args).train()
    dist.destroy_process_group()
