"""A rank that trains in peace until somebody writes into the file `go`; then it does what its argument says.

`ends`: it ends with status 3. `takes`: it takes memory until two percent of its control group's limit are left, waits
for a while, and takes the rest.
"""

import sys
import time
from pathlib import Path

import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
print("ready", flush=True)  # noqa: T201
while not Path("go").exists():
    time.sleep(0.1)
if sys.argv[1] == "ends":
    sys.exit(3)
group = Path(sys.argv[2])
limit, used = group / "memory.max", group / "memory.current"
if not limit.exists():
    limit, used = group / "memory.limit_in_bytes", group / "memory.usage_in_bytes"
most = int(limit.read_text())
held = []
while int(used.read_text()) < 0.98 * most:
    held.append(bytearray(b"x") * (8 << 20))
print("nearly full", flush=True)  # noqa: T201
time.sleep(6)
while True:
    held.append(bytearray(b"x") * (8 << 20))
