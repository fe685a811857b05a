"""The auxiliary head does not contribute to the loss, and find_unused_parameters is not set."""
# case: processes=2 ending=crash causes=unused-parameters-ddp ranks=- framework=ddp

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class SegmentationNet(nn.Module):
    """A backbone with a main and an auxiliary head, like the models of torchvision."""

    def __init__(self, classes=4, aux_loss=True):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()
        )
        self.classifier = nn.Conv2d(16, classes, 1)
        self.aux_classifier = nn.Conv2d(16, classes, 1) if aux_loss else None

    def forward(self, x):
        features = self.backbone(x)
        result = {"out": self.classifier(features)}
        if self.aux_classifier is not None:
            result["aux"] = self.aux_classifier(features)
        return result


def criterion(outputs, target):
    return nn.functional.cross_entropy(outputs["out"], target)


def train_one_epoch(model, optimizer, epoch, rank, batches=10):
    for i in range(batches):
        image = torch.randn(4, 3, 16, 16)
        target = torch.randint(0, 4, (4, 16, 16))
        output = model(image)  # GUILTY
        loss = criterion(output, target)  # ALSO
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and i % 5 == 0:
            print(f"Epoch: [{epoch}] [{i}/{batches}] loss: {loss.item():.4f}")


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(SegmentationNet())  # ALSO
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(2):
        train_one_epoch(model, optimizer, epoch, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
