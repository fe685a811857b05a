import argparse
import glob
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

from engine import Evaluator
from saver import ClassificationSaver


class VolumeFolder(Dataset):
    def __init__(self, folder):
        self.paths = sorted(glob.glob(os.path.join(folder, "*.pt")))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return torch.load(self.paths[i]).float()[None], os.path.basename(self.paths[i])


def build_net(classes):
    return nn.Sequential(
        nn.Conv3d(1, 16, 3, 2, 1), nn.InstanceNorm3d(16), nn.ReLU(),
        nn.Conv3d(16, 32, 3, 2, 1), nn.InstanceNorm3d(32), nn.ReLU(),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(32, classes),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--output-dir", default="out")
    parser.add_argument("--classes", type=int, default=4)
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")

    dataset = VolumeFolder(args.images)
    share = Subset(dataset, range(dist.get_rank(), len(dataset), dist.get_world_size()))
    net = build_net(args.classes).to(device)
    net.load_state_dict(torch.load(args.weights, map_location=device))
    evaluator = Evaluator(device, DataLoader(share, batch_size=2, num_workers=2), net)
    ClassificationSaver(args.output_dir).attach(evaluator)
    evaluator.run()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
