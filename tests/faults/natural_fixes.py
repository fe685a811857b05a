"""The repair of each program in ``natural/``, as text replacements: proof that the marked fault is the only one."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "natural"

FIXES: dict[str, tuple[tuple[str, str], ...]] = {
    "ddp_rank0_evaluates": (
        ("if rank == 0:  # ALSO\n            acc", "if True:\n            acc"),
    ),
    "fsdp2_rank0_state_dict": (("if rank == 0:  # ALSO\n        save", "if True:\n        save"),),
    "lightning_sync_dist_rank0": (("if self.trainer.is_global_zero:", "if True:"),),
    "mingpt_fewer_samples_last_rank": (("16 + 1723", "16 + 1792"),),
    "ddp_gather_31_of_30": (("3 * 63 - 1", "3 * 63"),),
    "nanogpt_world_size_5": (("\nworld_size = 5", "\nworld_size = 4"),),
    "ddp_store_port_in_use": (
        ("STORE_PORT = 29741", "STORE_PORT = 29742"),
        ("EARLIER_JOB % STORE_PORT", "EARLIER_JOB % 29741"),
        ('connect_ex(("127.0.0.1", STORE_PORT))', 'connect_ex(("127.0.0.1", 29741))'),
    ),
    "pipeline_wrong_recv_peer": (
        (
            "self.index - 1 if self.index % 2 == 0 or self.index < 2 else self.index - 2",
            "self.index - 1",
        ),
    ),
    "accelerate_local_early_stopping": (("if stopper.step(val):", "if False:"),),
    "trainer_prints_and_exits": (('{"txt": self', '{"text": self'),),
}


def fixed_text(name: str) -> str:
    """Return the program without its fault."""
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    for old, new in FIXES[name]:
        assert text.count(old) == 1, f"{name}: {old!r} occurs {text.count(old)} times"
        text = text.replace(old, new)
    return text
