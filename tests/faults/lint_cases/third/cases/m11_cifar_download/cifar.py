import hashlib
import os
import pickle
import tarfile
import urllib.request

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Dataset


def get_dist_info():
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


class CIFAR10(Dataset):
    base_folder = "cifar-10-batches-py"
    url = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    filename = "cifar-10-python.tar.gz"
    train_list = [f"data_batch_{i}" for i in range(1, 6)]
    test_list = ["test_batch"]

    def __init__(self, data_prefix, test_mode=False):
        self.data_prefix = data_prefix
        self.test_mode = test_mode
        self.load_annotations()

    def _check_integrity(self):
        root = os.path.join(self.data_prefix, self.base_folder)
        return all(os.path.isfile(os.path.join(root, f)) for f in self.train_list + self.test_list)

    def download(self):
        os.makedirs(self.data_prefix, exist_ok=True)
        archive = os.path.join(self.data_prefix, self.filename)
        urllib.request.urlretrieve(self.url, archive)
        with open(archive, "rb") as f:
            print("downloaded, md5", hashlib.md5(f.read()).hexdigest())
        with tarfile.open(archive) as tar:
            tar.extractall(self.data_prefix)

    def load_annotations(self):
        if not self._check_integrity():
            self.download()
        images, labels = [], []
        for name in self.test_list if self.test_mode else self.train_list:
            with open(os.path.join(self.data_prefix, self.base_folder, name), "rb") as f:
                entry = pickle.load(f, encoding="latin1")
            images.append(entry["data"])
            labels.extend(entry["labels"])
        self.imgs = np.vstack(images).reshape(-1, 3, 32, 32)
        self.gt_labels = np.array(labels)

    def __len__(self):
        return len(self.imgs)

    def __getitem__(self, i):
        return torch.from_numpy(self.imgs[i]).float() / 255.0, int(self.gt_labels[i])
