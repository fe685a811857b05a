import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


class SegNet(nn.Module):
    def __init__(self, num_classes, dim):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, dim, 3, padding=1), nn.ReLU(), nn.Conv2d(dim, dim, 3, padding=1))
        self.classifier = nn.Conv2d(dim, num_classes, 1)
        self.projector = nn.Conv2d(dim, 64, 1)

    def forward(self, images):
        h = F.relu(self.backbone(images))
        return self.classifier(h), F.normalize(self.projector(h), dim=1)


def contrastive_loss(rep, logits, labels, threshold, max_queries):
    """InfoNCE over low-confidence pixels of each class; there may be none in a batch."""
    prob, pred = logits.detach().softmax(dim=1).max(dim=1)
    flat = rep.movedim(1, -1).flatten(0, 2)
    hard = ((prob < threshold) & (pred == labels)).flatten()
    easy = ((prob >= threshold) & (pred == labels)).flatten()
    labels = labels.flatten()
    losses = []
    for cls in labels.unique():
        queries = flat[hard & (labels == cls)][:max_queries]
        positives = flat[easy & (labels == cls)]
        negatives = flat[easy & (labels != cls)][: 4 * max_queries]
        if len(queries) == 0 or len(positives) == 0 or len(negatives) == 0:
            continue
        positive = positives.detach().mean(dim=0, keepdim=True)
        scores = torch.cat([queries @ positive.t(), queries @ negatives.detach().t()], dim=1) / 0.5
        losses.append(F.cross_entropy(scores, torch.zeros(len(queries), dtype=torch.long, device=rep.device)))
    if not losses:
        return 0.0 * rep.sum()
    return torch.stack(losses).mean()


class Trainer:
    def __init__(self, args):
        self.args = args
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.manual_seed(args.seed)
        net = nn.SyncBatchNorm.convert_sync_batchnorm(SegNet(args.num_classes, 64)).to(self.device)
        self.model = DDP(net, device_ids=[self.device.index])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9)
        self.gen = torch.Generator(device=self.device).manual_seed(args.seed + 1 + dist.get_rank())

    def batch(self):
        images = torch.randn(self.args.batch_size, 3, 64, 64, device=self.device, generator=self.gen)
        labels = torch.randint(
            0, self.args.num_classes, (self.args.batch_size, 64, 64), device=self.device, generator=self.gen
        )
        return images, labels

    def log(self, step, losses):
        reduced = torch.stack([value.detach() for value in losses.values()])
        dist.all_reduce(reduced, op=dist.ReduceOp.SUM)
        reduced /= dist.get_world_size()
        if dist.get_rank() == 0:
            text = " ".join(f"{name} {value:.4f}" for name, value in zip(losses, reduced.tolist()))
            print(f"step {step} {text}")

    def train(self):
        for step in range(self.args.steps):
            images, labels = self.batch()
            logits, rep = self.model(images)
            sup_loss = F.cross_entropy(logits, labels)
            contra_loss = contrastive_loss(rep, logits, labels, self.args.threshold, self.args.max_queries)
            loss = sup_loss + self.args.contra_weight * contra_loss
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if step % 50 == 0:
                self.log(step, {"sup": sup_loss, "contra": contra_loss})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num-classes", type=int, default=19)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--threshold", type=float, default=0.7)
    parser.add_argument("--max-queries", type=int, default=256)
    parser.add_argument("--contra-weight", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=2)
    cli = parser.parse_args()
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    Trainer(cli).train()
    dist.destroy_process_group()
