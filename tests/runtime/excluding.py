"""One node of a job that is told to go on without its second node, by hooks of its own: torchrun's arguments follow.

The order comes when both are up, and as many nodes stand by as STANDING_BY says.
"""

import os
import sys
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.runtime import torchrun
from holdfast.runtime.generation import Choice, Order
from holdfast.runtime.launch import launch


class Hooks:
    """Gives the order once all workers are up; the rest is as little as can be."""

    def __init__(self):
        self.current = None

    def prepare(self):
        """Nothing to do."""

    def handover(self):
        return ""

    def take_over(self, state):
        """Nothing to know."""

    def variables(self, rank, generation):  # noqa: ARG002 - the agent's
        return {}

    def started(self, generation):
        self.current = generation

    def tick(self, look):
        up = len(list(Path().glob("up*"))) == 2 and look.waiting >= int(os.environ.get("STANDING_BY", "0"))
        wanted = up and self.current.leader and self.current.number == 0
        return (
            Order(choice=Choice.EXCLUDE, reason="its disk is gone", patience_s=1.0, excluded=(1,)) if wanted else None
        )

    def decided(self, order):
        self.note(f"decided {order.choice}")

    def ended(self, how):
        self.note(f"ended {how}")

    def note(self, text):
        print(text, flush=True)  # noqa: T201 - the test reads it

    def room(self):
        return None

    def abandon(self):
        """Nothing to leave behind."""


if __name__ == "__main__":
    try:
        sys.exit(
            launch(torchrun.parse(sys.argv[1:], {}), Hooks(), logs=Path(f"logs{Path().stat().st_ino}"), quiet=True)
        )
    except HoldfastError as error:
        sys.exit(f"{error}")
