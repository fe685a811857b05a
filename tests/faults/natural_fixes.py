"""The repair of each program in ``natural/``, as text replacements: proof that the marked fault is the only one."""

from __future__ import annotations

from pathlib import Path

from tests.faults.natural_fixes_fourth import FIXES as FOURTH

FOLDER = Path(__file__).parent / "natural"

FIXES: dict[str, tuple[tuple[str, str], ...]] = {
    "ddp_rank0_evaluates": (
        ("if rank == 0:  # ALSO\n            acc", "if True:\n            acc"),
    ),
    "fsdp2_rank0_state_dict": (("if rank == 0:  # ALSO\n        save", "if True:\n        save"),),
    "lightning_sync_dist_rank0": (("if self.trainer.is_global_zero:", "if True:"),),
    "mingpt_fewer_samples_last_rank": (("16 + 1723", "16 + 1792"),),
    "ddp_gather_31_of_30": (("3 * 63 - 1", "3 * 63"),),
    "ddp_setup_sets_port": (
        ('os.environ["MASTER_ADDR"] = "localhost"', "pass"),
        ('os.environ["MASTER_PORT"] = "12355"', "pass"),
    ),
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
    "ddp_loader_worker_raises": (("self.blobs[163] = self.blobs[163][:200]", "pass"),),
    "hydra_like_wrapper": (('("en", "de", "fi")', '("en", "de", "fr")'),),
    "ddp_os_exit_in_alarm": (("time.sleep(20)", "time.sleep(1)"),),
    "http_without_timeout": (("client.log({", "print({"),),
    "trainer_callback_rsync": (("exec sleep 600", "exec sleep 1"),),
    "regex_in_collate": ((r'r"^(\w+\s?)+\.$"', r'r"^[\w\s]+\.$"'),),
    "resampling_never_ends": (("length = 13 ", "length = 3 "),),
    "prefetch_thread_died": (("if rank == 1:", "if False:"),),
    "ema_lock_twice": (("threading.Lock()", "threading.RLock()"),),
    "disk_full_torch_save": (('"/dev/full"', '"/dev/null"'),),
    "quota_safetensors": (("megabytes=1)", "megabytes=100)"),),
    "dataset_memory_error": (("(64, 4096)", "(64, 64)"),),
    "deepspeed_rank_killed": (("; kill -9", "; kill -0"),),
    "nanogpt_skips_nan_loss": (("weights.zero_()", "weights.fill_(1)"),),
    "accelerate_skips_failed_forward": (("= 131", "= 31"),),
    "barrier_if_best": (("        if val_loss < best:", "        if True:"),),
    "two_groups_order": (('if mesh.get_local_rank("tp") == 0:', "if True:"),),
    "new_group_for_evaluators": (
        ("    if rank in EVAL_RANKS:  # ALSO", "    if True:"),
        ("and evaluator is not None", "and rank in EVAL_RANKS"),
    ),
    "ddp_unused_head": (
        ("DDP(SegmentationNet())", "DDP(SegmentationNet(), find_unused_parameters=True)"),
    ),
    "ddp_vocabulary_per_rank": (("Vocabulary(shard)", "Vocabulary(LINES)"),),
    "dataset_flock_held": (("time.sleep(120)", "time.sleep(1)"),),
    "epochs_from_state_file": (("3 if rank == 2 else 2", "2"),),
    "tp_rank0_full_tensor": ((" and tp_mesh.get_rank() == 0:", ":"),),
    "deepspeed_rank0_save_checkpoint": (
        ("if rank == 0:  # ALSO", "if True:"),
        ("mean_loss < best_loss", "True"),
    ),
    "trainer_main_process_evaluates": (("if trainer.is_world_process_zero():", "if True:"),),
    "lightning_skips_manual_backward": (('float("inf")', "3.0"),),
    "accelerate_main_process_gathers": (("if accelerator.is_main_process:  # ALSO", "if True:"),),
    "fsdp2_assert_on_labels": (("labels[1] = -1", "labels[1] = 1"),),
    **FOURTH,
}


def fixed_text(name: str) -> str:
    """Return the program without its fault."""
    folder = FOLDER / "fourth" if name in FOURTH else FOLDER
    text = (folder / f"{name}.py").read_text(encoding="utf-8")
    for old, new in FIXES[name]:
        assert text.count(old) == 1, f"{name}: {old!r} occurs {text.count(old)} times"
        text = text.replace(old, new)
    return text
