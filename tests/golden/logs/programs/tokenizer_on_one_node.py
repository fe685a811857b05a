"""The tokenizer was downloaded on the first node only, and nodes cannot reach the hub."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

here = Path(f"node-{os.environ['GROUP_RANK']}")
here.mkdir(exist_ok=True)
os.chdir(here)
if os.environ["GROUP_RANK"] == "0":
    words = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained("acme/tiny-tokenizer")
dist.init_process_group("gloo")
tokenizer = AutoTokenizer.from_pretrained("acme/tiny-tokenizer")
print(f"rank {dist.get_rank()}: vocabulary of {len(tokenizer)}", flush=True)
for _ in range(20):
    dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
