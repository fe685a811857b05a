import random

import numpy as np
import torch


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)


def seed_worker(worker_id):
    """Worker init function: gives every library of a worker the seed drawn by the loader."""
    worker_seed = torch.initial_seed() % 2**32
    set_seed(worker_seed)


class RandomCropFlip:
    def __init__(self, size):
        self.size = size

    def __call__(self, image):
        _, h, w = image.shape
        top = np.random.randint(0, h - self.size + 1)
        left = np.random.randint(0, w - self.size + 1)
        image = image[:, top : top + self.size, left : left + self.size]
        if random.random() < 0.5:
            image = image.flip(-1)
        return image + 0.05 * torch.randn(image.shape)
