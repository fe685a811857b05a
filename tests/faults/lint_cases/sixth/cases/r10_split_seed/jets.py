import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class JetDataset(Dataset):
    def __init__(self, events, indices):
        self.events = events
        self.indices = indices

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, i):
        j = int(self.indices[i])
        return self.events["p4"][j], self.events["mask"][j], self.events["label"][j]


def retrieve_datasets(path, num_data, fractions=(0.8, 0.1, 0.1)):
    with np.load(path) as blob:
        events = {k: torch.from_numpy(blob[k]) for k in ("p4", "mask", "label")}
    order = np.random.permutation(len(events["label"]))
    if num_data > 0:
        order = order[:num_data]
    cuts = np.cumsum([int(f * len(order)) for f in fractions[:-1]])
    return {name: (events, part) for name, part in zip(("train", "valid", "test"), np.split(order, cuts))}


def retrieve_dataloaders(path, batch_size, rank, world_size, num_data=-1, workers=2):
    loaders = {}
    for name, (events, part) in retrieve_datasets(path, num_data).items():
        if name == "train":
            part = part[: len(part) // world_size * world_size]
        share = JetDataset(events, part[rank::world_size])
        loaders[name] = DataLoader(share, batch_size, shuffle=name == "train", num_workers=workers,
                                   drop_last=name == "train", pin_memory=True)
    return loaders
