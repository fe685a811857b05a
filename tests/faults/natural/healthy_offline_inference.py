"""Healthy: every rank labels its share of the files and no rank calls a collective; there is no process group."""
# case: processes=3 ending=well framework=none

import os
import tempfile
import time

import torch
import torch.nn as nn


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU())
        self.decode = nn.GRUCell(64, 64)
        self.words = nn.Linear(64, 100)

    @torch.inference_mode()
    def forward(self, image, length=20):
        x = self.encode(image)
        h = torch.zeros_like(x)
        caption = []
        for _ in range(length):
            h = self.decode(x, h)
            caption.append(self.words(h).argmax(dim=-1))
        return torch.stack(caption, dim=1)


def read_image(path):
    time.sleep(0.1)  # an object store
    return torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(hash(path) % 1000))


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    files = [f"s3://photos/{i:05d}.jpg" for i in range(450)]
    model = Captioner().eval()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, f"captions-{rank}.txt")
        with open(path, "w") as out:
            for i, name in enumerate(files[rank::world_size]):
                caption = model(read_image(name))
                print(name, *caption[0].tolist(), file=out)
                if i % 50 == 0:
                    print(f"rank {rank}: {i} files", flush=True)
        with open(path) as written:
            print(f"rank {rank}: wrote {len(written.readlines())} captions")


if __name__ == "__main__":
    main()
