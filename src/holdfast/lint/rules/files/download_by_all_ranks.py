"""One path to which all ranks download or extract."""

from __future__ import annotations

from holdfast.causes.data.file_written_by_all_ranks import FILE_WRITTEN_BY_ALL_RANKS
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.rule import Rule, RuleTier, short_location


def _message(divergence: Divergence) -> str:
    guard = short_location(divergence.guard)
    place = "" if divergence.guard == divergence.location else f" at {guard}"
    return (
        f"all ranks download or extract to {divergence.text}{place} at once, so that one rank may "
        "read files that another still writes; let one rank of each host do it before a barrier"
    )


RULE = Rule(
    name="download-by-all-ranks",
    cause=FILE_WRITTEN_BY_ALL_RANKS,
    tier=RuleTier.ADVICE,
    what_it_does=(
        "Finds downloads and archives that every rank writes to one path: urlretrieve, wget, "
        "gdown, extractall, unpack_archive, and datasets of torchvision with download=True."
    ),
    known_misses=(
        "Downloads by functions of other libraries: those of the Hugging Face hub and torch.hub "
        "write elsewhere and rename, so they are safe. A path with words that suggest a rank, host "
        "or process is assumed to be rank-specific."
    ),
    bad="""\
import os
import shutil

def main(archive):
    dist.init_process_group("nccl")
    if not os.path.exists("images"):
        shutil.unpack_archive(archive, "images")  # found
    return os.listdir("images")


main("images.tar")
""",
    good="""\
import os
import shutil

def main(archive):
    dist.init_process_group("nccl")
    folder = f"images-{dist.get_rank()}"
    shutil.unpack_archive(archive, folder)
    return os.listdir(folder)


main("images.tar")
""",
    kinds=("downloaded",),
    message=_message,
)
