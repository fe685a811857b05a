import json
import os


class CommsTrace:
    """Process groups and communication calls recorded by one rank of a job."""

    def __init__(self, groups, calls):
        self.groups = groups
        self.calls = calls

    @classmethod
    def load(cls, trace_dir, rank):
        with open(os.path.join(trace_dir, f"rank{rank}.json")) as f:
            data = json.load(f)
        groups = {int(g["pg_name"]): g["ranks"] for g in data["process_groups"]}
        return cls(groups, data["calls"])
