import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from transformers import AutoModelForCausalLM, AutoTokenizer

from arguments import DataArguments, TrainArguments
from preprocess import preprocess_dataset


def collate(rows):
    ids = pad_sequence([i for i, _ in rows], batch_first=True)
    labels = pad_sequence([l for _, l in rows], batch_first=True, padding_value=-100)
    return ids, labels


def main():
    data_args, args = DataArguments(), TrainArguments()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl", timeout=args.timeout)
    tokenizer = AutoTokenizer.from_pretrained(args.model, trust_remote_code=True)
    dataset = preprocess_dataset(data_args, tokenizer)
    sampler = DistributedSampler(dataset, drop_last=True)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, collate_fn=collate, drop_last=True)
    model = AutoModelForCausalLM.from_pretrained(args.model, trust_remote_code=True, torch_dtype=torch.bfloat16)
    model = FSDP(model, device_id=local_rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (ids, labels) in enumerate(loader):
            loss = model(input_ids=ids.cuda(), labels=labels.cuda()).loss
            loss.backward()
            model.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            if step % 50 == 0 and dist.get_rank() == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
