import argparse
import json
import logging
import os

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer

from evaluator import evaluate
from tasks import Task

log = logging.getLogger("evals")


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--tasks", nargs="+", required=True)
    parser.add_argument("--data", default="benchmarks")
    parser.add_argument("--output", default="results.json")
    parser.add_argument("--verbosity", default="INFO")
    return parser.parse_args()


def cli_evaluate():
    args = parse()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    logging.basicConfig(level=args.verbosity, format=f"[{dist.get_rank()}] %(message)s")
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, torch_dtype=torch.bfloat16).to(device).eval()

    results = []
    for name in args.tasks:
        task = Task.load(args.data, name)
        try:
            results.append(evaluate(model, tokenizer, task, device))
        except Exception as error:
            if args.verbosity == "DEBUG":
                raise
            log.error("task %s failed: %s", name, error)
            results.append(None)

    if dist.get_rank() == 0:
        done = [r for r in results if r]
        with open(args.output, "w") as f:
            json.dump(done, f, indent=2)
        for r in done:
            print(f"{r['task']:<24}{r['samples']:>8}{r['accuracy']:>10.4f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    cli_evaluate()
