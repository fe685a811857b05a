import os

import torch.distributed as dist
import torchvision
import torchvision.transforms as T


def transform():
    return T.Compose([
        T.RandomCrop(32, padding=4),
        T.RandomHorizontalFlip(),
        T.ToTensor(),
        T.Normalize((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)),
    ])


def load_cifar(root):
    """Local rank 0 downloads the archive; the others wait and then read it."""
    local_rank = int(os.environ["LOCAL_RANK"])
    if local_rank == 0:
        torchvision.datasets.CIFAR10(root, train=True, download=True)
        print("CIFAR-10 is ready")
    else:
        print(f"local rank {local_rank} waits for the download")
    dist.barrier()
    return torchvision.datasets.CIFAR10(root, train=True, download=False, transform=transform())


def accuracy(logits, labels):
    return (logits.argmax(1) == labels).float().mean()
