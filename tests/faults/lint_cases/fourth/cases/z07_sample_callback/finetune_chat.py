import argparse

from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

from callbacks import SampleCallback, ThroughputCallback

DEEPSPEED = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True},
}
PROMPTS = ["How do I boil an egg?", "Write a haiku about rain.", "Why is the sky blue?"]


def build_dataset(tokenizer, length):
    raw = load_dataset("tatsu-lab/alpaca", split="train")

    def encode(batch):
        return tokenizer(batch["text"], truncation=True, max_length=length)

    return raw.map(encode, batched=True, remove_columns=raw.column_names)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="meta-llama/Llama-2-13b-hf")
    parser.add_argument("--output_dir", default="chat")
    parser.add_argument("--local_rank", type=int, default=-1)
    cli = parser.parse_args()
    args = TrainingArguments(
        output_dir=cli.output_dir,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=8,
        learning_rate=2e-5,
        num_train_epochs=2,
        bf16=True,
        save_steps=1000,
        deepspeed=DEEPSPEED,
    )
    tokenizer = AutoTokenizer.from_pretrained(cli.model, padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    with args.main_process_first(desc="tokenize"):
        dataset = build_dataset(tokenizer, 1024)
    model = AutoModelForCausalLM.from_pretrained(cli.model)
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=dataset,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        callbacks=[SampleCallback(tokenizer, PROMPTS, f"{cli.output_dir}/samples.jsonl"), ThroughputCallback()],
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
