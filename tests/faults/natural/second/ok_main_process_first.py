"""Healthy: rank 0 tokenizes the data set for about 12 s while the others wait for it in main_process_first(), then all train.

In the style of the Hugging Face Trainer examples (run_clm.py).
"""
# case: processes=4 ending=well causes=- ranks=- framework=hf-trainer limit_s=120

import os
import tempfile
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

VOCAB, LENGTH = 96, 24
CACHE = Path(tempfile.gettempdir()) / f"tokenized-{os.environ['MASTER_PORT']}.pt"


def tokenize_corpus(documents=600):
    """The tokenized corpus, from the cache or computed."""
    if CACHE.exists():
        return torch.load(CACHE)
    g = torch.Generator().manual_seed(0)
    rows = []
    for i in range(documents):
        text = "".join(chr(32 + c) for c in torch.randint(0, VOCAB, (400,), generator=g).tolist())
        pairs = {}
        for a, b in zip(text, text[1:]):
            pairs[a + b] = pairs.get(a + b, 0) + 1
        time.sleep(0.02)
        rows.append(torch.tensor([ord(c) - 32 for c in text[:LENGTH]]))
    data = torch.stack(rows)
    torch.save(data, CACHE)
    return data


def main():
    torch.manual_seed(0)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="hf-first-"),
        use_cpu=True,
        ddp_backend="gloo",
        max_steps=20,
        per_device_train_batch_size=8,
        logging_steps=5,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    with args.main_process_first(desc="dataset map tokenization"):
        rows = tokenize_corpus()
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2,
                                       bos_token_id=0, eos_token_id=0))
    trainer = Trainer(model=model, args=args, train_dataset=[{"input_ids": r, "labels": r} for r in rows])
    trainer.train()
    if trainer.is_world_process_zero():
        CACHE.unlink()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
