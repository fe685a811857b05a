"""One rank of a probe: the plan in JSON on the command line, the outcome in JSON on standard output."""

import sys

import msgspec

from holdfast.runtime.probe import Plan, run

outcome = run(msgspec.json.decode(sys.argv[1], type=Plan))
assert "torch" not in sys.modules
sys.stdout.buffer.write(msgspec.json.encode(outcome))
