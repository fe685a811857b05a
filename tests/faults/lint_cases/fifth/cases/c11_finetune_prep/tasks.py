import logging
import os

import torch.distributed as dist
from datasets import load_dataset

import dist_utils

log = logging.getLogger(__name__)


class UnknownExampleError(KeyError):
    pass


def format_example(example):
    if "prompt" not in example or "response" not in example:
        raise UnknownExampleError(f"expected prompt and response, found {sorted(example)}")
    if not isinstance(example["response"], str) or not example["response"]:
        raise UnknownExampleError("empty response")
    return example


class DatasetConstructor:
    def __init__(self, tokenizer, max_seq_len):
        self.tokenizer = tokenizer
        self.max_seq_len = max_seq_len

    def tokenize(self, example):
        example = format_example(example)
        prompt = self.tokenizer(example["prompt"])["input_ids"]
        response = self.tokenizer(example["response"], add_special_tokens=False)["input_ids"]
        ids = (prompt + response + [self.tokenizer.eos_token_id])[: self.max_seq_len]
        labels = ([-100] * len(prompt) + response + [self.tokenizer.eos_token_id])[: self.max_seq_len]
        return {"input_ids": ids, "labels": labels}

    def build_from_hf(self, name, split):
        signal = f".node_{dist_utils.get_node_rank()}_local_rank0_data_prep_completed"
        if dist_utils.get_local_rank() != 0:
            log.debug("waiting for local rank 0 to prepare the data")
            dist_utils.wait_for_file(signal)

        dataset = load_dataset(name, split=split)
        tokenized = dataset.map(self.tokenize, remove_columns=dataset.column_names)
        filtered = tokenized.filter(lambda e: any(t != -100 for t in e["labels"]))

        if dist_utils.get_local_rank() == 0:
            with open(signal, "wb") as f:
                f.write(b"local_rank0_completed")
        dist.barrier()
        if dist_utils.get_local_rank() == 0:
            os.remove(signal)
        return filtered
