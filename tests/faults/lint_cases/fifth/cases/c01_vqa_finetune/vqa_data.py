import json
import os

import torch
from torch.utils.data import Dataset


class VQADataset(Dataset):
    """Questions (token ids), region features and soft answer scores."""

    def __init__(self, args, split):
        self.args = args
        with open(os.path.join(args.data_dir, f"{split}.json")) as fp:
            self.examples = json.load(fp)
        self.features = torch.load(os.path.join(args.data_dir, f"{split}_img_feats.pt"))

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        example = self.examples[index]
        ids = torch.zeros(self.args.max_seq_length, dtype=torch.long)
        tokens = torch.tensor(example["tokens"][: self.args.max_seq_length])
        ids[: len(tokens)] = tokens
        target = torch.zeros(self.args.num_labels)
        for label, score in example["answers"]:
            target[label] = score
        return ids, self.features[example["img_id"]], target
