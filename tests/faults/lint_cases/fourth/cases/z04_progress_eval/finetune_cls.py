import argparse
import math

import torch
from accelerate import Accelerator
from datasets import load_dataset
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding
from transformers import get_linear_schedule_with_warmup


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="bert-base-uncased")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--eval_steps", type=int, default=200)
    return parser.parse_args()


def build_loaders(args, tokenizer):
    raw = load_dataset("glue", "sst2")
    encoded = raw.map(lambda e: tokenizer(e["sentence"], truncation=True), batched=True)
    encoded = encoded.remove_columns(["sentence", "idx"]).rename_column("label", "labels")
    collator = DataCollatorWithPadding(tokenizer)
    train = DataLoader(encoded["train"], args.batch_size, shuffle=True, collate_fn=collator)
    valid = DataLoader(encoded["validation"], 2 * args.batch_size, collate_fn=collator)
    return train, valid


def evaluate(accelerator, model, loader):
    model.eval()
    correct = seen = 0
    for batch in loader:
        with torch.no_grad():
            logits = model(**batch).logits
        preds, refs = accelerator.gather_for_metrics((logits.argmax(-1), batch["labels"]))
        correct += (preds == refs).sum().item()
        seen += len(refs)
    model.train()
    return correct / seen


def main():
    args = parse_args()
    accelerator = Accelerator()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=2)
    train_loader, valid_loader = build_loaders(args, tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    total_steps = args.epochs * math.ceil(len(train_loader))
    scheduler = get_linear_schedule_with_warmup(optimizer, 100, total_steps)
    model, optimizer, train_loader, valid_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, valid_loader, scheduler
    )

    progress_bar = tqdm(
        range(args.epochs * len(train_loader)), disable=not accelerator.is_local_main_process
    )
    best = 0.0
    model.train()
    for epoch in range(args.epochs):
        for batch in train_loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            progress_bar.update(1)
            if progress_bar.n > 0 and progress_bar.n % args.eval_steps == 0:
                accuracy = evaluate(accelerator, model, valid_loader)
                accelerator.print(f"step {progress_bar.n}: accuracy {accuracy:.4f}")
                if accuracy > best:
                    best = accuracy
                    if accelerator.is_main_process:
                        accelerator.unwrap_model(model).save_pretrained("best")
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()
