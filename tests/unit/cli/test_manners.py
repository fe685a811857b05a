"""What every command has in common: general options, help, suggestions, outputs, unreadable paths."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import click
import pytest

from holdfast import __version__, cli
from holdfast.cli.bench_scaling import scaling
from holdfast.cli.general_options import OutputFile, OutputFolder, add_general_options, remark
from holdfast.cli.progress import Progress
from tests.unit.cli.in_process import run_holdfast

#: The longest list of options in a help text without titles.
MOST_OPTIONS = 18


def all_commands(group=cli.root, words=()):
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*words, name), command
        if isinstance(command, click.Group):
            yield from all_commands(command, (*words, name))


COMMANDS = {
    **dict(all_commands()),
    ("bench", "scaling"): add_general_options(scaling),
}
every_command = pytest.mark.parametrize("words", COMMANDS, ids=" ".join)


def options_of(words):
    return [each for each in COMMANDS[words].params if isinstance(each, click.Option)]


def outputs():
    """Yield each command with an option that names a file or folder to write."""
    for words in COMMANDS:
        for option in options_of(words):
            if isinstance(option.type, OutputFile | OutputFolder):
                yield words, option


@every_command
def test_every_command_prints_the_version(words):
    done = run_holdfast(*words, "-V")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"holdfast {__version__}\n", "")


@every_command
def test_every_command_accepts_the_general_options(words):
    done = run_holdfast(*words, "-q", "--quiet", "-v", "--verbose", "--no-color", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run_holdfast(*words, "--help").stdout


@every_command
def test_help_is_as_wide_as_the_terminal(words):
    narrow, wide = (
        run_holdfast(*words, "--help", COLUMNS=columns).stdout.splitlines()
        for columns in ("60", "400")
    )
    assert max(map(len, wide)) <= 400
    assert len(wide) <= len(narrow)
    assert any(len(line) > 80 for line in wide)


@every_command
def test_long_lists_of_options_are_grouped(words):
    text = run_holdfast(*words, "--help", COLUMNS="400").stdout
    sections = text.split("\n\n")
    longest = max(sum(line.startswith("  -") for line in each.splitlines()) for each in sections)
    assert longest <= MOST_OPTIONS, text


@every_command
def test_a_misspelled_option_gets_a_suggestion(words):
    names = [name for each in options_of(words) for name in each.opts if name.startswith("--")]
    name = "--nproc-per-node" if words == ("run",) else max(names, key=len)
    done = run_holdfast(*words, f"{name[:-2]}{name[-1]}{name[-2]}x")
    assert done.returncode == 2
    assert name in done.stderr
    assert "id you mean" in done.stderr


@every_command
def test_an_output_that_refuses_data_is_no_traceback(words):
    reader, writer = os.pipe()
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    no_space = "holdfast: cannot write the output: no space left on device\n"
    for number, status, shown in ((writer, 141, ""), (full, 3, no_space)):
        errors = io.StringIO()
        with (
            open(number, "w") as output,  # noqa: PTH123 - a descriptor
            redirect_stdout(output),
            redirect_stderr(errors),
            pytest.raises(SystemExit) as end,
        ):
            cli.main([*words, "--help"])
        assert (end.value.code, errors.getvalue()) == (status, shown)


def test_results_written_to_a_full_device_are_no_traceback():
    errors = io.StringIO()
    with (
        Path("/dev/full").open("w") as full,
        redirect_stdout(full),
        redirect_stderr(errors),
        pytest.raises(SystemExit) as end,
    ):
        cli.main(["explain", "--list"])
    assert end.value.code == 3
    assert errors.getvalue().startswith("holdfast: cannot write the output")


@pytest.mark.parametrize(
    ("words", "option"),
    list(outputs()),
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else each.name,
)
def test_outputs_are_checked_before_the_work(words, option, tmp_path):
    (tmp_path / "file").write_text("")
    done = run_holdfast(*words, option.opts[-1], tmp_path / "file" / "out")
    assert done.returncode == 2
    assert f"cannot open {tmp_path}/file/out" in done.stderr
    assert "choose a path in a writable folder" in done.stderr


#: Commands with arguments that read the path {}; the others read none, or only run folders.
READERS = {
    "env --scan {}",
    "checklist start --items {}",
    "checklist start --script {}",
    "checklist recovery --logs {}",
    "checklist running --run {}",
    "bench --baseline {}",
    "lint {}",
    "plan llama3.1-8b --on 8xH100 --links {}",
    "plan llama3.1-8b --on 8xH100 --failed {}",
    "plan --migrate {} --to fsdp2",
    "history timeline {}",
    "history index {}",
    "report {}",
    "diagnose {}",
    "ckpt inspect {}",
    "ckpt verify {}",
    "ckpt convert {} out --to torch",
    "ckpt seal {}",
    "ckpt diff {} {}",
    "serve {}",
    "top {}",
    "bench scaling {}",
}


@pytest.mark.parametrize("line", sorted(READERS))
def test_a_named_path_that_does_not_exist_is_an_error_with_a_suggestion(line, tmp_path):
    (tmp_path / "training.log").write_text("")
    done = run_holdfast(*line.replace("{}", "trainig.log").split(), folder=tmp_path)
    assert done.returncode == 2, done
    assert "trainig.log" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_a_missing_path_gets_a_suggestion(tmp_path):
    (tmp_path / "train.sh").write_text("")
    done = run_holdfast("env", "--scan", "trian.sh", folder=tmp_path)
    assert done.stderr == (
        "holdfast: cannot open trian.sh: there is no such file; did you mean train.sh?\n"
    )


def test_a_file_that_cannot_be_read_is_not_a_good_result(tmp_path):
    (tmp_path / "empty.sh").write_text("")
    done = run_holdfast("env", "--scan", "empty.sh", folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout.endswith("0 variables in 0 files: nothing was checked\n")


def test_verbose_prints_the_traceback_of_an_error(tmp_path):
    missing = tmp_path / "missing"
    assert "Traceback" in run_holdfast("env", "-v", "--scan", missing).stderr
    assert "Traceback" in run_holdfast("-v", "env", "--scan", missing).stderr
    assert "Traceback" not in run_holdfast("env", "--scan", missing).stderr


def test_quiet_prints_no_summary(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    assert run_holdfast("lint", "--no-cache", tmp_path).stderr
    assert run_holdfast("lint", "--no-cache", "-q", tmp_path).stderr == ""


def test_no_color_sets_the_variable_that_children_inherit():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("NO_COLOR", raising=False)

        @click.command()
        def command():
            click.echo(os.environ.get("NO_COLOR"))

        add_general_options(command)
        output = io.StringIO()
        with redirect_stdout(output):
            command.main(["--no-color"], standalone_mode=False)
        assert output.getvalue() == "1\n"
        patch.setenv("NO_COLOR", "")


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.mark.parametrize(("flag", "shown"), [("-q", False), ("-v", True)])
def test_quiet_shows_no_progress(flag, shown, monkeypatch):
    monkeypatch.setattr("holdfast.cli.progress.AFTER_S", 0.0)
    terminal = Terminal()

    @click.command()
    def command():
        with Progress(terminal) as progress:
            progress.tell(1, 1, "name")
        remark("done")

    with redirect_stderr(io.StringIO()) as errors:
        add_general_options(command).main([flag], standalone_mode=False)
    assert ("reading" in terminal.getvalue()) is shown
    assert errors.getvalue() == ("done\n" if shown else "")
