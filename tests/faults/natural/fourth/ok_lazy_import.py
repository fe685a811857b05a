"""Healthy: rank 0 imports its plotting plugin when it needs it first, which takes 14 s, while the others wait in a broadcast.

In the style of scripts that import heavy packages inside a function; the package is on a slow file system and fails once with OSError.
"""
# case: processes=2 ending=well causes=- ranks=- framework=ddp limit_s=120

import importlib
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

PLUGIN = '''
"""A plotting package with many modules, as read from a network file system."""
import os
import time

for module in range(28):
    time.sleep(0.5)
if not os.path.exists(os.environ["PLUGIN_MARK"]):
    open(os.environ["PLUGIN_MARK"], "w").close()
    raise OSError(116, "Stale file handle")


def ascii_plot(values, width=40):
    top = max(values)
    return "\\n".join("#" * max(1, int(width * value / top)) for value in values)
'''


def install_plugin():
    folder = tempfile.mkdtemp(prefix="site-packages-")
    with open(os.path.join(folder, "slowplot.py"), "w") as f:
        f.write(PLUGIN.replace("range(28)", "range(int(os.environ['PLUGIN_MODULES']))"))
    os.environ["PLUGIN_MARK"] = os.path.join(folder, "mark")
    sys.path.insert(0, folder)


def load_plugin(attempts=3):
    """Import the plugin; the first read after a fail-over of the server may fail."""
    for attempt in range(attempts):
        os.environ["PLUGIN_MODULES"] = "6" if attempt == 0 else "22"
        try:
            importlib.invalidate_caches()
            return importlib.import_module("slowplot")
        except OSError as error:
            print(f"import failed ({error}), trying again", flush=True)
            time.sleep(1)
    raise SystemExit("no plugin")


def report(history):
    plugin = load_plugin()
    print(plugin.ascii_plot(history), flush=True)
    return len(history)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        install_plugin()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 12)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    history = []
    for epoch in range(3):
        for _ in range(20):
            x = torch.rand(16, 12)
            loss = nn.functional.mse_loss(model(x), x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        history.append(loss.item())
        best = torch.tensor([0])
        if rank == 0:
            best[0] = report(history)
        dist.broadcast(best, src=0)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
