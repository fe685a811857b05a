"""Test holdfast with other versions of torch and Python: ``make versions ARGS="2.6.0 2.9.1@3.12"``.

Prints a row per version and writes it to the table in docs/compatibility.md. Exit status 1 if a
version fails. ``--quick`` omits the unit tests (2 to 4 minutes per version).
"""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from release.environments import FOLDER, ROOT, Version, ensure_environment, parse_version
from tests.faults.specimens.expected import EXPECTED, lines_accepted, place

DEFAULT = ("2.4.1", "2.6.0", "2.8.0", "2.9.1@3.12", "2.11.0@3.13", "2.13.0", "2.15.0")
PAGE = ROOT / "docs/compatibility.md"
HEAD = (
    "| torch | Python | compiled recorder | hang is named | healthy job: compiled, Python recorder "
    "| unit tests | tested |"
)
ROW = re.compile(r"^\| (?P<torch>\d[^ ]*) \| (?P<python>\d[^ ]*) \|.*$", re.MULTILINE)
SPECIMEN = "ddp_rank_sleeps"
PROCESSES = "4"
RUN_LIMIT_S = 180
TESTS_LIMIT_S = 1800
CHECKPOINT_TESTS = ("checkpoint", "emergency", "resume", "several_ranks", "versions")
COLLECTIVES_TESTS = ("coalesced", "metric_states", "shared_memory", "timeouts")
#: They test what uses private interfaces of torch.
TESTS = (
    "tests/unit/recorder",
    "tests/unit/launcher/elastic",
    "tests/unit/training/callbacks",
    *(f"tests/unit/training/checkpoint/test_{name}.py" for name in CHECKPOINT_TESTS),
    *(f"tests/unit/training/collectives/test_{name}.py" for name in COLLECTIVES_TESTS),
    "tests/unit/training/collectives/groups",
    "tests/unit/training/test_in_process_restart.py",
    "tests/process/test_in_process_restart.py",
)
YES, NO = "yes", "**no**"


class Check:
    """The checks of one environment; ``problems`` has the output of those that failed."""

    def __init__(self, interpreter: Path, folder: Path) -> None:
        self._python, self._folder = str(interpreter), folder
        self._environment = os.environ | {
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "HOLDFAST_CACHE": str(interpreter.parent.parent / "holdfast-cache"),
            "HOLDFAST_RUN_DIR": str(folder / "runs"),
        }
        self.problems: list[str] = []

    def _run(self, limit_s: float, *arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [self._python, *arguments],
                cwd=ROOT,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired as error:
            output = (error.stdout or b"").decode(errors="replace")
            return subprocess.CompletedProcess(arguments, 124, f"{output}\nafter {limit_s:g} s")

    def _judge(self, success: bool, output: str, text: str = YES) -> str:  # noqa: FBT001
        if not success:
            self.problems.append(output)
        return text if success else NO

    def compiled_recorder(self) -> str:
        """Compile the recorder, if it is not in the cache, and test it."""
        done = self._run(RUN_LIMIT_S, "-m", "holdfast.recorder.build")
        return self._judge(done.stdout.rstrip().endswith(".so"), done.stdout)

    def hang(self) -> str:
        """Run a job in which a rank hangs; the verdict must name its rank and line."""
        report = self._folder / "report.json"
        done = self._launch("--json-report", str(report), str(place(SPECIMEN)))
        root = json.loads(report.read_text())["verdict"]["root"] if report.exists() else None
        expected, subject = EXPECTED[SPECIMEN], (root or {}).get("subject", {})
        named = (
            root is not None
            and root["cause"] in expected.causes
            and subject["rank"] in expected.ranks
            and subject["line"] in lines_accepted(SPECIMEN)
        )
        where = f"rank {subject.get('rank')}, line {subject.get('line')}"
        return self._judge(named, done.stdout, where)

    def healthy(self, recorder: str) -> str:
        """Run a healthy job with this recorder."""
        done = self._launch("--recorder", recorder, str(place(SPECIMEN)), "--healthy")
        return self._judge(
            done.returncode == 0 and f"recorder {recorder}" in done.stdout, done.stdout
        )

    def _launch(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        options = ("--standalone", "--nproc-per-node", PROCESSES, "--max-restarts", "0")
        command = ("-m", "holdfast", "run", *options, "--act-after", "5s", *arguments)
        return self._run(RUN_LIMIT_S, *command)

    def unit_tests(self) -> str:
        """Run the tests of what uses private interfaces of torch."""
        select = ("-m", "not matrix and not gpu", "-q", "-p", "no:cacheprovider", "-W", "default")
        parallel = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")  # as `make test`
        done = self._run(TESTS_LIMIT_S, "-m", "pytest", *select, *parallel, *TESTS)
        summary = re.findall(r"(\d+) (passed|failed|skipped|error)", done.stdout.splitlines()[-1])
        text = ", ".join(f"{count} {result}" for count, result in summary)
        if done.returncode:
            self.problems.append(done.stdout)
        return text or NO


def check_version(version: Version, *, quick: bool) -> tuple[str, list[str]]:
    """Return the row of this version, and the output of the checks that failed."""
    with TemporaryDirectory() as folder:
        check = Check(ensure_environment(version), Path(folder))
        cells = (
            version.torch,
            version.python,
            check.compiled_recorder(),
            check.hang(),
            f"{check.healthy('native')}, {check.healthy('python')}",
            "not run" if quick else check.unit_tests(),
            f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}",
        )
    return f"| {' | '.join(cells)} |", check.problems


def write_row(page: Path, row: str) -> None:
    """Replace the row of this version in the table of ``page``, or insert it in order."""
    text = page.read_text(encoding="utf-8")
    rows = {_row_version(found[0]): found[0] for found in ROW.finditer(text)} | {
        _row_version(row): row
    }
    ordered = [rows[version] for version in sorted(rows, key=lambda each: each.sort_key)]
    head, _, rest = text.partition(f"{HEAD}\n")
    after = re.sub(r"\A(\|.*\n)*", "", rest)
    line = re.sub(r"[^|]+", " --- ", HEAD)
    page.write_text("\n".join([f"{head}{HEAD}", line, *ordered, after]), encoding="utf-8")


def _row_version(row: str) -> Version:
    found = ROW.match(row)
    assert found is not None, row
    return Version(found["torch"], found["python"])


def main(arguments: Sequence[str]) -> int:
    """Check the versions and return the exit status."""
    print(f"environments: {FOLDER}\n{HEAD}", flush=True)
    failures: list[str] = []
    versions = [text for text in arguments if text != "--quick"] or DEFAULT
    for version in map(parse_version, versions):
        row, problems = check_version(version, quick="--quick" in arguments)
        print(row, flush=True)
        write_row(PAGE, row)
        failures += [f"torch {version.torch}: {problem}" for problem in problems]
    print("\n\n".join(failures), file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
