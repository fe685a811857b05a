"""The root command: its import cost, its list of commands, and its exit statuses."""

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
from holdfast.cli import ckpt, history
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
    """Return the heavy packages that a new interpreter has imported after running ``code``."""
    program = [sys.executable, "-c", PROBE.format(code=code, heavy=heavy)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def ended(capsys, *arguments):
    """Run the command line in this process; return exit status, stdout and stderr."""
    with pytest.raises(SystemExit) as end:
        cli.main(list(arguments))
    shown = capsys.readouterr()
    return end.value.code or 0, shown.out, shown.err


def test_importing_holdfast_imports_no_heavy_package():
    assert imported_by("import holdfast; dir(holdfast)") == []


def test_help_imports_no_heavy_package():
    assert imported_by("from holdfast.cli import main; main(['--help'])") == []


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_of_a_command_imports_no_torch(command):
    assert (
        imported_by(f"from holdfast.cli import main; main([{command!r}, '--help'])", ("torch",))
        == []
    )


def test_the_import_check_can_fail():
    assert imported_by("import sqlite3", ("sqlite3",)) == ["sqlite3"]


@pytest.mark.parametrize("command", ckpt.COMMANDS)
def test_help_of_a_ckpt_command_imports_no_heavy_package(command):
    assert (
        imported_by(f"from holdfast.cli import main; main(['ckpt', {command!r}, '--help'])") == []
    )


@pytest.mark.parametrize("command", history.COMMANDS)
def test_help_of_a_history_command_imports_no_heavy_package(command):
    assert (
        imported_by(
            f"from holdfast.cli import main; main(['history', {command!r}, '--help'])",
            ("sqlalchemy", "alembic", "torch", "numpy"),
        )
        == []
    )


@pytest.mark.parametrize(
    "module", [module for group in (cli, ckpt, history) for module, _ in group.COMMANDS.values()]
)
def test_every_command_of_the_table_exists_and_has_help(module):
    found = import_module(module).command
    assert isinstance(found, click.Command)
    assert found.help


@pytest.mark.parametrize("group", [cli, ckpt, history], ids=["holdfast", "ckpt", "history"])
def test_every_existing_command_is_in_the_table(group):
    inside = Path(group.__file__).parent
    files = {path.stem for path in inside.glob("*.py")} | {
        path.parent.name for path in inside.glob("*/__init__.py")
    }
    found = {f"{group.__name__}.{file}" for file in files - {"__init__"}}
    modules = {module for module, _ in group.COMMANDS.values()}
    assert {each for each in found if hasattr(import_module(each), "command")} == modules


def test_the_commands_page_matches_the_help():
    page = (ROOT / "docs" / "commands.md").read_text()
    assert page.split() == PAGES["commands.md"]().split(), "run: make fix"


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_the_readme_names_every_command(command):
    assert f"`holdfast {command}" in (ROOT / "README.md").read_text()


def test_help_lists_every_command_with_its_summary(capsys):
    status, out, _ = ended(capsys, "--help")
    assert status == 0
    for name, (_, line) in cli.COMMANDS.items():
        assert f"  {name} " in out
        assert line.split()[0] in out


def test_a_misspelled_command_gets_a_suggestion(capsys):
    assert ended(capsys, "rnu") == (
        2,
        "",
        "holdfast: unknown command 'rnu'; did you mean run?\n",
    )


def test_a_misspelled_ckpt_command_gets_a_suggestion(capsys):
    assert ended(capsys, "ckpt", "inspct") == (
        2,
        "",
        "holdfast: unknown command 'inspct'; did you mean inspect?\n",
    )


def test_a_misspelled_option_is_a_usage_error(capsys):
    status, out, err = ended(capsys, "--versoin")
    assert (status, out) == (2, "")
    assert "No such option" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("arguments", [("bench",), ("chaos", "run", "sigkill-middle")])
def test_a_command_that_starts_ranks_requires_torch(capsys, monkeypatch, arguments):
    options = import_module("holdfast.cli.general_options")
    monkeypatch.setattr(options, "find_spec", lambda _: None)
    expected = "PyTorch is not installed in this environment; install it with: pip install torch\n"
    assert ended(capsys, *arguments) == (2, "", f"holdfast: {expected}")


@pytest.mark.parametrize(("group", "words"), [("", ()), (" ckpt", ("ckpt",))])
def test_help_as_a_command_leads_to_the_option(capsys, group, words):
    assert ended(capsys, *words, "help") == (
        2,
        "",
        f"holdfast: unknown command 'help'; use: holdfast{group} --help\n",
    )


def test_a_script_as_a_command_leads_to_run(capsys):
    expected = "holdfast: unknown command 'train.py'; run a script with: holdfast run train.py\n"
    assert ended(capsys, "train.py") == (2, "", expected)


def test_without_a_command_the_help_is_shown(capsys):
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
def run_as_explain(monkeypatch, capsys):
    """Return a function that runs another command as `holdfast explain`."""

    def end(command):
        monkeypatch.setattr(TableGroup, "get_command", lambda *_: command)
        return ended(capsys, "explain")

    return end


def test_a_holdfast_error_gives_its_sentence_and_status(run_as_explain):
    status, out, err = run_as_explain(raising(TraceCorrupt("a.trace")))
    assert (status, out) == (2, "")
    assert err == f"holdfast: {TraceCorrupt('a.trace')}\n"


@pytest.mark.parametrize("bug", [InternalError("two roots"), ZeroDivisionError("division by zero")])
def test_an_internal_error_shows_its_traceback_and_status_3(run_as_explain, bug):
    status, _, err = run_as_explain(raising(bug))
    assert status == 3
    assert "Traceback" in err
    assert "this is a bug in holdfast" in err.splitlines()[-1]


def test_missing_torch_is_one_sentence(run_as_explain):
    status, _, err = run_as_explain(
        raising(ModuleNotFoundError("No module named 'torch'", name="torch"))
    )
    assert status == 2
    assert err.startswith("holdfast: PyTorch is not installed in this environment")


@pytest.mark.parametrize(("returned", "status"), [(None, 0), (0, 0), (1, 1), (3, 3)])
def test_the_result_of_a_command_is_the_exit_status(run_as_explain, returned, status):
    assert run_as_explain(click.Command("explain", callback=lambda: returned))[0] == status


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupt_ends_with_130(run_as_explain, stop):
    assert run_as_explain(raising(stop))[0] == cli.INTERRUPTED


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


@pytest.mark.parametrize(("code", "status"), [("SYNC001", 0), ("SYNC999", 2)])
def test_a_thread_in_torchs_cpp_code_does_not_abort_the_exit(code, status):
    command = [sys.executable, "-c", BUSY.format(end="main()"), code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == status, done.stderr
    assert "last words\n" in done.stdout
    assert done.stdout.endswith("at exit\n")
    assert ("SYNC001" in done.stdout) is (status == 0)


def test_plain_python_aborts_at_exit():
    """If this fails (in Python 3.14 such threads hang instead), ``launcher/elastic/process_exit.py`` is obsolete."""
    code = BUSY.format(end="main(sys.argv[1:])")
    done = subprocess.run(
        [sys.executable, "-c", code, "SYNC001"], capture_output=True, text=True, check=False
    )
    assert done.returncode == -6
    assert "terminate called without an active exception" in done.stderr
