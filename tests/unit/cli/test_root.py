"""The root command: what it costs to import, what it lists, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from docs.generate import PAGES
from holdfast import cli
from holdfast.cli import ckpt
from holdfast.cli.command_table import TableGroup
from holdfast.core.errors import InternalError, TraceCorrupt

ROOT = Path(__file__).parents[3]
HEAVY = ("torch", "numpy", "rich")

PROBE = """
import json, sys
try:
    {code}
except SystemExit as end:
    assert not end.code, end.code
print("\\n" + json.dumps([name for name in {heavy} if name in sys.modules]))
"""


def imported_by(code, heavy=HEAVY):
    """The heavy packages that a fresh interpreter has imported after running ``code``."""
    program = [sys.executable, "-c", PROBE.format(code=code, heavy=heavy)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def ended(capsys, *arguments):
    """Exit status, stdout and stderr of one call of the command line in this process."""
    with pytest.raises(SystemExit) as end:
        cli.main(list(arguments))
    shown = capsys.readouterr()
    return end.value.code or 0, shown.out, shown.err


def test_importing_holdfast_imports_nothing_heavy():
    assert imported_by("import holdfast; dir(holdfast)") == []


def test_help_imports_nothing_heavy():
    assert imported_by("from holdfast.cli import main; main(['--help'])") == []


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_of_a_command_imports_no_torch(command):
    assert (
        imported_by(f"from holdfast.cli import main; main([{command!r}, '--help'])", ("torch",))
        == []
    )


def test_the_import_check_can_fail():
    assert imported_by("import torch", ("torch",)) == ["torch"]


@pytest.mark.parametrize("command", ckpt.COMMANDS)
def test_help_of_a_command_of_ckpt_imports_nothing_heavy(command):
    assert (
        imported_by(f"from holdfast.cli import main; main(['ckpt', {command!r}, '--help'])") == []
    )


@pytest.mark.parametrize(
    "module", [module for group in (cli, ckpt) for module, _ in group.COMMANDS.values()]
)
def test_every_command_of_the_table_is_there_and_documents_itself(module):
    found = import_module(module).command
    assert isinstance(found, click.Command)
    assert found.help


@pytest.mark.parametrize("group", [cli, ckpt], ids=["holdfast", "ckpt"])
def test_every_command_that_is_there_is_in_the_table(group):
    inside = Path(group.__file__).parent
    files = {path.stem for path in inside.glob("*.py")} | {
        path.parent.name for path in inside.glob("*/__init__.py")
    }
    found = {f"{group.__name__}.{file}" for file in files - {"__init__"}}
    modules = {module for module, _ in group.COMMANDS.values()}
    assert {each for each in found if hasattr(import_module(each), "command")} == modules


def test_the_page_of_commands_is_what_help_prints():
    page = (ROOT / "docs" / "commands.md").read_text()
    assert page.split() == PAGES["commands.md"]().split(), "run: make fix"


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_the_readme_names_every_command(command):
    assert f"`holdfast {command}" in (ROOT / "README.md").read_text()


def test_help_lists_every_command_with_its_line(capsys):
    status, out, _ = ended(capsys, "--help")
    assert status == 0
    for name, (_, line) in cli.COMMANDS.items():
        assert f"  {name} " in out
        assert line.split()[0] in out


def test_a_misspelt_command_gets_the_near_one(capsys):
    assert ended(capsys, "rnu") == (
        2,
        "",
        "holdfast: unknown command 'rnu'; did you mean run?\n",
    )


def test_a_misspelt_command_of_ckpt_gets_the_near_one(capsys):
    assert ended(capsys, "ckpt", "inspct") == (
        2,
        "",
        "holdfast: unknown command 'inspct'; did you mean inspect?\n",
    )


def test_a_misspelt_option_is_a_usage_error(capsys):
    status, out, err = ended(capsys, "--versoin")
    assert (status, out) == (2, "")
    assert "No such option" in err
    assert "Traceback" not in err


def test_no_command_at_all_shows_the_help(capsys):
    status, _, err = ended(capsys)
    assert status == 2
    assert "Commands:" in err


def test_python_minus_m_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("holdfast 0.")


def raising(error):
    def command():
        raise error

    return click.Command("explain", callback=command)


@pytest.fixture
def ending(monkeypatch, capsys):
    """Let `holdfast explain` be a command that raises or returns what the test wants."""

    def end(command):
        monkeypatch.setattr(TableGroup, "get_command", lambda *_: command)
        return ended(capsys, "explain")

    return end


def test_an_error_of_ours_is_its_sentence_and_status(ending):
    status, out, err = ending(raising(TraceCorrupt("a.trace")))
    assert (status, out) == (2, "")
    assert err == f"holdfast: {TraceCorrupt('a.trace')}\n"


@pytest.mark.parametrize("bug", [InternalError("two roots"), ZeroDivisionError("division by zero")])
def test_a_bug_of_ours_shows_its_traceback_and_claims_no_finding(ending, bug):
    status, _, err = ending(raising(bug))
    assert status == 3
    assert "Traceback" in err
    assert "this is a bug in holdfast" in err.splitlines()[-1]


def test_where_torch_is_missing_one_sentence_says_how_to_get_it(ending):
    status, _, err = ending(raising(ModuleNotFoundError("No module named 'torch'", name="torch")))
    assert status == 2
    assert err.startswith("holdfast: PyTorch is not installed in this environment")


@pytest.mark.parametrize(("returned", "status"), [(None, 0), (0, 0), (1, 1), (3, 3)])
def test_what_a_command_returns_is_the_exit_status(ending, returned, status):
    assert ending(click.Command("explain", callback=lambda: returned))[0] == status


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupt_ends_with_130(ending, stop):
    assert ending(raising(stop))[0] == cli.INTERRUPTED


BUSY = """
import atexit, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
import torch.distributed as dist

store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

def ask():
    while True:
        store.check(["x"])  # in C++ most of the time

threading.Thread(target=ask, daemon=True).start()
threading.Thread(target=lambda: (time.sleep(0.3), print("last words"))).start()
atexit.register(print, "at exit")
pool = ThreadPoolExecutor(1)
pool.submit(time.sleep, 0.1)  # its thread waits for more work until it is told that there is none
from holdfast.cli import main
sys.argv = ["holdfast", "explain", *sys.argv[1:]]
{end}
"""


@pytest.mark.parametrize(("asked", "status"), [("SYNC001", 0), ("SYNC999", 2)])
def test_a_thread_in_torchs_cpp_code_does_not_abort_the_exit(asked, status):
    command = [sys.executable, "-c", BUSY.format(end="main()"), asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status, done.stderr
    assert "last words\n" in done.stdout
    assert done.stdout.endswith("at exit\n")
    assert ("SYNC001" in done.stdout) is (status == 0)


def test_python_alone_aborts_at_exit():
    """Where this fails (Python 3.14 lets such threads hang instead), ``launcher/elastic/process_exit.py`` may go."""
    code = BUSY.format(end="main(sys.argv[1:])")
    done = subprocess.run(
        [sys.executable, "-c", code, "SYNC001"], capture_output=True, text=True, check=False
    )
    assert done.returncode == -6
    assert "terminate called without an active exception" in done.stderr
