"""Rows without a positive are dropped before the embeddings are gathered, so the ranks gather different numbers of rows.

Modelled on in-batch negatives across devices in Trainer subclasses (all_gather of tensors with a data-dependent first dimension).
"""
# case: processes=2 ending=crash causes=mismatched-shape,collective-mismatch,silent-corruption-by-misaligned-collectives ranks=- framework=transformers

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

VOCAB, LENGTH = 200, 10


class EncoderConfig(PretrainedConfig):
    model_type = "bag-encoder"


class BagEncoder(PreTrainedModel):
    config_class = EncoderConfig

    def __init__(self, config):
        super().__init__(config)
        self.emb = nn.EmbeddingBag(VOCAB, 32)
        self.proj = nn.Linear(32, 32)
        self.post_init()

    def forward(self, tokens):
        return nn.functional.normalize(self.proj(self.emb(tokens)), dim=-1)


class Pairs(torch.utils.data.Dataset):
    """A question and an answer each; of the mined pairs some have no answer that passed the filter."""

    def __init__(self, size=512):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        question = torch.randint(0, VOCAB, (LENGTH,), generator=g)
        answer = question[torch.randperm(LENGTH, generator=g)]
        return {"question": question, "answer": answer, "has_answer": torch.tensor(index % 83 != 80)}


def gather_rows(rows):
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.detach().contiguous())  # ALSO
    parts[dist.get_rank()] = rows
    return torch.cat(parts)


class ContrastiveTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        keep = inputs["has_answer"]  # ALSO
        question = model(inputs["question"][keep])  # GUILTY
        answer = model(inputs["answer"][keep])  # ALSO
        questions, answers = gather_rows(question), gather_rows(answer)  # ALSO
        scores = questions @ answers.T / 0.05
        loss = nn.functional.cross_entropy(scores, torch.arange(len(scores)))
        return (loss, scores) if return_outputs else loss


def main():
    torch.manual_seed(0)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=16,
        max_steps=60,
        logging_steps=5,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,
    )
    trainer = ContrastiveTrainer(model=BagEncoder(EncoderConfig()), args=args, train_dataset=Pairs())
    trainer.train()  # ALSO
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
