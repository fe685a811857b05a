"""The gallery of examples: the README of each, and what its repair changes."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
#: Folders with a broken.py and a fixed.py, in the order of the page.
BROKEN_AND_FIXED = (
    "rank0_evaluation",
    "ddp",
    "fsdp2",
    "deepspeed",
    "accelerate",
    "lightning",
    "transformers",
)
_INTRODUCTION = """\
Each example is one folder of `examples/` with a `broken.py` that hangs or fails, and a `fixed.py`
that trains. All run on a laptop, without a GPU. For each, this page shows the linter's finding and
the repair; `holdfast run` reports the same line, with the ranks that entered the collective and
those that did not.
"""
_LARGER = """\
## Larger examples

| folder | what it shows |
| --- | --- |
| `rvq` | a whole job: loop, checkpoints, evaluation and bounded collectives; `make demo` runs it |
| `ddp`, `fsdp2` and others | `trainer.py`: [evaluation](evaluation.md) that cannot end it |
| `heterogeneous` | [ranks of unequal speed](heterogeneous.md) |
| `frameworks` | one model, six strategies, and [what each costs](frameworks.md) |
| `skypilot`, `ray` | recipes that start `holdfast run` on the nodes of a cluster |
"""


def examples_page(note: str) -> str:
    """Return the page; `note` says that it is generated."""
    sections = (_section(EXAMPLES / name) for name in BROKEN_AND_FIXED)
    return "\n".join(["# Examples\n", note, _INTRODUCTION, *sections, _LARGER])


def _section(folder: Path) -> str:
    readme = (folder / "README.md").read_text(encoding="utf-8")
    texts = [(folder / name).read_text(encoding="utf-8") for name in ("broken.py", "fixed.py")]
    changes = unified_diff(*(text.splitlines() for text in texts), n=1, lineterm="")
    shown = "\n".join(line for line in changes if not line.startswith(("---", "+++", "@@")))
    return f"#{readme}\nThe repair:\n\n```diff\n{shown}\n```\n"
