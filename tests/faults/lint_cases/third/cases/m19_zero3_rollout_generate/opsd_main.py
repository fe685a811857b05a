import argparse
import os

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollout import HybridRollout


def ds_config(micro_batch, lr):
    return {
        "train_micro_batch_size_per_gpu": micro_batch,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "overlap_comm": True},
        "optimizer": {"type": "AdamW", "params": {"lr": lr}},
        "gradient_clipping": 1.0,
    }


def distillation_loss(student_logits, teacher_logits, mask):
    kl = nn.functional.kl_div(
        student_logits.log_softmax(-1), teacher_logits.log_softmax(-1), log_target=True, reduction="none"
    )
    return (kl.sum(-1) * mask).sum() / mask.sum().clamp(min=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--student", default="Qwen/Qwen2.5-0.5B-Instruct")
    parser.add_argument("--teacher", default="Qwen/Qwen2.5-Math-7B-Instruct")
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    args = parser.parse_args()

    torch.cuda.set_device(args.local_rank)
    deepspeed.init_distributed("nccl")
    torch.manual_seed(1234)
    tokenizer = AutoTokenizer.from_pretrained(args.student, padding_side="left")
    student = AutoModelForCausalLM.from_pretrained(args.student, torch_dtype=torch.bfloat16)
    engine, _, _, _ = deepspeed.initialize(
        model=student, model_parameters=student.parameters(), config=ds_config(4, 1e-6)
    )
    teacher = AutoModelForCausalLM.from_pretrained(args.teacher, torch_dtype=torch.bfloat16)
    teacher = teacher.to(engine.device).eval()
    rollout = HybridRollout(engine, tokenizer, max_new_tokens=512)

    with open(args.prompts) as f:
        prompts = [line.strip() for line in f]
    sampler = DistributedSampler(prompts)
    loader = DataLoader(prompts, batch_size=4, sampler=sampler, drop_last=True)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step, texts in enumerate(loader):
            ids, mask = rollout.generate(texts)
            with torch.no_grad():
                teacher_logits = teacher(ids).logits
            loss = distillation_loss(engine(ids).logits[:, :-1], teacher_logits[:, :-1], mask[:, 1:])
            engine.backward(loss)
            engine.step()
            if step % 10 == 0 and dist.get_rank() == 0:
                print(f"step {step} loss {loss.item():.4f}")
    engine.save_checkpoint("opsd-checkpoint")


if __name__ == "__main__":
    main()
