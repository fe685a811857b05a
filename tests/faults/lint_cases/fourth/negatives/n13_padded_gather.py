import os

import torch
import torch.distributed as dist
import torchvision
from torch.utils.data import DataLoader, Subset


def gather_variable(rows):
    """Concatenate tensors [n_rank, k] of all ranks."""
    world = dist.get_world_size()
    length = torch.tensor([rows.shape[0]], device=rows.device)
    lengths = [torch.zeros_like(length) for _ in range(world)]
    dist.all_gather(lengths, length)
    lengths = [int(n) for n in lengths]
    longest = max(lengths)
    if longest == 0:
        return rows
    padded = rows.new_zeros(longest, rows.shape[1])
    padded[: rows.shape[0]] = rows
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    return torch.cat([part[:n] for part, n in zip(parts, lengths)])


class Detections:
    def __init__(self, device):
        self.rows, self.device = [], device

    def add(self, image_ids, outputs):
        for image_id, out in zip(image_ids, outputs):
            ids = torch.full((len(out["boxes"]), 1), float(image_id), device=self.device)
            self.rows.append(torch.cat([ids, out["boxes"], out["scores"][:, None]], dim=1))

    def collect(self):
        mine = torch.cat(self.rows) if self.rows else torch.zeros(0, 6, device=self.device)
        everything = gather_variable(mine)
        return everything[everything[:, 0].argsort(stable=True)]


class Images(torch.utils.data.Dataset):
    def __init__(self, root):
        self.root = root
        self.names = sorted(n for n in os.listdir(root) if n.endswith(".jpg"))

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        image = torchvision.io.read_image(os.path.join(self.root, self.names[i]))
        return i, image.float() / 255


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    weights = torchvision.models.detection.FasterRCNN_ResNet50_FPN_Weights.DEFAULT
    model = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights=weights).to(device).eval()
    data = Images(os.environ.get("IMAGES", "/data/coco/val2017"))
    mine = Subset(data, range(dist.get_rank(), len(data), dist.get_world_size()))
    loader = DataLoader(mine, 2, collate_fn=lambda rows: tuple(zip(*rows)))
    detections = Detections(device)
    with torch.no_grad():
        for ids, images in loader:
            detections.add(ids, model([image.to(device) for image in images]))
    rows = detections.collect()
    if dist.get_rank() == 0:
        torch.save(rows.cpu(), "detections.pt")
        print(f"{len(rows)} boxes in {rows[:, 0].unique().numel()} images")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
