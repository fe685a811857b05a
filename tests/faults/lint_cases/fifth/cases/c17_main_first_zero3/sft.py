import argparse

import torch
from torch.utils.data import DataLoader
from transformers import get_cosine_schedule_with_warmup

from data import Conversations, collate
from load import load_model_and_tokenizer, make_accelerator


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="Qwen/Qwen2.5-7B-Instruct")
    parser.add_argument("--data", required=True)
    parser.add_argument("--batch_size", type=int, default=2)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--output_dir", default="sft")
    args = parser.parse_args()

    accelerator = make_accelerator(args)
    model, tokenizer = load_model_and_tokenizer(args, accelerator)
    dataset = Conversations(args.data, tokenizer)
    loader = DataLoader(dataset, args.batch_size, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    total = args.epochs * len(loader) // args.gradient_accumulation_steps
    scheduler = get_cosine_schedule_with_warmup(optimizer, total // 20, total)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    for epoch in range(args.epochs):
        model.train()
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch} loss {loss.item():.4f}")

    state_dict = accelerator.get_state_dict(model)
    accelerator.unwrap_model(model).save_pretrained(
        args.output_dir,
        is_main_process=accelerator.is_main_process,
        save_function=accelerator.save,
        state_dict=state_dict,
    )
    if accelerator.is_main_process:
        tokenizer.save_pretrained(args.output_dir)
    accelerator.end_training()


if __name__ == "__main__":
    main()
