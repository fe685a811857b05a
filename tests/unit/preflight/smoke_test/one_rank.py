"""One rank of a smoke test: the plan as JSON argument, the outcome as JSON on standard output."""

import sys

import msgspec

from holdfast.preflight.torch_smoke_test import SmokeTest, SmokeTestPlan

plan = msgspec.json.decode(sys.argv[1], type=SmokeTestPlan)
forked = "torch" in sys.modules  # tests/forked_programs.py
with SmokeTest(plan.rank) as process:
    outcome = process.run(plan)
assert "torch" not in sys.modules or forked
sys.stdout.buffer.write(msgspec.json.encode(outcome))
