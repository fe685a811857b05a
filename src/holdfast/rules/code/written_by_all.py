"""One file that all ranks write."""

from __future__ import annotations

from holdfast.facts.code.partings import Parting
from holdfast.rules.causes import by_name
from holdfast.rules.code.rule import Rule, Tier


def _wants(parting: Parting) -> bool:
    return parting.kind == "written"


def _says(parting: Parting) -> str:
    return f"all ranks write {parting.text}, each over what the others have written of it so far"


RULE = Rule(
    name="written-by-all-ranks",
    cause=by_name("file-written-by-all-ranks"),
    tier=Tier.ADVICE,
    what_it_does="Finds files that every rank of a program with a process group writes anew at one path: torch.save, "
    "open(…, 'w'), write_text.",
    known_misses="A path, a test or a decorator in whose words the rank, the host or the process may hide is believed "
    "to tell ranks apart; so is a path that is put together elsewhere, unless its name says that it is one.",
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
    wants=_wants,
    says=_says,
)
