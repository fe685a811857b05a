import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import comm
from sampler import StridedEvalSampler


class PairFeatures(Dataset):
    def __init__(self, path):
        blob = torch.load(path, map_location="cpu")
        self.image, self.text = blob["image"], blob["text"]

    def __len__(self):
        return len(self.image)

    def __getitem__(self, i):
        return i, self.image[i], self.text[i]


class Projector(nn.Module):
    def __init__(self, image_dim, text_dim, dim=512):
        super().__init__()
        self.image = nn.Linear(image_dim, dim)
        self.text = nn.Linear(text_dim, dim)

    def forward(self, image, text):
        return F.normalize(self.image(image), dim=-1), F.normalize(self.text(text), dim=-1)


@torch.no_grad()
def collect(model, loader, device):
    ids, images, texts = [], [], []
    for index, image, text in loader:
        a, b = model(image.to(device), text.to(device))
        ids.append(index.to(device))
        images.append(a)
        texts.append(b)
    return torch.cat(ids), torch.cat(images), torch.cat(texts)


def recall_at(images, texts, k):
    top = (images @ texts.T).topk(k, dim=1).indices
    target = torch.arange(len(images), device=images.device)[:, None]
    return (top == target).any(dim=1).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--features", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--batch-size", type=int, default=256)
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")

    dataset = PairFeatures(args.features)
    sampler = StridedEvalSampler(dataset, comm.rank(), comm.world_size())
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    model = Projector(dataset.image.shape[1], dataset.text.shape[1]).to(device).eval()
    model.load_state_dict(torch.load(args.weights, map_location=device))

    ids, images, texts = (comm.gather_rows(part) for part in collect(model, loader, device))
    order = ids.argsort()
    images, texts = images[order], texts[order]
    if comm.rank() == 0:
        for k in (1, 5, 10):
            print(f"i2t R@{k} {recall_at(images, texts, k):.4f}  t2i R@{k} {recall_at(texts, images, k):.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
