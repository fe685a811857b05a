import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class InteractionDataset(Dataset):
    def __init__(self, pairs):
        self.pairs = pairs

    def __len__(self):
        return self.pairs.size(0)

    def __getitem__(self, i):
        return self.pairs[i]


class UserDataset(Dataset):
    def __init__(self, seen, truth):
        self.users = sorted(truth)
        self.seen = seen
        self.truth = truth

    def __len__(self):
        return len(self.users)

    def __getitem__(self, i):
        user = self.users[i]
        return user, self.seen.get(user, []), self.truth[user]


def train_loader(dataset, batch_size):
    sampler = DistributedSampler(dataset, shuffle=True, drop_last=True)
    return DataLoader(dataset, batch_size, sampler=sampler, drop_last=True)


def eval_loader(dataset, batch_size):
    sampler = DistributedSampler(dataset, shuffle=False)
    return DataLoader(dataset, batch_size, sampler=sampler, collate_fn=list)


def load_dataset(path):
    blob = torch.load(path, map_location="cpu")
    return InteractionDataset(blob["train"]), UserDataset(blob["seen"], blob["test"]), blob["n_users"], blob["n_items"]
