"""What lies in the folder of checkpoints already: by the manifests and the sizes of files, not every byte."""

from __future__ import annotations

from pathlib import Path

from holdfast.facts.checkpoints import kept
from holdfast.facts.checkpoints.kept import Checkpoints
from holdfast.facts.checks import Place, Seen, fact
from holdfast.findings import Fact


class Kept(Seen, frozen=True, kw_only=True):
    """What is in the folder that was named; None where none was, or there is nothing yet."""

    found: Checkpoints | None = None

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        if self.found is None:
            return (fact("checkpoints", self.absent, "--checkpoints"),)
        whole = [each for each in self.found.seen if each.found is not None and not each.damages]
        newest = f"step {whole[0].step} is the newest whole one, by its sizes" if whole else "none of them is whole"
        text = f"{len(self.found.seen)}, {newest}" if self.found.seen else "none"
        return (fact("checkpoints", text, self.found.root),)


def look(place: Place) -> Kept:
    """Hold what lies there against its manifests."""
    if place.checkpoints is None:
        return Kept(absent="no folder of checkpoints was named (--checkpoints)")
    folder = place.path(place.checkpoints) if place.checkpoints.startswith("/") else Path(place.checkpoints)
    if not folder.exists():
        return Kept(absent=f"{folder} is not there yet")
    return Kept(found=kept.look(folder, contents=False))
