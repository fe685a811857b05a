import argparse

import torch
import torch.distributed as dist
from datasets import load_dataset
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from transformers import AutoModelForCausalLM, AutoTokenizer, default_data_collator

from dist_utils import reduce_mean, setup


def build_data(tokenizer, world, batch_size):
    raw = load_dataset("samsum")

    def encode(example):
        text = f"Summarize this dialog:\n{example['dialogue']}\n---\nSummary:\n{example['summary']}"
        out = tokenizer(text, truncation=True, padding="max_length", max_length=512)
        return {**out, "labels": out["input_ids"]}

    loaders = []
    for split in ("train", "validation"):
        data = raw[split].map(encode, remove_columns=raw[split].column_names)
        sampler = DistributedSampler(data, world.size, world.rank, shuffle=split == "train", drop_last=True)
        loaders.append(DataLoader(data, batch_size, sampler=sampler, collate_fn=default_data_collator))
    return loaders


@torch.no_grad()
def evaluation(model, loader, device):
    model.eval()
    total = sum(model(**{k: v.to(device) for k, v in batch.items()}).loss.item() for batch in loader)
    model.train()
    return reduce_mean(total / len(loader), device)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name", default="meta-llama/Llama-2-7b-hf")
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    world = setup()
    device = torch.device("cuda", torch.cuda.current_device())
    tokenizer = AutoTokenizer.from_pretrained(args.model_name)
    tokenizer.pad_token = tokenizer.eos_token
    train_loader, eval_loader = build_data(tokenizer, world, args.batch_size)
    model = AutoModelForCausalLM.from_pretrained(args.model_name, torch_dtype=torch.bfloat16)
    model = FSDP(model, device_id=torch.cuda.current_device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for epoch in range(args.epochs):
        train_loader.sampler.set_epoch(epoch)
        for batch in train_loader:
            loss = model(**{k: v.to(device) for k, v in batch.items()}).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        eval_loss = evaluation(model, eval_loader, device)
        if world.is_main:
            print(f"epoch {epoch} ({world.nodes} nodes): eval loss {eval_loss:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
