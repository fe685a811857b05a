from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms


class TwoViews:
    def __init__(self, size):
        jitter = transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)
        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(size),
                transforms.RandomHorizontalFlip(),
                transforms.RandomApply([jitter], p=0.8),
                transforms.ToTensor(),
            ]
        )

    def __call__(self, image):
        return self.transform(image), self.transform(image)


def build_loader(args):
    dataset = datasets.STL10(args.dataset_dir, split="unlabeled", transform=TwoViews(args.image_size))
    if args.nodes * args.gpus > 1:
        sampler = DistributedSampler(dataset, num_replicas=args.world_size, rank=args.rank, shuffle=True)
    else:
        sampler = None
    return DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=sampler is None,
        sampler=sampler,
        drop_last=True,
        num_workers=args.workers,
    )
