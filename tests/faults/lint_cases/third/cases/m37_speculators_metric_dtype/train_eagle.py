import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trainer import Trainer


class HiddenStates(Dataset):
    """Hidden states of the verifier model; some records could not be produced."""

    def __init__(self, root):
        self.files = sorted(os.path.join(root, f) for f in os.listdir(root))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        return torch.load(self.files[i], map_location="cpu")


def collate(records):
    good = [r for r in records if not r["error"]]
    if not good:
        good = [{"hidden_states": torch.zeros(64, 512), "input_ids": torch.zeros(64, dtype=torch.long)}]
    return {
        "hidden_states": torch.stack([r["hidden_states"] for r in good]),
        "input_ids": torch.stack([r["input_ids"] for r in good]),
        "error_records": sum(r["error"] for r in records),
    }


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    data = HiddenStates(os.environ.get("HIDDEN_STATES", "hidden_states"))
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data), collate_fn=collate)
    draft = nn.Sequential(nn.Linear(512, 1024), nn.SiLU(), nn.Linear(1024, 32000))
    Trainer(draft, loader).run(num_epochs=3)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
