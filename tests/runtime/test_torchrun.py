"""torchrun's command line with ours, the logs, and what is said while we wait."""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from torch.distributed import run as torchs
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException

from holdfast.errors import BadValue, RendezvousUnreachable
from holdfast.runtime import patience, torchrun
from holdfast.runtime.patience import Signals, Waiting, await_rendezvous, in_thread
from holdfast.runtime.torchrun import CompletedLogs, RunLogs, behind_bootstrap, parse

OPTIONS = {"--recorder": {"default": None}, "--inject": {"action": "append", "default": []}, "--run-dir": {}}

COMMAND_LINES = [
    "train.py",
    "--standalone --nproc-per-node=4 train.py --lr 1e-3",
    "--nnodes 1:4 --nproc_per_node gpu --rdzv-backend c10d --rdzv-endpoint host:1 --rdzv-id j train.py",
    "--nnodes=2 --node_rank=1 --master_addr=a --master-port 7 --max-restarts 3 -m package.train --recorder off",
    "-r 3 -t 0:1,1:2 --log-dir logs --role worker --local-ranks-filter 0,1 --no-python ./run.sh -- --inject x",
    "--re 3 train.py",
]


def options(text):
    return parse(text.split(), OPTIONS)


@pytest.mark.parametrize("text", COMMAND_LINES)
def test_torchruns_arguments_mean_what_they_mean_to_torchrun(text):
    ours = vars(options(text))
    assert {name: ours.pop(name) for name in ("recorder", "inject", "run_dir")} == {
        "recorder": None, "inject": [], "run_dir": None
    }  # fmt: skip
    assert ours == vars(torchs.parse_args(text.split()))


def test_our_options_stand_among_torchruns():
    given = options("--nproc-per-node 2 --inject a --recorder off --inject b train.py --inject c")
    assert (given.inject, given.recorder, given.training_script_args) == (["a", "b"], "off", ["--inject", "c"])


def test_what_torch_cannot_parse_is_said_in_one_sentence():
    with pytest.raises(BadValue, match="invalid int value: 'x'") as error:
        options("--max-restarts x train.py")
    assert "\n" not in str(error.value)


def test_the_environment_of_torchrun_counts_too(monkeypatch):
    monkeypatch.setenv("PET_NPROC_PER_NODE", "3")
    assert torchrun.local_world_size(options("train.py")) == 3


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("-u", "train.py", "-m"), ("-u", "-m", torchrun.BOOTSTRAP, "train.py", "-m")),
        (("-u", "-m", "train", "--x"), ("-u", "-m", torchrun.BOOTSTRAP, "-m", "train", "--x")),
    ],
)
def test_the_bootstrap_stands_in_front_of_the_script(before, after):
    assert behind_bootstrap(before) == after


# Logs


def environments(*ranks, restarts=0):
    return {at: {"RANK": str(rank), "TORCHELASTIC_RESTART_COUNT": str(restarts)} for at, rank in enumerate(ranks)}


def test_each_rank_of_each_generation_has_a_folder(tmp_path):
    logs = RunLogs(tmp_path, shown=None)
    envs = environments(4, 5)
    made = logs.reify(envs)
    assert made.stdouts == {at: str(tmp_path / f"generation0/rank{4 + at}/stdout.log") for at in (0, 1)}
    assert made.tee_stderrs == made.stderrs
    assert envs[1]["TORCHELASTIC_ERROR_FILE"] == made.error_files[1]
    assert str(tmp_path / "generation1/rank4") in logs.reify(environments(4, restarts=1)).stdouts[0]


def test_a_start_that_is_no_restart_does_not_overwrite_logs(tmp_path):
    logs = RunLogs(tmp_path, shown=None)
    folders = [logs.reify(environments(0)).stdouts[0] for _ in range(3)]
    assert [folder.removeprefix(f"{tmp_path}/").split("/")[0] for folder in folders] == [
        "generation0", "generation0.1", "generation0.2"
    ]  # fmt: skip


def test_only_the_chosen_ranks_are_shown(tmp_path):
    given = options(f"--local-ranks-filter 1 {__file__}")
    made = torchrun.keep_logs(given, tmp_path).reify(environments(0, 1))
    assert (set(made.stdouts), set(made.tee_stdouts), set(made.tee_stderrs)) == ({0, 1}, {1}, {1})


