"""Chinese wordings of programs and of the C library lead to the same causes as the English ones."""

from __future__ import annotations

import pytest

from tests.unit.diagnose.test_log_rules import verdict


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("[rank1]: [ERROR] NCCL操作超时", "watchdog-timeout-straggler"),
        ("[rank1]: RuntimeError: 进程组初始化失败", "master-unreachable"),
        ("[rank1]: RuntimeError: CUDA 显存不足", "gpu-oom-all-ranks"),
        ("OSError: [Errno 98] 地址已在使用", "port-in-use"),
        (
            "n1:5:9 [0] NCCL WARN Connect to 10.0.0.2<4711> failed : 拒绝连接",
            "firewall-blocked-ports",
        ),
        (
            "n1:5:9 [0] NCCL WARN Connect to 10.0.0.2<4711> failed : 网络不可达",
            "network-interface-wrong",
        ),
        ("socket.gaierror: [Errno -2] 未知的名称或服务", "hostname-resolution"),
        ("OSError: [Errno 28] 设备上没有空间: '/ckpt/step_9.pt'", "checkpoint-folder-unusable"),
        ("OSError: [Errno 24] 打开的文件过多", "fd-limit"),
        ("run.sh: 第 3 行: fork: 资源暂时不可用", "process-limit"),
        ("run.sh: 第 3 行: 4711 段错误 python fit.py", "segfault-in-worker"),
    ],
)
def test_a_chinese_line_names_its_cause(line: str, cause: str) -> None:
    root = verdict(line + "\n").root
    assert root is not None
    assert root.cause == cause


def test_a_chinese_exception_keeps_its_rank_and_frame() -> None:
    root = verdict(
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/job/train.py", line 41, in step\n'
        "[rank1]:     use(x)\n"
        "[rank1]: TimeoutError: NCCL操作超时\n"
    ).root
    assert root is not None
    assert (root.subject.rank, root.subject.line) == (1, 41)
    assert "NCCL操作超时" in root.message


def test_the_end_of_training_is_read() -> None:
    assert verdict("step 1/3 loss 2\n训练已完成\n").root is None
