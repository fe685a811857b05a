import argparse
import os
from functools import partial

import torch
import torch.distributed as dist
from datasets import load_dataset
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoModelForCausalLM, AutoTokenizer


def tokenize_fn(tokenizer, max_length, example):
    outputs = tokenizer(
        tokenizer.eos_token.join(example["text"]),
        truncation=False,
        return_tensors="pt",
        pad_to_multiple_of=max_length,
        padding=True,
    )
    return {"input_ids": outputs["input_ids"].view(-1, max_length)}


def prepare_dataset(args, tokenizer):
    rank = dist.get_rank()
    if rank > 0:
        dist.barrier()
    # the first rank downloads and tokenises, the others read its cache
    dataset = load_dataset("togethercomputer/RedPajama-Data-1T-Sample", cache_dir=args.cache_dir)
    dataset = dataset.map(
        partial(tokenize_fn, tokenizer, args.model_max_length),
        batched=True,
        num_proc=16,
        remove_columns=["text", "meta"],
    )
    if rank == 0:
        dist.barrier()
    return dataset["train"].with_format("torch")


def train(args, model, dataset, local_rank):
    model = DistributedDataParallel(model.cuda(), device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=1, sampler=sampler, drop_last=True)
    sampler.set_epoch(0)
    for step, batch in enumerate(loader):
        ids = batch["input_ids"].cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
        if step + 1 == args.max_steps:
            break
    return model.module


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name_or_path", default="EleutherAI/pythia-1.4b-deduped")
    parser.add_argument("--cache_dir", default="./cache")
    parser.add_argument("--output_dir", default="./longlora")
    parser.add_argument("--model_max_length", type=int, default=8192)
    parser.add_argument("--learning_rate", type=float, default=2e-5)
    parser.add_argument("--max_steps", type=int, default=1000)
    args = parser.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)
    dataset = prepare_dataset(args, tokenizer)
    model = train(args, model, dataset, local_rank)
    if dist.get_rank() == 0:
        model.save_pretrained(args.output_dir)
        tokenizer.save_pretrained(args.output_dir)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
