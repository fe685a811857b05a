"""One file that all ranks write."""

from __future__ import annotations

from holdfast.causes.data.file_written_by_all_ranks import FILE_WRITTEN_BY_ALL_RANKS
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier


def _message(divergence: Divergence) -> str:
    return f"all ranks write {divergence.text} and overwrite each other's output"


RULE = Rule(
    name="written-by-all-ranks",
    cause=FILE_WRITTEN_BY_ALL_RANKS,
    tier=RuleTier.ADVICE,
    what_it_does=(
        "Finds files that every rank of a program with a process group overwrites at the same "
        "path: torch.save, open(…, 'w'), write_text, and save_pretrained of tokenizers and "
        "configurations; also in functions that nothing calls, if they or their class ask for the "
        "rank or enter collectives."
    ),
    known_misses=(
        "A path, test or decorator with words that suggest a rank, host or process is assumed to "
        "be rank-specific; so is a path built elsewhere, unless its name says that it is a path. A "
        "line that only scripts of one process reach is checked with --strict only."
    ),
    bad="""\
def train(model, folder):
    dist.init_process_group("nccl")
    torch.save(model.state_dict(), f"{folder}/model-final.pt.new")  # found


train(torch.nn.Linear(1, 1), "out")
""",
    good="""\
def train(model, folder):
    dist.init_process_group("nccl")
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), f"{folder}/model-final.pt.new")


train(torch.nn.Linear(1, 1), "out")
""",
    kinds=("written",),
    message=_message,
)
