import argparse
import os
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from modeling import VisionLanguageModel, VisionTower


class MixedInstructions(Dataset):
    """Conversations of which about half refer to an image."""

    def __len__(self):
        return 4096

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        ids = torch.randint(2, 32000, (128,), generator=g)
        if torch.rand(1, generator=g) < 0.5:
            return ids, None
        ids[0] = VisionLanguageModel.image_token_id
        return ids, torch.rand(3, 224, 224, generator=g)


def collate(rows):
    images = [image for _, image in rows if image is not None]
    return {
        "input_ids": torch.stack([ids for ids, _ in rows]),
        "pixel_values": torch.stack(images) if images else None,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    policy = partial(
        transformer_auto_wrap_policy, transformer_layer_cls={nn.TransformerEncoderLayer, VisionTower}
    )
    model = FSDP(VisionLanguageModel(), auto_wrap_policy=policy, device_id=torch.cuda.current_device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    data = MixedInstructions()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size, sampler=sampler, collate_fn=collate, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, batch in enumerate(loader):
            batch = {k: v.cuda() if v is not None else None for k, v in batch.items()}
            logits = model(**batch)
            loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["input_ids"][:, 1:].flatten())
            loss.backward()
            model.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            if step % 20 == 0 and dist.get_rank() == 0:
                print(f"step {step} loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
