import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from data import make_loaders


@torch.no_grad()
def evaluate(accelerator, model, loader):
    model.eval()
    right, seen = 0, 0
    for batch in loader:
        prediction = model(**batch).logits.argmax(dim=-1)
        prediction, labels = accelerator.gather_for_metrics((prediction, batch["labels"]))
        right += (prediction == labels).sum().item()
        seen += len(labels)
    return right / seen


def save(accelerator, model, tokenizer, folder):
    accelerator.wait_for_everyone()
    state = accelerator.get_state_dict(model)
    unwrapped = accelerator.unwrap_model(model)
    if accelerator.is_main_process:
        unwrapped.save_pretrained(folder, state_dict=state)
        tokenizer.save_pretrained(folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="distilbert-base-uncased")
    parser.add_argument("--train", required=True)
    parser.add_argument("--validation", required=True)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", default="student")
    args = parser.parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=4)
    set_seed(17)
    with accelerator.main_process_first():
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        model = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=2)
    train_loader, eval_loader = make_loaders(accelerator, tokenizer, args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)
    model, optimizer, train_loader, eval_loader = accelerator.prepare(
        model, optimizer, train_loader, eval_loader
    )
    best = 0.0
    for epoch in range(args.epochs):
        model.train()
        for batch in train_loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if not torch.isfinite(loss):
                accelerator.set_trigger()
            if accelerator.check_trigger():
                raise RuntimeError(f"the loss is not finite on some process, epoch {epoch}")
        accuracy = evaluate(accelerator, model, eval_loader)
        accelerator.print(f"epoch {epoch}: accuracy {accuracy:.4f}")
        if accuracy > best:
            best = accuracy
            save(accelerator, model, tokenizer, args.out)
    accelerator.end_training()


if __name__ == "__main__":
    main()
