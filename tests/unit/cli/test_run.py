"""The command line of `holdfast run`: rejected requests, help, and the use of torch's parser."""

import subprocess
import sys

import pytest

from holdfast.cli import main
from holdfast.cli.run import OPTIONS
from holdfast.cli.torchrun_options import TORCHRUN_OPTIONS, torchrun_flags, torchrun_words
from holdfast.core import settings


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Run `holdfast run` in this process; return exit status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(["run", *arguments])
        return stop.value.code, *capsys.readouterr()

    return call


REFUSED = {
    ("missing.py",): ("missing.py", "no such file"),
    ("--no-python", "no-such-program"): ("no-such-program", "no such program"),
    ("--preset", "basci", "train.py"): ("preset 'basci'", "did you mean basic?"),
    ("--inject", "hung@rank=2,step=3", "train.py"): ("fault 'hung'", "did you mean hang?"),
    ("--inject", "hang@rank=2", "train.py"): ("hang@rank=2", "step"),
    ("--on-hang", "restrat", "train.py"): ("restrat", "did you mean restart"),
    ("--recorder", "natvie", "train.py"): ("natvie", "native"),
    ("--recorder", "off", "--inject", "hang@rank=1,step=1", "train.py"): ("--inject", "off"),
    ("--json-report", "no/folder.json", "train.py"): ("no/folder.json", "folder does not exist"),
    ("--run-dir", "train.py", "--recorder", "python", "train.py"): ("--run-dir", "train.py"),
    ("--nproc-per-node", "zero", "train.py"): ("--nproc-per-node", "zero"),
    ("--nproc-per-node", "0", "train.py"): ("--nproc-per-node", "0 is less than 1"),
    ("--nnodes", "3:1", "train.py"): ("--nnodes", "3:1"),
    ("--max-restarts", "-1", "train.py"): ("--max-restarts", "-1"),
    ("--local-ranks-filter", "one", "--recorder", "python", "train.py"): (
        "--local-ranks-filter",
        "one",
    ),
    ("--max-failures", "-1", "train.py"): ("--max-failures", "'-1' is not a whole number"),
    ("--max-idle", "some", "train.py"): ("--max-idle", "'some' is not a whole number"),
    ("--window", "soon", "train.py"): ("--window", "'soon' is not a duration"),
    ("--act-after", "soon", "train.py"): ("--act-after", "'soon' is not a duration"),
    ("--backoff=-1s", "train.py"): ("--backoff", "'-1s' is not a duration"),
    ("--max-restart-count", "1", "train.py"): (
        "unknown option --max-restart-count",
        "did you mean --max-restarts",
    ),
    ("--nproc-per-node", "2", "--lr", "0.1", "train.py"): (
        "options of the script follow its name",
    ),
    ("sh", "train.py"): ("sh is a program: name the script itself",),
    ("--nproc-per-node", "2"): ("training_script",),
    ("--nproc-pernode=2",): ("--nproc-pernode", "did you mean --nproc-per-node"),
    ("--nproc-pernode", "2", "train.py"): ("--nproc-pernode", "did you mean --nproc-per-node"),
    ("--nnodes", "1", "--jsonreport"): ("--jsonreport", "did you mean --json-report"),
    ("--inject", "hang@rank=2,step=3", "--nproc-per-node", "2", "train.py"): (
        "no rank 2 in a job of 2",
        "0 to 1",
    ),
    ("--json-report", ".", "train.py"): ("cannot be written",),
    ("--lang", "fr", "train.py"): ("--lang", "'fr'", "'zh'"),
    ("--prefix", "allways", "train.py"): ("allways", "did you mean always"),
    ("-",): ("cannot open -", "save it to a file"),
    ("/dev/null",): ("/dev/null", "not a file"),
    (".",): ("folder without __main__.py",),
    (sys.executable,): ("binary program", "add --no-python"),
    ("-m", "no_such_module"): ("no_such_module", "no such module"),
    ("-m", "--no-python", "train"): ("--no-python", "exclude each other"),
    ("--no-python", "train.py"): ("train.py", "./train.py"),
}


@pytest.mark.parametrize(
    ("arguments", "words"), REFUSED.items(), ids=[" ".join(each) for each in REFUSED]
)
def test_invalid_requests_are_rejected_in_one_sentence(run, tmp_path, arguments, words):
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("holdfast: ")
    assert all(word in line for word in words), line
    assert list(tmp_path.glob("**/rank*")) == []


def test_an_invalid_variable_is_rejected(run, monkeypatch):
    monkeypatch.setenv("HOLDFAST_STALL_S", "soon")
    status, _, err = run("train.py")
    assert status == 2
    assert "HOLDFAST_STALL_S" in err
    assert "'soon'" in err


