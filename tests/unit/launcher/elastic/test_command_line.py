"""torchrun's command line with holdfast's options, log files, and interruptible waits."""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException

from holdfast.core.errors import InvalidValue, RendezvousUnreachable
from holdfast.launcher.elastic import command_line, interruptible_wait
from holdfast.launcher.elastic.command_line import (
    EnvironmentLogs,
    RunLogs,
    insert_bootstrap,
    parse_run_options,
)
from holdfast.launcher.elastic.interruptible_wait import (
    AgentSignals,
    WaitReporter,
    await_rendezvous,
    run_in_thread,
)

OPTIONS = {
    "--recorder": {"default": None},
    "--inject": {"action": "append", "default": []},
    "--run-dir": {},
}

COMMAND_LINES = [
    "train.py",
    "--standalone --nproc-per-node=4 train.py --lr 1e-3",
    "--nnodes 1:4 --nproc_per_node gpu --rdzv-backend c10d --rdzv-endpoint host:1 --rdzv-id j train.py",
    "--nnodes=2 --node_rank=1 --master_addr=a --master-port 7 --max-restarts 3 -m package.train --recorder off",
    "-r 3 -t 0:1,1:2 --log-dir logs --role worker --local-ranks-filter 0,1 --no-python ./run.sh -- --inject x",
    "--re 3 train.py",
]


def options(text):
    return parse_run_options(text.split(), OPTIONS)


@pytest.mark.parametrize("text", COMMAND_LINES)
def test_torchrun_arguments_are_parsed_as_by_torchrun(text):
    parsed = vars(options(text))
    words = [*parsed.pop("launch_options"), parsed["training_script"]]
    assert text.split()[: len(words)] == words
    assert {name: parsed.pop(name) for name in ("recorder", "inject", "run_dir")} == {
        "recorder": None,
        "inject": [],
        "run_dir": None,
    }
    assert parsed == vars(torchrun.parse_args(text.split()))


@pytest.mark.parametrize("arguments", ["", " -- a", " a train.py", " --lr 1"])
def test_words_before_the_script_are_kept(arguments):
    words = ["--nproc-per-node", "2", "--recorder=off"]
    assert options(f"{' '.join(words)} train.py{arguments}").launch_options == words
    assert options(f"{' '.join(words)} -- train.py{arguments}").launch_options == words


def test_holdfast_options_are_parsed_with_those_of_torchrun():
    settings = options(
        "--nproc-per-node 2 --inject a --recorder off --inject b train.py --inject c"
    )
    assert (settings.inject, settings.recorder, settings.training_script_args) == (
        ["a", "b"],
        "off",
        ["--inject", "c"],
    )


def test_a_parse_error_is_one_sentence():
    with pytest.raises(InvalidValue, match="invalid int value: 'x'") as error:
        options("--max-restarts x train.py")
    assert "\n" not in str(error.value)


def test_torchrun_environment_variables_apply(monkeypatch):
    monkeypatch.setenv("PET_NPROC_PER_NODE", "3")
    assert command_line.local_world_size(options("train.py")) == 3


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("-u", "train.py", "-m"), ("-u", "-m", command_line.BOOTSTRAP, "train.py", "-m")),
        (("-u", "-m", "train", "--x"), ("-u", "-m", command_line.BOOTSTRAP, "-m", "train", "--x")),
    ],
)
def test_the_bootstrap_precedes_the_script(before, after):
    assert insert_bootstrap(before) == after


# Logs


def environments(*ranks, restarts=0):
    return {
        at: {"RANK": str(rank), "TORCHELASTIC_RESTART_COUNT": str(restarts)}
        for at, rank in enumerate(ranks)
    }


def test_each_rank_of_each_generation_has_a_folder(tmp_path):
    logs = RunLogs(tmp_path, shown=None)
    envs = environments(4, 5)
    created = logs.reify(envs)
    assert created.stdouts == {
        at: str(tmp_path / f"generation0/rank{4 + at}/stdout.log") for at in (0, 1)
    }
    assert created.tee_stderrs == created.stderrs
    assert envs[1]["TORCHELASTIC_ERROR_FILE"] == created.error_files[1]
    assert str(tmp_path / "generation1/rank4") in logs.reify(environments(4, restarts=1)).stdouts[0]


def test_a_start_with_the_same_restart_count_does_not_overwrite_logs(tmp_path):
    logs = RunLogs(tmp_path, shown=None)
    folders = [logs.reify(environments(0)).stdouts[0] for _ in range(3)]
    assert [folder.removeprefix(f"{tmp_path}/").split("/")[0] for folder in folders] == [
        "generation0",
        "generation0.1",
        "generation0.2",
    ]


def test_only_the_selected_ranks_are_printed(tmp_path):
    settings = options(f"--local-ranks-filter 1 {__file__}")
    created = command_line.configure_logs(settings, tmp_path).reify(environments(0, 1))
    assert (set(created.stdouts), set(created.tee_stdouts), set(created.tee_stderrs)) == (
        {0, 1},
        {1},
        {1},
    )


