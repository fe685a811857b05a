"""A rank that is idle until the file `go` exists; its argument selects what follows.

`ends`: exit with status 3. `takes`: allocate memory up to 98 % of the limit of the control group
in the second argument, wait 6 s, then allocate the rest.
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
limit_bytes = int(limit.read_text())
allocated = []
while int(used.read_text()) < 0.98 * limit_bytes:
    allocated.append(bytearray(b"x") * (8 << 20))
print("nearly full", flush=True)  # noqa: T201
time.sleep(6)
while True:
    allocated.append(bytearray(b"x") * (8 << 20))
