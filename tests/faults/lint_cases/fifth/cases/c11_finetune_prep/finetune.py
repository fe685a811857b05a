import argparse
import logging

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from transformers import AutoModelForCausalLM, AutoTokenizer

import dist_utils
from tasks import DatasetConstructor


def collate(batch):
    ids = [torch.tensor(e["input_ids"]) for e in batch]
    labels = [torch.tensor(e["labels"]) for e in batch]
    ids, mask = pad_sequence(ids, True), pad_sequence([torch.ones_like(i) for i in ids], True)
    return {"input_ids": ids, "attention_mask": mask, "labels": pad_sequence(labels, True, -100)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="mosaicml/mpt-125m")
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    dist_utils.initialize()
    local_rank = dist_utils.get_local_rank()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    dataset = DatasetConstructor(tokenizer, 2048).build_from_hf(args.dataset, "train")
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, collate_fn=collate)
    model = AutoModelForCausalLM.from_pretrained(args.model).cuda()
    model = DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            loss = model(**{k: v.cuda() for k, v in batch.items()}).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if dist.get_rank() == 0:
        model.module.save_pretrained("finetuned")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