@pytest.mark.parametrize(
    "arranged", ["--tee 3", "--redirects 1", "--log-dir logs", "--logs-specs other"]
)
def test_logs_configured_by_the_user_are_kept(tmp_path, arranged):
    assert command_line.configure_logs(options(f"{arranged} train.py"), tmp_path) is None


def test_environments_are_completed_before_the_logs_are_created(tmp_path):
    logs = EnvironmentLogs(
        DefaultLogsSpecs(str(tmp_path)), lambda variables: variables.update(MORE=variables["RANK"])
    )
    envs = environments(7, 8)
    assert set(logs.reify(envs).stdouts) == {0, 1}
    assert [variables["MORE"] for variables in envs.values()] == ["7", "8"]


# Waiting


def test_a_long_wait_is_reported(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(interruptible_wait.time, "monotonic", lambda: clock[0])
    printed = []
    reporter = WaitReporter(printed.append, "the others")
    for clock[0] in (1.0, 5.5, 6.0, 64.0, 66.0):
        reporter.tick()
    assert printed == ["waiting for the others for 6 s", "waiting for the others for 66 s"]


def test_an_exception_in_the_thread_is_raised_in_the_waiting_thread():
    with pytest.raises(ZeroDivisionError):
        run_in_thread(lambda: 1 / 0, lambda: None)


def test_a_signal_is_handled_while_a_thread_blocks():
    stuck = threading.Event()
    with AgentSignals("SIGUSR1", lambda: None), pytest.raises(SignalException) as raised:
        run_in_thread(stuck.wait, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    stuck.set()
    assert raised.value.sigval is signal.SIGUSR1
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


@pytest.mark.parametrize(
    ("second", "status", "printed"),
    [("SIGINT", 130, b"killed, abandoned"), ("SIGTERM", 0, b"")],  # Slurm sends SIGTERM twice
)
def test_a_second_signal_exits_immediately_unless_it_is_a_repeated_sigterm(second, status, printed):
    source = (
        "import os, signal\n"
        "from holdfast.launcher.elastic.interruptible_wait import AgentSignals\n"
        "signals = AgentSignals('SIGTERM,SIGINT', lambda: os.write(1, b'abandoned'))\n"
        "signals.kill = lambda: os.write(1, b'killed, ')\n"
        "signals.install()\n"
        "try: os.kill(os.getpid(), signal.SIGTERM)\n"
        f"except Exception: os.kill(os.getpid(), signal.{second})\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (status, printed)


def rendezvous(**settings):
    defaults = {
        "standalone": False,
        "nnodes": "2",
        "node_rank": 1,
        "rdzv_backend": "static",
        "rdzv_endpoint": "",
        "rdzv_conf": "timeout=0.2,read_timeout=0.2",
        "master_addr": "127.0.0.1",
        "master_port": 9,
    }
    return argparse.Namespace(**{**defaults, **settings})


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rdzv_endpoint": "127.0.0.1:9"},
        {"rdzv_backend": "c10d", "rdzv_endpoint": "host.invalid:9"},
    ],
    ids=["static", "endpoint", "c10d"],
)
def test_waiting_for_an_unreachable_rendezvous_times_out(settings, monkeypatch):
    monkeypatch.setattr(interruptible_wait, "_connection_error", lambda *_: "connection refused")
    monkeypatch.setattr(interruptible_wait.utils, "_matches_machine_hostname", lambda _: False)
    begun = time.monotonic()
    with pytest.raises(RendezvousUnreachable, match="connection refused") as error:
        await_rendezvous(rendezvous(**settings), lambda _: None)
    assert time.monotonic() - begun < 5
    assert error.value.exit_status == 2


@pytest.mark.parametrize(
    "settings",
    [
        {"node_rank": 0},
        {"standalone": True},
        {"nnodes": "1"},
        {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:9"},
        {
            "rdzv_backend": "c10d",
            "rdzv_endpoint": "elsewhere.invalid:9",
            "rdzv_conf": "store_type=file",
        },
        {"rdzv_backend": "etcd-v2", "rdzv_endpoint": "elsewhere.invalid:9"},
    ],
)
def test_a_rendezvous_on_this_node_is_not_awaited(settings, monkeypatch):
    monkeypatch.setattr(
        interruptible_wait, "_connection_error", lambda *_: pytest.fail("asked the network")
    )
    await_rendezvous(rendezvous(**settings), lambda _: None)


@pytest.mark.parametrize(
    "settings",
    [{"rdzv_conf": "timeout=soon"}, {"rdzv_endpoint": "host:port"}, {"rdzv_endpoint": "a b:1"}],
)
def test_an_invalid_rendezvous_is_rejected(settings):
    with pytest.raises(InvalidValue):
        await_rendezvous(rendezvous(**settings), lambda _: None)
