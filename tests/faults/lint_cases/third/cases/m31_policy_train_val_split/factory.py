import torch
from torch.utils.data import Dataset, random_split


class EpisodeDataset(Dataset):
    def __init__(self, path):
        blob = torch.load(path, map_location="cpu")
        self.obs, self.actions = blob["obs"], blob["actions"]

    def __len__(self):
        return len(self.obs)

    def __getitem__(self, i):
        return {"obs": self.obs[i], "actions": self.actions[i]}


def make_dataset(cfg):
    dataset = EpisodeDataset(cfg.dataset)
    val_size = int(len(dataset) * cfg.val_split_ratio)
    return random_split(dataset, [len(dataset) - val_size, val_size])
