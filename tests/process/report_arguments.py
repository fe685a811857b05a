"""Write the arguments and environment to the folder FOLDER; exit with --status."""

import json
import os
import sys
from pathlib import Path

NAMES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "ROLE_NAME",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "OMP_NUM_THREADS",
)

report = {
    "name": __name__,
    "arguments": sys.argv[1:],
    "path": sys.path[0],
    "script": Path(sys.argv[0]).name,
    "environment": {name: os.environ.get(name) for name in NAMES},
}
(Path(sys.argv[1]) / f"rank{os.environ['RANK']}.json").write_text(json.dumps(report))
if "--status" in sys.argv:
    sys.exit(int(sys.argv[sys.argv.index("--status") + 1]))
