import torch
from torch.utils.data import Dataset


class OrganVolumes(Dataset):
    """CT crops with one binary mask per annotated organ."""

    def __init__(self, root, organs, crop=(32, 128, 128)):
        self.items = torch.load(f"{root}/index.pt", weights_only=False)
        self.root = root
        self.organs = organs
        self.crop = crop

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        entry = self.items[index]
        image = torch.load(f"{self.root}/{entry['image']}")
        masks = torch.load(f"{self.root}/{entry['mask']}")
        d, h, w = self.crop
        return image[:, :d, :h, :w].float(), masks[:, :d, :h, :w].float()


def positive_classes(masks):
    """Channels of a mask that contain at least one voxel."""
    return [c for c in range(masks.shape[1]) if masks[:, c].any()]
