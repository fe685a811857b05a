import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

from models import PolicyWithValueHead
from rewards import LengthPenalisedSentiment


def ppo_loss(model, ids, mask, old_logp, scores, clip=0.2):
    logits, values = model(ids, mask)
    logp = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1).sum(1)
    value = values[:, -1]
    advantage = scores - value.detach()
    ratio = (logp - old_logp).exp()
    policy = -torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
    return policy + 0.1 * F.mse_loss(value, scores), logp.detach()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="huggyllama/llama-7b")
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    accelerator = Accelerator()
    set_seed(0, device_specific=True)
    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    model = PolicyWithValueHead.from_pretrained(args.model)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1.4e-5)
    with open(args.prompts) as fp:
        prompts = fp.read().splitlines()
    loader = DataLoader(prompts, batch_size=4, shuffle=True, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    reward = LengthPenalisedSentiment(tokenizer)

    for epoch in range(args.epochs):
        for batch in loader:
            query = tokenizer(batch, return_tensors="pt", padding=True).to(accelerator.device)
            lm = accelerator.unwrap_model(model).lm
            with torch.no_grad():
                ids = lm.generate(**query, max_new_tokens=32, do_sample=True)
            mask = (ids != tokenizer.pad_token_id).long()
            scores = reward(ids).to(accelerator.device)
            old_logp = None
            for _ in range(2):
                if old_logp is None:
                    with torch.no_grad():
                        _, old_logp = ppo_loss(model, ids, mask, torch.zeros_like(scores), scores)
                loss, _ = ppo_loss(model, ids, mask, old_logp, scores)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            mean = accelerator.gather(scores).mean().item()
            accelerator.print(f"epoch {epoch} reward {mean:.3f}")


if __name__ == "__main__":
    main()
