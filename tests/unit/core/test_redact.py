"""Secrets are removed in every form and at every block boundary; ordinary log lines are unchanged."""

from __future__ import annotations

import io

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.redaction.redact import Redactor
from holdfast.core.redaction.text_blocks import BLOCK_BYTES, MAX_LINE_BYTES
from tests.hypothesis_profiles import examples
from tests.unit.core.fake_secrets import LINES, PEM

#: Lines of training logs that redaction must not change.
ORDINARY = """\
[rank0]: step 1200 loss 2.3456 lr 3.00e-04 tokens/s: 123456.7 tokens=1,048,576 mfu 41.2% grad_norm=0.93
[default3]:2026-01-01 10:00:00,123 - INFO - num_tokens=8192, max_tokens: 2048, eos_token_id=128001 pad_token='</s>'
node1:123:456 [0] NCCL INFO comm 0x55d0c0ffee rank 3 nranks 8 cudaDev 3 busId 1b000 commId 0x9f8e7d6c5b4a3210 - Init
node1:123:456 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.1.2.3<0>
[rank3]:[E1121 13:40:11.123 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=4021, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600044 ms.
  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1751, in _wrapped_call_impl
RuntimeError: Error(s) in loading state_dict: Missing key(s) in state_dict: "model.layers.12.attn.q_proj.weight".
KeyError: 'model.layers.0.self_attn.rotary_emb.inv_freq'
torch 2.13.0 commit cf30153c4c131c8164ee7798e5022d810682e2cb, tree 0123456789abcdef0123456789abcdef01234567
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5f3c8e1a-9b7d-4c2e-8f60-1a2b3c4d5e6f)
NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, name=python, GPU has fallen off the bus.
TOKENIZERS_PARALLELISM=false MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 NCCL_DEBUG=INFO SLURM_JOB_ID=123456
store based barrier key: store_based_barrier_key:1, tcp://10.0.0.1:29500, key=default_pg/0//cpu//0
forward pass: 12.3 ms, backward_pass=0.145, first_pass=True; secret sauce; the password is asked for elsewhere
wandb: Run data is saved locally in /workspace/wandb/run-20260101_100000-a1b2c3d4; git commit unknown
100%|██████████| 500/500 [00:10<00:00, 48.01it/s]\r 50%|#####     | 1/2
python train.py --tokenizer gpt2 --max-tokens 2048 --text-key text --image_token '<image>' --keys a b
valid_tokens=4096 invalid_token_rate: 0.1 access_tokens: 17 cache_key=layers/12 sort_key: loss
wrong password is rejected; the password is not set. the secret is out; token is too long: 17 of 16; key is (0, 1)
the key is model.layers.0.self_attn.q_proj.weight; a password was given, passwords: none; api key is missing
register_forward_hook hooks/register_forward_pre_hook.py webhook/handlers_of_everything.py $PWD /tmp; pwd: /job
x@self.weight.T, a @ b; user@node1 ssh git@host; train.py:41:12 Signature: (x, y) author: nobody
"""


def redact_stream(redactor, data, *, sizes=(1 << 20,)):
    """Return the redacted text, with reads of these sizes in rotation."""

    class Source(io.BytesIO):
        number = 0

        def read(self, size=-1):
            self.number += 1
            return super().read(min(size, sizes[self.number % len(sizes)]))

    return b"".join(redactor.redact_stream(Source(data)))


@pytest.mark.parametrize("kind", LINES)
def test_secret_is_redacted(kind):
    line, secrets = LINES[kind]
    redactor = Redactor()
    clean = redactor.redact_text(f"before\n{line}\nafter\n")
    assert [secret for secret in secrets if secret in clean] == []
    assert sum(redactor.counts.values()) >= 1
    assert clean.startswith("before\n")
    assert clean.endswith("\nafter\n")


@pytest.mark.parametrize("kind", LINES)
def test_secret_is_redacted_with_fixed_length(kind):
    line, secrets = LINES[kind]
    clean = Redactor().redact_text(line, fixed=True)
    assert [secret for secret in secrets if secret in clean] == []
    assert len(clean.encode()) == len(line.encode())


@pytest.mark.parametrize("kind", LINES)
def test_secret_is_redacted_in_json(kind):
    line, secrets = LINES[kind]
    data = msgspec.json.encode({"rank": 3, "text": line}) + b"\n"
    clean = Redactor().redact_bytes(data)
    assert [secret for secret in secrets if secret.encode() in clean] == []
    assert clean.startswith(b'{"rank":3,"text":"')


def test_there_are_at_least_fifty_kinds():
    assert len(LINES) >= 50


