"""Convert every kind of checkpoint to every other, for the table in docs/checkpoints.md.

``python -m tests.golden.checkpoints.matrix`` determines what is bit-identical and writes the table;
a test repeats this and compares.
"""

import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch

from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.convert import targets
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.pipeline import ConversionRequest, convert_checkpoint
from holdfast.ckpt.formats import registry
from holdfast.ckpt.tensor_blocks import TensorReader
from holdfast.core.errors import HoldfastError
from tests.golden.checkpoints.making import ROOT, made

PAGE = ROOT / "docs" / "checkpoints.md"
BEGIN, END = (
    "<!-- the matrix: python -m tests.golden.checkpoints.matrix -->",
    "<!-- end of the matrix -->",
)
RANKS = 2
#: Row of the table -> program, arguments, ranks, path below the folder, and names that the framework
#: itself does not save.
SOURCES = {
    "torch.save": ("plain_files", [], 1, "model.pt", ()),
    "safetensors": ("plain_files", [], 1, "model.safetensors", ()),
    "Hugging Face, 5 files": ("plain_files", [], 1, "huggingface", ()),
    "DCP, FSDP2": ("torch_distributed", ["dcp"], RANKS, "saved", ()),
    "DCP, DDP": ("torch_distributed", ["dcp-ddp"], RANKS, "saved", ()),
    "holdfast": ("torch_distributed", ["holdfast"], RANKS, "saved", ()),
    "FSDP1 full": ("torch_distributed", ["fsdp1-full"], RANKS, "saved/model.pt", ()),
    "FSDP1 sharded": ("torch_distributed", ["fsdp1-sharded"], RANKS, "saved", ()),
    "FSDP1 local": ("torch_distributed", ["fsdp1-local"], RANKS, "saved", ()),
    "FSDP2, a file a rank": ("torch_distributed", ["fsdp2-ranks"], RANKS, "saved", ()),
    "Megatron (torch_dist)": ("torch_distributed", ["megatron"], RANKS, "saved", ()),
    "ZeRO-1": ("deepspeed_zero", ["--stage", "1"], RANKS, "checkpoint", ()),
    "ZeRO-2": ("deepspeed_zero", ["--stage", "2", "--universal"], RANKS, "checkpoint", ()),
    "ZeRO-3": ("deepspeed_zero", ["--stage", "3", "--universal"], RANKS, "checkpoint", ()),
    "ZeRO-3, bf16, 3 ranks": (
        "deepspeed_zero",
        ["--stage", "3", "--dtype", "bf16"],
        3,
        "checkpoint",
        (),
    ),
    "universal, of ZeRO-2": (
        "deepspeed_zero",
        ["--stage", "2", "--universal"],
        RANKS,
        "universal",
        (),
    ),
    "universal, of ZeRO-3": (
        "deepspeed_zero",
        ["--stage", "3", "--universal"],
        RANKS,
        "universal",
        (),
    ),
    "Accelerate, DDP": ("accelerate_folder", ["ddp"], RANKS, "saved", ("head.weight",)),
    "Accelerate, DDP, .bin": ("accelerate_folder", ["ddp", "--bin"], RANKS, "saved", ()),
    "Lightning": ("lightning_file", ["file"], 1, "saved.ckpt", ()),
}
MOMENTS = ("exp_avg", "exp_avg_sq")


def checkpoint_of(store, row):
    """Return the folder of a generator, and the checkpoint in it."""
    program, arguments, ranks, below, _ = SOURCES[row]
    folder = made(store, program, *arguments, ranks=ranks)
    return folder, folder / below


def cell(store, row, to, place):
    """Return what is preserved for one source and target, and the reasons for losses."""
    folder, checkpoint = checkpoint_of(store, row)
    target = place / (row.replace(" ", "-").replace(",", "") + f".{to}")
    try:
        conversion = convert_checkpoint(
            ConversionRequest(
                source=checkpoint, target=target, to=to, options=ConvertOptions(ranks=RANKS)
            )
        )
    except HoldfastError as error:
        return "no", (f"{error.why}.",)
    truth = torch.load(folder / "truth.pt", weights_only=False)
    for name in SOURCES[row][4]:
        del truth["model"][name]
    what = arrived(registry.read_checkpoint(target), truth)
    if registry.read_checkpoint(checkpoint).optimizer is not None:
        return what, conversion.losses
    notes = [note for note in conversion.notes if "optimizer" in note] or ["it only holds weights"]
    return what, (*conversion.losses, *(f"The source: {note}." for note in notes))


def arrived(contents, truth):
    """Return ``all``, ``model`` or ``part``: which reference tensors are bit-identical."""
    with TensorReader(Path(contents.root)) as reader:

        def equal(tensor, expected):
            same = f"torch.{tensor.dtype}" == str(expected.dtype) and tensor.shape == tuple(
                expected.shape
            )
            bits = expected.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            return same and np.array_equal(
                reader.read_tensor(tensor).reshape(-1).view(np.uint8), bits
            )

        def find_tensor(name):
            return contents.tensors.get(contents.ties.get(name, name))

        weights = [
            find_tensor(name) is not None and equal(find_tensor(name), each)
            for name, each in truth["model"].items()
        ]
        states = contents.optimizer.tensors if contents.optimizer is not None else {}
        moments = [
            name in states and all(equal(states[name][key], state[key]) for key in MOMENTS)
            for name, state in truth["optimizer"].items()
        ]
    return (
        "part"
        if not all(weights)
        else "all"
        if all(moments)
        else "model"
        if not any(moments)
        else "part"
    )


MARKS = {"all": "=", "model": "m", "part": "?", "no": "-"}


def measured(store, rows=SOURCES):
    """Return all cells of these rows, with the reasons for losses."""
    place = Path(tempfile.mkdtemp(dir=store))
    try:
        return {(row, to): cell(store, row, to, place) for row in rows for to in targets.WRITERS}
    finally:
        shutil.rmtree(place)


def table(cells):
    """Return the table, followed by the reasons."""
    columns = list(targets.WRITERS)
    reasons = {}
    lines = ["| from \\ to | " + " | ".join(columns) + " |", "| --- |" + " :-: |" * len(columns)]
    for row in SOURCES:
        marks = []
        for to in columns:
            what, losses = cells[row, to]
            numbers = [str(reasons.setdefault(loss, len(reasons) + 1)) for loss in losses]
            marks.append(MARKS[what] + (f" <sup>{','.join(numbers)}</sup>" if numbers else ""))
        lines.append(f"| {row} | " + " | ".join(marks) + " |")
    never = [f"* Read-only: {each}: {why}." for each, why in targets.UNSUPPORTED_TARGETS.items()]
    return "\n".join(
        [*lines, "", *(f"{number}. {why}" for why, number in reasons.items()), "", *never]
    )


def said(page):
    """Return the table in the page, row by row, without the reasons."""
    lines = [
        line.strip("| ").split(" | ")
        for line in page.partition(BEGIN)[2].splitlines()
        if line.startswith("| ")
    ]
    return {row: [re.sub(r" <sup>.*", "", cell) for cell in cells] for row, *cells in lines[2:]}


def written(page, cells):
    """Return the page with its table replaced."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table(cells)}\n\n{END}{rest.partition(END)[2]}"


def main():
    """Convert all checkpoints and write the page."""
    with tempfile.TemporaryDirectory() as store:
        cells = measured(Path(store))
    PAGE.write_text(written(PAGE.read_text(), cells))
    assert set(CheckpointFormat) == {*targets.WRITERS, *targets.UNSUPPORTED_TARGETS}


if __name__ == "__main__":
    main()
