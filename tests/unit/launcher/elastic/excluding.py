"""One node of a job whose hooks exclude the second node; arguments are torchrun's.

The order is given when both nodes run and STANDING_BY nodes wait.
"""

import os
import sys
from pathlib import Path

from holdfast.core.errors import HoldfastError
from holdfast.launcher.elastic import command_line
from holdfast.launcher.elastic.generation import Order, OrderAction
from holdfast.launcher.elastic.run_job import launch


class Hooks:
    """Returns the order once all workers run."""

    def __init__(self):
        self.current = None

    def prepare(self):
        """Do nothing."""

    def export_state(self):
        return ""

    def import_state(self, state):
        """Do nothing."""

    def worker_environment(self, rank, generation):  # noqa: ARG002 - the agent's interface
        return {}

    def workers_started(self, generation):
        self.current = generation

    def tick(self, status):
        up = len(list(Path().glob("up*"))) == 2 and status.waiting_nodes >= int(
            os.environ.get("STANDING_BY", "0")
        )
        is_due = up and self.current.leader and self.current.number == 0
        return (
            Order(action=OrderAction.EXCLUDE, reason="its disk is gone", grace_s=1.0, excluded=(1,))
            if is_due
            else None
        )

    def order_agreed(self, order):
        self.notify(f"decided {order.action}")

    def workers_ended(self, how):
        self.notify(f"ended {how}")

    def notify(self, text):
        print(text, flush=True)  # noqa: T201 - the test reads it

    def helpers(self):
        return frozenset()

    def available_memory(self):
        return None

    def abort(self):
        """Do nothing."""


if __name__ == "__main__":
    try:
        sys.exit(
            launch(
                command_line.parse_run_options(sys.argv[1:], {}),
                Hooks(),
                logs=Path(f"logs{Path().stat().st_ino}"),
                quiet=True,
            )
        )
    except HoldfastError as error:
        sys.exit(f"{error}")
