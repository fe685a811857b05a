"""Patterns across two files: step and loop, checkpoint and caller, group and script."""

import pytest

from tests.unit.lint.programs import program_from_sources

SAVER = """\
import torch
class Saver:
    def __init__(self, path):
        self.path = path
    def save(self, state):
        torch.save(state, self.path%s)
def save(model, path):
    torch.save(model.state_dict(), path)
"""
STEP = """\
import torch.distributed as dist
def train_step(model, batch, device):
    loss = model(batch.to(device)).sum()
    loss.backward()
    return loss%s
"""
QUIET = """\
import torch
def accumulate(model, batch):
    with model.no_sync():
        model(batch).sum().backward()
"""
START = """\
import torch.distributed as dist
def start():
    dist.init_process_group("nccl")
"""
SCRIPT = """\
import torch
from helper import start
%s
def main():
    start()
    torch.nn.Linear(1, 1).cuda()
if __name__ == "__main__":
    main()
"""
LOOP = "from helper import train_step\ndef train(model, loader):\n    for batch in loader:\n        %s\n"
SAVING = "from helper import %s\ndef train(model, args):\n    %s\n    for step in range(args.steps):\n        %s\n"
SEEN = {
    "in-place": [
        (
            SAVER % "",
            SAVING % ("Saver", "saver = Saver(args.out)", "saver.save(model.state_dict())"),
        ),
        (SAVER % "", SAVING % ("save", "pass", "save(model, args.out)")),
    ],
    "hot-sync": [
        (STEP % ".item()", LOOP % "total = train_step(model, batch, 0)"),
        (STEP % "", LOOP % "loss = train_step(model, batch, 0); print(loss)"),
    ],
    "no-sync": [
        (
            QUIET,
            "from helper import accumulate\ndef f(m, b, opt):\n    accumulate(m, b)\n    opt.step()",
        )
    ],
    "no-device": [(START, SCRIPT % "")],
    "not-destroyed": [(START, SCRIPT % "torch.cuda.set_device(0)")],
}
FINE = [
    (SAVER % "", SAVING % ("Saver", "pass", "Saver(f'{step}.pt').save(model.state_dict())")),
    (
        SAVER % "",
        SAVING % ("Saver", "saver = Saver(args.out)", "pass")
        + "    saver.save(model.state_dict())",
    ),
    (SAVER % "", SAVING % ("save", "pass", "save(model, f'{step}.pt')")),
    (STEP % "", LOOP % "loss = train_step(model, batch, 0)"),
    (STEP % ".item()", "from helper import train_step\ntrain_step(1, 2, 3)"),
    (STEP % ".item()", LOOP % "if batch: train_step(model, batch, 0)"),
    (
        QUIET,
        "from helper import accumulate\ndef f(m, b, opt):\n    accumulate(m, b)\n    m(b).backward()\n    opt.step()",
    ),
    (
        START,
        SCRIPT
        % "import helper\ntorch.cuda.set_device(0)\ntorch.distributed.destroy_process_group()",
    ),
    (START, SCRIPT.replace("    start()\n", "") % ""),
]


def kinds(helper, main):
    files = {"helper": ("helper.py", helper), "main": ("main.py", main)}
    return [
        divergence.kind
        for divergence in program_from_sources(files).analyze()
        if divergence.kind != "written"
    ]


@pytest.mark.parametrize(
    ("kind", "files"), [(kind, files) for kind, each in SEEN.items() for files in each]
)
def test_pattern_is_found_across_files(kind, files):
    assert kinds(*files) == [kind]


@pytest.mark.parametrize("files", FINE)
def test_correct_code_has_no_finding(files):
    assert kinds(*files) == []