@pytest.mark.parametrize("arranged", ["--tee 3", "--redirects 1", "--log-dir logs", "--logs-specs other"])
def test_logs_that_the_user_arranged_are_left_alone(tmp_path, arranged):
    assert torchrun.keep_logs(options(f"{arranged} train.py"), tmp_path) is None


def test_environments_are_completed_on_the_way_to_the_logs(tmp_path):
    logs = CompletedLogs(DefaultLogsSpecs(str(tmp_path)), lambda variables: variables.update(MORE=variables["RANK"]))
    envs = environments(7, 8)
    assert set(logs.reify(envs).stdouts) == {0, 1}
    assert [variables["MORE"] for variables in envs.values()] == ["7", "8"]


# Waiting


def test_what_is_waited_for_is_said_once_it_takes_long(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(patience.time, "monotonic", lambda: clock[0])
    said = []
    waiting = Waiting(said.append, "the others")
    for clock[0] in (1.0, 5.5, 6.0, 64.0, 66.0):
        waiting.tick()
    assert said == ["waiting for the others, since 6 s", "waiting for the others, since 66 s"]


def test_an_error_in_the_thread_is_raised_where_it_is_waited_for():
    with pytest.raises(ZeroDivisionError):
        in_thread(lambda: 1 / 0, lambda: None)


def test_a_signal_is_heard_while_a_thread_is_stuck():
    stuck = threading.Event()
    with Signals("SIGUSR1", lambda: None), pytest.raises(SignalException) as heard:
        in_thread(stuck.wait, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    stuck.set()
    assert heard.value.sigval is signal.SIGUSR1
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_the_second_signal_ends_the_process_at_once():
    source = (
        "import os, signal\n"
        "from holdfast.runtime.patience import Signals\n"
        "signals = Signals('SIGTERM', lambda: os.write(1, b'abandoned'))\n"
        "signals.kill = lambda: os.write(1, b'killed, ')\n"
        "signals.listen()\n"
        "try: os.kill(os.getpid(), signal.SIGTERM)\n"
        "except Exception: os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (143, b"killed, abandoned")


def rendezvous(**given):
    defaults = {"standalone": False, "nnodes": "2", "node_rank": 1, "rdzv_backend": "static", "rdzv_endpoint": "",
                "rdzv_conf": "timeout=0.2,read_timeout=0.2", "master_addr": "127.0.0.1", "master_port": 9}  # fmt: skip
    return argparse.Namespace(**{**defaults, **given})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"rdzv_endpoint": "127.0.0.1:9"},
        {"rdzv_backend": "c10d", "rdzv_endpoint": "host.invalid:9"},
    ],
    ids=["static", "endpoint", "c10d"],
)
def test_a_rendezvous_that_nobody_holds_is_given_up_in_time(given, monkeypatch):
    monkeypatch.setattr(patience, "_refusal", lambda *_: "connection refused")
    monkeypatch.setattr(patience.utils, "_matches_machine_hostname", lambda _: False)
    begun = time.monotonic()
    with pytest.raises(RendezvousUnreachable, match="connection refused") as error:
        await_rendezvous(rendezvous(**given), lambda _: None)
    assert time.monotonic() - begun < 5
    assert error.value.exit_status == 2


@pytest.mark.parametrize(
    "given",
    [
        {"node_rank": 0},
        {"standalone": True},
        {"nnodes": "1"},
        {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:9"},
        {"rdzv_backend": "c10d", "rdzv_endpoint": "elsewhere.invalid:9", "rdzv_conf": "store_type=file"},
        {"rdzv_backend": "etcd-v2", "rdzv_endpoint": "elsewhere.invalid:9"},
    ],
)
def test_a_rendezvous_of_our_own_is_not_waited_for(given, monkeypatch):
    monkeypatch.setattr(patience, "_refusal", lambda *_: pytest.fail("asked the network"))
    await_rendezvous(rendezvous(**given), lambda _: None)


@pytest.mark.parametrize(
    "given", [{"rdzv_conf": "timeout=soon"}, {"rdzv_endpoint": "host:port"}, {"rdzv_endpoint": "a b:1"}]
)
def test_a_rendezvous_that_makes_no_sense_is_refused(given):
    with pytest.raises(BadValue):
        await_rendezvous(rendezvous(**given), lambda _: None)
