import argparse
import itertools
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from corpus import JsonlCorpus


def endless(dataset, batch_size, workers):
    for epoch in itertools.count():
        dataset.set_epoch(epoch)
        yield from DataLoader(dataset, batch_size, num_workers=workers, drop_last=True)


def build_model():
    model = GPT2LMHeadModel(GPT2Config()).cuda()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.transformer.h:
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--corpus", default="/data/c4")
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained("gpt2")
    model = build_model()
    torch.manual_seed(1 + dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95))
    batches = endless(JsonlCorpus(args.corpus, tokenizer), args.batch_size, args.workers)
    for step, block in zip(range(args.steps), batches):
        block = block.cuda(non_blocking=True)
        loss = model(input_ids=block, labels=block).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0 and dist.get_rank() == 0:
            print(f"{step}: {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
