import json

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

IGNORE_INDEX = -100


class Conversations(Dataset):
    def __init__(self, path, tokenizer, max_length=2048):
        with open(path) as fp:
            self.rows = [json.loads(line) for line in fp]
        self.tokenizer = tokenizer
        self.max_length = max_length

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        question = self.tokenizer(row["question"])["input_ids"]
        answer = self.tokenizer(row["answer"], add_special_tokens=False)["input_ids"]
        answer.append(self.tokenizer.eos_token_id)
        ids = (question + answer)[: self.max_length]
        labels = ([IGNORE_INDEX] * len(question) + answer)[: self.max_length]
        return torch.tensor(ids), torch.tensor(labels)


def collate(batch):
    ids, labels = zip(*batch)
    mask = pad_sequence([torch.ones_like(i) for i in ids], batch_first=True)
    return {
        "input_ids": pad_sequence(ids, batch_first=True),
        "attention_mask": mask,
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORE_INDEX),
    }
