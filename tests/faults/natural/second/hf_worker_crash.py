"""A data-loader worker of one rank crashes in a native decoder, because a record's header states a length far beyond its data.

Modelled on hiyouga/LlamaFactory#8043 and huggingface/pytorch-image-models#1269 (DataLoader worker is killed by signal).
"""
# case: processes=4 ending=crash causes=dataloader-worker-died,python-exception-on-one-rank,segfault-in-worker ranks=2 framework=hf-trainer limit_s=120

import ctypes
import struct
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

VOCAB, LENGTH = 128, 32


class PackedRecords(Dataset):
    """Records of the form <length: uint32><length bytes>, decoded by the C library."""

    def __init__(self, n=512):
        g = torch.Generator().manual_seed(3)
        rows = torch.randint(0, VOCAB, (n, LENGTH), generator=g, dtype=torch.uint8)
        self.records = [struct.pack("<I", LENGTH) + bytes(row.tolist()) for row in rows]
        self.records[330] = struct.pack("<I", 0x7FFF0020) + self.records[330][4:]

    def __len__(self):
        return len(self.records)

    def decode(self, record):
        (size,) = struct.unpack_from("<I", record)
        out = (ctypes.c_uint8 * LENGTH)()
        ctypes.memmove(out, record[4:], size)  # GUILTY
        return torch.frombuffer(out, dtype=torch.uint8).long()

    def __getitem__(self, i):
        ids = self.decode(self.records[i])  # ALSO
        return {"input_ids": ids, "labels": ids}


def main():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2,
                                       bos_token_id=0, eos_token_id=0))
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="hf-worker-"),
        use_cpu=True,
        ddp_backend="gloo",
        num_train_epochs=2,
        per_device_train_batch_size=4,
        dataloader_num_workers=1,
        seed=11,
        data_seed=11,
        logging_steps=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=args, train_dataset=PackedRecords())
    trainer.train()  # ALSO


if __name__ == "__main__":
    main()