def test_ordinary_logs_are_unchanged():
    redactor = Redactor()
    assert redactor.redact_text(ORDINARY) == ORDINARY
    assert redactor.counts == {}


def test_redaction_is_idempotent():
    text = "\n".join(line for line, _ in LINES.values())
    once = Redactor().redact_text(text)
    redactor = Redactor()
    assert redactor.redact_text(once) == once
    assert redactor.counts == {}


def test_private_key_is_redacted_between_lines_of_other_ranks():
    text, secrets = PEM
    lines = [
        f"[rank1]: {line}\n[rank0]: step {n} done, loss 0.5\n"
        for n, line in enumerate(text.split("\n"))
    ]
    clean = Redactor().redact_text("".join(lines))
    assert [secret for secret in secrets if secret in clean] == []
    assert clean.count("loss 0.5\n") == len(lines)


@settings(max_examples=examples(60))
@given(
    before=st.integers(0, 3000),
    kind=st.sampled_from(sorted(LINES)),
    sizes=st.lists(st.integers(1, 5000), min_size=1),
)
def test_secret_is_redacted_at_any_block_boundary(before, kind, sizes):
    line, secrets = LINES[kind]
    filler = b"[rank0]: step 1 loss 2.5\n" * (BLOCK_BYTES // 25 - 60)
    data = filler + b"x" * before + b"\n" + line.encode() + b"\n" + filler[:5000]
    redactor = Redactor()
    clean = redact_stream(redactor, data, sizes=[size * 50 for size in sizes])
    assert [secret for secret in secrets if secret.encode() in clean] == []
    assert clean.startswith(filler)
    assert clean.endswith(filler[:5000])


@settings(max_examples=examples(40))
@given(st.integers(-800, 100))
def test_private_key_is_redacted_at_any_block_boundary(offset):
    text, secrets = PEM
    data = b"y" * (BLOCK_BYTES + offset) + b"\n" + text.encode() + b"\nend\n"
    clean = redact_stream(Redactor(), data)
    assert [secret for secret in secrets if secret.encode() in clean] == []
    assert clean.endswith(b"\nend\n")


@settings(deadline=None)
@given(st.binary(max_size=2000))
def test_any_bytes_are_accepted_and_fixed_keeps_the_length(data):
    assert len(Redactor(hosts=["node1"]).redact_bytes(data, fixed=True)) == len(data)
    Redactor(hosts=[]).redact_bytes(data)


def test_very_long_line_is_cut_and_marked():
    data = b"z" * (2 * (BLOCK_BYTES + MAX_LINE_BYTES)) + b"\nthe next line\n"
    clean = redact_stream(Redactor(), data)
    assert len(clean) < 1000
    assert b"left out" in clean
    assert clean.endswith(b"\nthe next line\n")


def test_zero_bytes_do_not_hide_secrets():
    line, (secret,) = LINES["hugging face"]
    clean = redact_stream(Redactor(), line.encode().replace(b"_", b"\0_\0"))
    assert secret.encode() not in clean


def test_pseudonyms_are_consistent():
    redactor = Redactor(users=["carol"])
    clean = redactor.redact_text(
        "/home/alice/a.py /Users/bob/b /home/alice/c.py /scratch/carol/run USER=carol /data/carolina"
    )
    assert (
        clean
        == "/home/user1/a.py /Users/u2_/b /home/user1/c.py /scratch/user3/run USER=user3 /data/carolina"
    )


def test_hosts_and_addresses_are_redacted_on_request():
    text = "gpu-node-17:12:13 [0] NCCL INFO Bootstrap : Using eth0:10.1.2.3<0>\nconnect to gpu-node-17.cluster.lan\n"
    assert Redactor().redact_text(text) == text
    clean = Redactor(hosts=[]).redact_text(text)
    assert "gpu-node-17" not in clean
    assert "10.1.2.3" not in clean
    assert "cluster.lan" not in clean
    assert "[0] NCCL INFO Bootstrap : Using eth0:" in clean
    for kept in (
        "bind 127.0.0.1 localhost",
        "2026-03-01 10:00:00,123 step",
        "GPU 0000:1b:00.0 (PCI:0000:1b:00): 79",
        "c10d::all_reduce_ std::vector",
        "a :: b",
        "ran 1:02:03",
    ):
        assert Redactor(hosts=[]).redact_text(kept) == kept
    for gone in (
        "2001:db8::17",
        "fe80::1%eth0",
        "::ffff:a17",
        "2001:0db8:0:0:0:0:0:17",
        "de:ad:be:ef:00:17",
    ):
        assert gone not in Redactor(hosts=[]).redact_text(f"from [{gone}]:29500 to {gone} ok")


# Records
