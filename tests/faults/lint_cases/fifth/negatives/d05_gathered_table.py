import argparse
import csv
import glob
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset


class SlideFolder(Dataset):
    def __init__(self, folder):
        self.paths = sorted(glob.glob(os.path.join(folder, "*.pt")))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return torch.load(self.paths[i]).float(), os.path.basename(self.paths[i])


class AttentionPool(nn.Module):
    def __init__(self, dim=768, classes=2):
        super().__init__()
        self.score = nn.Linear(dim, 1)
        self.out = nn.Linear(dim, classes)

    def forward(self, tiles):
        weight = self.score(tiles).softmax(dim=1)
        return self.out((weight * tiles).sum(dim=1))


@torch.no_grad()
def predict(net, share, device):
    rows = {}
    for tiles, names in DataLoader(share, batch_size=1, num_workers=2):
        rows[names[0]] = net(tiles.to(device)).softmax(1)[0].cpu().tolist()
    return rows


def write_part(folder, rows):
    """A log of its own for each rank, for debugging."""
    path = os.path.join(folder, f"part_{dist.get_rank():03d}.csv")
    with open(path, "w", newline="") as fp:
        csv.writer(fp).writerows([name, *values] for name, values in rows.items())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--slides", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--out", default="predictions")
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    os.makedirs(args.out, exist_ok=True)

    dataset = SlideFolder(args.slides)
    share = Subset(dataset, range(rank, len(dataset), world))
    net = AttentionPool().to(device).eval()
    net.load_state_dict(torch.load(args.weights, map_location=device))
    rows = predict(net, share, device) if len(share) else {}
    write_part(args.out, rows)

    parts = [None] * world if rank == 0 else None
    dist.gather_object(rows, parts, dst=0)
    table = os.path.join(args.out, "predictions.csv")
    if rank == 0:
        merged = {name: values for part in parts for name, values in part.items()}
        assert len(merged) == len(dataset)
        with open(table, "w", newline="") as fp:
            writer = csv.writer(fp)
            for name in sorted(merged):
                writer.writerow([name] + [f"{v:.5f}" for v in merged[name]])
    dist.barrier()

    with open(table, newline="") as fp:
        positive = sum(float(line[2]) > 0.5 for line in csv.reader(fp))
    print(f"rank {rank}: {len(rows)} slides here, {positive} of {len(dataset)} positive in all")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
