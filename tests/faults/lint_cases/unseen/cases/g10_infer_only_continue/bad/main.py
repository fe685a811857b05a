"""Runs several models over several benchmarks: every process answers its share, the first one merges and scores."""
import argparse
import itertools
import json
import os
import pathlib
from dataclasses import dataclass

import torch
from torch import nn

from runtime import Runtime


class ChoiceModel(nn.Module):
    def __init__(self, dim, n_choices, seed):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.w = nn.Parameter(torch.randn(n_choices, dim, generator=g))

    @torch.inference_mode()
    def generate(self, question):
        return "ABCD"[int((self.w @ question).argmax())]


@dataclass(frozen=True)
class Benchmark:
    name: str
    size: int
    judge: str = "exact"

    def questions(self):
        g = torch.Generator().manual_seed(self.size)
        return [(i, torch.randn(8, generator=g)) for i in range(self.size)]

    def answers(self):
        g = torch.Generator().manual_seed(self.size + 1)
        return {i: "ABCD"[int(torch.randint(0, 4, (1,), generator=g))] for i in range(self.size)}


MODELS = {"tiny-a": lambda: ChoiceModel(8, 4, 1), "tiny-b": lambda: ChoiceModel(8, 4, 2)}
BENCHMARKS = {b.name: b for b in (Benchmark("mmb", 10), Benchmark("chart", 7), Benchmark("doc", 6, judge="relaxed"))}


def exact_match(merged, answers):
    return sum(merged[i] == a for i, a in answers.items()) / len(answers)


def relaxed_match(merged, answers):
    near = {"A": "AB", "B": "ABC", "C": "BCD", "D": "CD"}
    return sum(merged[i] in near[a] for i, a in answers.items()) / len(answers)


JUDGES = {"exact": exact_match, "relaxed": relaxed_match}


def infer(rt: Runtime, job, model, bench):
    done = {}
    for index, question in rt.shard(bench.questions()):
        done[index] = model.generate(question)
    rt.dump(job, done)
    rt.settle()


def write_json(path, obj):
    path.write_text(json.dumps(obj, indent=1, sort_keys=True))


def run(rt: Runtime, args):
    board = {}
    for model_name, bench_name in itertools.product(args.model, args.data):
        bench = BENCHMARKS[bench_name]
        job = f"{model_name}_{bench_name}"
        result_file = rt.workdir / f"{job}.json"

        infer(rt, job, MODELS[model_name](), bench)

        if rt.is_lead:  # RELATED: guard
            merged = rt.merge(job)
            write_json(result_file, merged)
            if args.mode == "infer":
                print(f"{job}: predictions in {result_file.name}, scoring left to a later run")
                continue  # EXPECT: rank-early-exit
            board[job] = JUDGES[bench.judge](merged, bench.answers())
            print(f"{job}: {board[job]:.3f}")

        rt.settle()

    if rt.is_lead:
        write_json(rt.workdir / "board.json", board)
    return board


def parse_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", nargs="+", default=list(MODELS))
    ap.add_argument("--data", nargs="+", default=list(BENCHMARKS))
    ap.add_argument("--mode", choices=("all", "infer"), default=os.environ.get("EVAL_MODE", "infer"))
    ap.add_argument("--work-dir", type=pathlib.Path, default=pathlib.Path(os.environ.get("CASE_TMP", ".")) / "outputs")
    return ap.parse_args()


def main():
    args = parse_args()
    with Runtime(args.work_dir) as rt:
        run(rt, args)


if __name__ == "__main__":
    main()