def test_the_language_is_chosen_for_the_job_and_its_watcher(monkeypatch):
    from holdfast.launcher.elastic.command_line import parse_run_options

    monkeypatch.setenv("HOLDFAST_LANG", "en")
    parse_run_options(["--lang", "zh", "train.py", "--lang", "en"], OPTIONS)
    assert settings.current_environment()["HOLDFAST_LANG"] == "zh"


def test_help_lists_the_options_and_mentions_those_of_torchrun(run):
    status, out, _ = run("--help")
    assert status == 0
    assert "Accepts every torchrun argument" in " ".join(out.split())
    assert [flag for flag in (*OPTIONS, *torchrun_flags()) if flag not in out] == []
    assert run("--nnodes", "2", "--help") == (0, out, "")


def test_the_listed_options_of_torchrun_are_those_of_the_installed_torch():
    from torch.distributed.run import get_args_parser

    actions = [each for each in get_args_parser()._actions if each.option_strings]
    actual = {
        flag: each.nargs != 0 for each in actions for flag in each.option_strings if "_" not in flag
    }
    listed = {
        flag: bool(value)
        for rows in TORCHRUN_OPTIONS.values()
        for flags, value, _ in rows
        for flag in flags
    }
    assert {"-h": False, "--help": False, **listed} == actual


def test_limits_are_printed_with_their_origin(run, monkeypatch, tmp_path):
    (tmp_path / "mine.toml").write_text('# mine\nevaluation = "6s"\n')
    monkeypatch.setenv("HOLDFAST_TIMEOUTS", "mine.toml")
    monkeypatch.setenv("HOLDFAST_GRACE_S", "12")
    monkeypatch.delenv("HOLDFAST_STALL_S", raising=False)
    options = ("--preset", "conservative", "--act-after", "2m", "--backoff", "3s")
    status, out, _ = run(*options, "--limits")
    assert status == 0
    rows = {" ".join(line.split()) for line in out.splitlines()}
    assert rows >= {
        "HOLDFAST_STALL_S 30.0 s preset conservative",
        "HOLDFAST_GRACE_S 12.0 s environment",
        "HOLDFAST_ACT_AFTER 2 min 00 s --act-after",
        "HOLDFAST_ALONE_S 30 min 00 s default",
        "HOLDFAST_GROUP_TIMEOUT_S torch's own default",
        "--backoff 3.0 s --backoff",
        "--window 1 h 00 min default",
        "collectives: evaluation 6.0 s mine.toml, line 2",
        "collectives: training 10 min 00 s default",
    }
    assert run(*options, "--limits", "train.py") == (0, out, "")


def test_help_after_the_script_is_the_scripts(run):
    assert "missing.py" in run("missing.py", "--help")[2]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--preset", "help"],
        ["--preset=help"],
        ["--nnodes", "1", "--preset", "help"],
        ["--preset", "help", "train.py"],
    ],
)
def test_presets_are_explained(run, arguments, monkeypatch):
    for row in (settings.SETTINGS[name] for values in settings.PRESETS.values() for name in values):
        for name in (row.name, *row.aliases):
            monkeypatch.delenv(
                name, raising=False
            )  # a variable that is set is shown with its value, without the reason
    status, out, _ = run(*arguments)
    assert status == 0
    for preset, values in settings.PRESETS.items():
        assert preset in out
        release = settings.installed_torch()
        assert all(each.why in out for each in values.values() if each.applies_to(release))


def test_help_and_presets_need_no_torch():
    forbid = (
        "import sys; sys.modules['torch'] = None; from holdfast.cli import main; main(sys.argv[1:])"
    )
    for arguments in (["run", "--help"], ["run", "--preset", "help"]):
        subprocess.run([sys.executable, "-c", forbid, *arguments], check=True, capture_output=True)


def test_a_missing_script_is_wrong_usage(run):
    assert run()[0] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--recorder off --nnodes 1 train.py --recorder x", "--nnodes 1 train.py --recorder x"),
        ("--json-report=r --no-gate -r3 -- train.py", "-r3 -- train.py"),
        ("--of-a-later-torch 1 --serve 0 train.py", "--of-a-later-torch 1 --serve 0 train.py"),
    ],
)
def test_torchrun_gets_only_its_own_options(arguments, words):
    values = {flag: "metavar" in row for flag, row in OPTIONS.items()}
    assert torchrun_words(arguments.split(), values) == words.split()


@pytest.mark.slow
def test_torchrun_runs_the_job_if_torch_lacks_a_module_of_the_agent(tmp_path):
    moved = "torch.distributed.elastic.multiprocessing.subprocess_handler"
    program = f"import sys; sys.modules[{moved!r}] = None; from holdfast.cli import main; main()"
    options = ("run", "--spares", "off", "--no-python", "sh", "-c", "echo rank $RANK")
    command = [sys.executable, "-c", program, *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "rank 0\n"
    line = done.stderr.splitlines()[0]
    assert line.startswith("holdfast: this torch is not supported (")
