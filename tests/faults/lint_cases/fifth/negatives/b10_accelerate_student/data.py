from datasets import load_dataset
from torch.utils.data import DataLoader


def make_loaders(accelerator, tokenizer, args):
    dataset = load_dataset("json", data_files={"train": args.train, "validation": args.validation})

    def encode(rows):
        out = tokenizer(rows["text"], truncation=True, max_length=256, padding="max_length")
        out["labels"] = rows["label"]
        return out

    with accelerator.main_process_first():
        dataset = dataset.map(encode, batched=True, remove_columns=dataset["train"].column_names)
    dataset.set_format("torch")
    train = DataLoader(dataset["train"], batch_size=args.batch_size, shuffle=True, drop_last=True)
    return train, DataLoader(dataset["validation"], batch_size=args.batch_size)
