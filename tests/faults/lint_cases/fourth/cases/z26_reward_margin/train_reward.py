import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from reward_eval import RewardEvaluator


def collate(tokenizer, length):
    def call(rows):
        texts = [r["chosen"] for r in rows] + [r["rejected"] for r in rows]
        batch = tokenizer(texts, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
        half = len(rows)
        return {
            "chosen_ids": batch.input_ids[:half],
            "chosen_mask": batch.attention_mask[:half],
            "rejected_ids": batch.input_ids[half:],
            "rejected_mask": batch.attention_mask[half:],
        }

    return call


def scores(model, batch):
    ids = torch.cat([batch["chosen_ids"], batch["rejected_ids"]])
    mask = torch.cat([batch["chosen_mask"], batch["rejected_mask"]])
    return model(input_ids=ids, attention_mask=mask).logits.squeeze(-1).chunk(2)


def evaluate(model, loader, evaluator):
    model.eval()
    for batch in loader:
        with torch.no_grad():
            evaluator.update(*scores(model, batch))
    model.train()
    return evaluator.compute()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="Qwen/Qwen2.5-0.5B")
    parser.add_argument("--batch_size", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=4)
    set_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=1)
    model.config.pad_token_id = tokenizer.pad_token_id
    data = load_dataset("trl-lib/ultrafeedback_binarized")
    call = collate(tokenizer, 512)
    train_loader = DataLoader(data["train"], args.batch_size, shuffle=True, collate_fn=call, drop_last=True)
    eval_loader = DataLoader(data["test"], args.batch_size, collate_fn=call)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    model, optimizer, train_loader, eval_loader = accelerator.prepare(model, optimizer, train_loader, eval_loader)
    evaluator = RewardEvaluator(accelerator)
    for epoch in range(args.epochs):
        for batch in train_loader:
            with accelerator.accumulate(model):
                accelerator.backward(evaluator.loss(*scores(model, batch)))
                optimizer.step()
                optimizer.zero_grad()
        result = evaluate(model, eval_loader, evaluator)
        accelerator.print(f"epoch {epoch}: {result}")


if __name__ == "__main__":
    main()
