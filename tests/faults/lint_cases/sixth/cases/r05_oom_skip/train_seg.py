import argparse
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger("train_seg")


class CropDataset(Dataset):
    def __init__(self, index_file, max_side):
        self.items = torch.load(index_file, map_location="cpu")
        self.max_side = max_side

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        image, label = self.items[i]["image"].float() / 255, self.items[i]["label"].long()
        return image[:, : self.max_side, : self.max_side], label[: self.max_side, : self.max_side]


def pad_collate(samples):
    height = max(s[0].shape[1] for s in samples)
    width = max(s[0].shape[2] for s in samples)
    images = torch.zeros(len(samples), 3, height, width)
    labels = torch.full((len(samples), height, width), 255, dtype=torch.long)
    for i, (image, label) in enumerate(samples):
        images[i, :, : image.shape[1], : image.shape[2]] = image
        labels[i, : label.shape[0], : label.shape[1]] = label
    return images, labels


def conv(cin, cout, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class SegNet(nn.Module):
    def __init__(self, classes, width=64):
        super().__init__()
        self.down = nn.Sequential(conv(3, width, 2), conv(width, 2 * width, 2), conv(2 * width, 4 * width, 2))
        self.head = nn.Conv2d(4 * width, classes, 1)

    def forward(self, x):
        out = self.head(self.down(x))
        return F.interpolate(out, size=x.shape[-2:], mode="bilinear", align_corners=False)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda", args.local_rank)
        net = nn.SyncBatchNorm.convert_sync_batchnorm(SegNet(args.classes)).to(self.device)
        self.model = DistributedDataParallel(net, device_ids=[args.local_rank])
        self.optimizer = torch.optim.SGD(self.model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
        data = CropDataset(args.index, args.max_side)
        self.sampler = DistributedSampler(data, shuffle=True)
        self.loader = DataLoader(data, args.batch_size, sampler=self.sampler, num_workers=4,
                                 collate_fn=pad_collate, drop_last=True, pin_memory=True)

    def train_epoch(self, epoch):
        self.model.train()
        self.sampler.set_epoch(epoch)
        for step, (images, labels) in enumerate(self.loader):
            try:
                logits = self.model(images.to(self.device, non_blocking=True))
                loss = F.cross_entropy(logits, labels.to(self.device, non_blocking=True), ignore_index=255)
                self.optimizer.zero_grad()
                loss.backward()
            except RuntimeError as err:
                if "out of memory" not in str(err):
                    raise
                log.warning("epoch %d step %d: %s", epoch, step, err)
                self.optimizer.zero_grad()
                torch.cuda.empty_cache()
                continue
            self.optimizer.step()
            if step % 20 == 0 and dist.get_rank() == 0:
                log.info("epoch %d step %d loss %.4f", epoch, step, loss.item())

    def save(self, epoch):
        if dist.get_rank() == 0:
            torch.save({"model": self.model.module.state_dict(), "epoch": epoch}, self.args.output)
        dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("index")
    parser.add_argument("--output", default="segnet.pt")
    parser.add_argument("--classes", type=int, default=19)
    parser.add_argument("--max-side", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=80)
    args = parser.parse_args()
    args.local_rank = int(os.environ["LOCAL_RANK"])
    logging.basicConfig(level=logging.INFO)
    torch.cuda.set_device(args.local_rank)
    dist.init_process_group("nccl")
    trainer = Trainer(args)
    for epoch in range(args.epochs):
        trainer.train_epoch(epoch)
        trainer.save(epoch)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
