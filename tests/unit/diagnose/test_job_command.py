"""The command of a job in its processes' command lines."""

import pytest

from holdfast.diagnose.attach.job_command import launch_options, script_command


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python -u train.py --lr 1", "train.py --lr 1"),
        ("/venv/bin/python3.11 -X dev -W ignore /job/train.py", "/job/train.py"),
        ("python -u -m pkg.train --lr 1", "-m pkg.train --lr 1"),
        ("python -u -m holdfast.recorder.bootstrap train.py -m 3", "train.py -m 3"),
        ("python -m holdfast.recorder.bootstrap -m pkg.train", "-m pkg.train"),
        ("python -c pass", ""),
        ("python", ""),
        ("", ""),
    ],
)
def test_the_script_has_its_arguments(line, expected):
    assert script_command(line.split()) == tuple(expected.split())


def test_a_secret_is_left_out():
    assert "hf_abcdefghijklmnopqrstuvwxyz012345" not in " ".join(
        script_command(["python", "train.py", "--token", "hf_abcdefghijklmnopqrstuvwxyz012345"])
    )


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        ("python /bin/torchrun --nproc-per-node 3 train.py --lr 1", "--nproc-per-node 3"),
        ("python -m torch.distributed.run --standalone train.py --lr 1", "--standalone"),
        ("python -m holdfast run --on-hang dump train.py --lr 1", "--on-hang dump"),
        ("/bin/holdfast run train.py --lr 1", ""),
        ("deepspeed --num_gpus 2 train.py --lr 1", "--nproc-per-node 4"),
        ("torchrun other.py", "--nproc-per-node 4"),
        ("", "--nproc-per-node 4"),
    ],
)
def test_options_are_those_of_torchrun(launcher, expected):
    script = ("train.py", "--lr", "1")
    assert launch_options(launcher.split(), script, 4) == tuple(expected.split())
    assert launch_options((), script, None) == ()
