import contextlib
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import transforms


@contextlib.contextmanager
def local_zero_first(local_rank):
    """The first process of a node runs the block before the others do."""
    if local_rank != 0:
        dist.barrier()
    yield
    if local_rank == 0:
        dist.barrier()


class CifarRun:
    def __init__(self, root=Path("/tmp/cifar"), batch_size=128, epochs=30):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(self.local_rank)
        dist.init_process_group("nccl", timeout=timedelta(minutes=30))
        self.root, self.batch_size, self.epochs = root, batch_size, epochs

    def dataset(self):
        transform = transforms.Compose(
            [transforms.RandomCrop(32, 4), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
        )
        with local_zero_first(self.local_rank):
            return torchvision.datasets.CIFAR10(self.root, transform=transform, download=self.local_rank == 0)

    def weights(self, net):
        with local_zero_first(self.local_rank):
            url = "https://download.pytorch.org/models/resnet18-f37072fd.pth"
            state = torch.hub.load_state_dict_from_url(url, model_dir=str(self.root), map_location="cpu")
        state = {k: v for k, v in state.items() if not k.startswith("fc.")}
        net.load_state_dict(state, strict=False)
        return net

    def run(self):
        data = self.dataset()
        sampler = DistributedSampler(data)
        loader = DataLoader(data, self.batch_size, sampler=sampler, num_workers=4, drop_last=True)
        net = self.weights(torchvision.models.resnet18(num_classes=10))
        model = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(net).cuda(), device_ids=[self.local_rank])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        for epoch in range(self.epochs):
            sampler.set_epoch(epoch)
            for images, labels in loader:
                loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: {loss.item():.3f}")
        dist.destroy_process_group()


if __name__ == "__main__":
    CifarRun().run()
