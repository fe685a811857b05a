import datetime as dt
import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

import torch.distributed as dist


@dataclass
class RunIdentity:
    name: str
    token: str
    directory: str

    @classmethod
    def create(cls, root, name):
        token = secrets.token_hex(4)
        stamp = dt.datetime.now().strftime("%Y%m%d-%H%M%S")
        return cls(name, token, str(Path(root) / f"{stamp}_{name}_{token}"))


def agree_on_run(root, name, config):
    """Rank 0 makes up the run and its directory; everybody gets the same identity or the same error."""
    shared = [None, None]
    if dist.get_rank() == 0:
        try:
            identity = RunIdentity.create(root, name)
            Path(identity.directory).mkdir(parents=True)
            with open(Path(identity.directory) / "config.json", "w") as f:
                json.dump({"config": config, "run": asdict(identity)}, f, indent=2)
            shared[0] = identity
        except OSError as error:
            shared[1] = str(error)
    dist.broadcast_object_list(shared, src=0)
    if shared[1] is not None:
        raise RuntimeError(f"no run directory: {shared[1]}")
    return shared[0]
