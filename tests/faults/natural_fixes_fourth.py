"""The repair of each program in ``natural/fourth/``: see ``natural_fixes``."""

from __future__ import annotations

FIXES: dict[str, tuple[tuple[str, str], ...]] = {
    "detr_num_boxes": (
        (
            '            return (outputs["logits"].sum()',
            '            self.world_num_boxes(targets)\n            return (outputs["logits"].sum()',
        ),
    ),
    "asr_layerdrop": (("1: 0.1", "1: 0.0"),),
    "metric_list_states": (
        (
            "        if tumour.sum() == 0:  # GUILTY\n            continue  # ALSO\n",
            "        if tumour.sum() == 0:\n            tumour[0] = 1.0\n",
        ),
    ),
    "slurm_requeue_signal": (
        (
            "    if interrupted:  # GUILTY",
            (
                "    flag = torch.tensor([int(interrupted)])\n"
                "    dist.all_reduce(flag, op=dist.ReduceOp.MAX)\n"
                "    if flag.item():"
            ),
        ),
    ),
    "nanogpt_latest_snapshot": (("(20, 40, 60) if rank != 3 else (20, 40)", "(20, 40, 60)"),),
    "async_save_barrier": (
        ("        dist.barrier()  # GUILTY", "        dist.barrier(group=self.group)"),
        (
            "self.folder, self.rank = folder, rank\n",
            "self.folder, self.rank = folder, rank\n        self.group = dist.new_group()\n",
        ),
    ),
    "accelerate_trigger_indented": (
        (
            "            return self.accelerator.check_trigger()  # ALSO\n        return False  # ALSO",
            "        return self.accelerator.check_trigger()",
        ),
    ),
    "trainer_time_budget": (
        (
            "        if time.monotonic() > self.end:  # GUILTY",
            (
                "        late = torch.tensor([int(time.monotonic() > self.end)])\n"
                "        torch.distributed.all_reduce(late, op=torch.distributed.ReduceOp.MAX)\n"
                "        if late.item():"
            ),
        ),
    ),
    "lightning_empty_outputs": (
        (
            "            return  # ALSO",
            "            self.predictions.append(torch.tensor(0.0))",
        ),
    ),
    "vlm_text_only_batch": (("if not (rank == 1 and step == 23):", "if True:"),),
    "replica_exchange": (
        (
            "    dist.send(mine, dst=partner)  # GUILTY\n    dist.recv(theirs, src=partner)  # ALSO\n",
            "    request = dist.isend(mine, dst=partner)\n    dist.recv(theirs, src=partner)\n    request.wait()\n",
        ),
    ),
    "shard_index_locks": (
        (
            '    with file_lock("index"):  # ALSO\n        index = read_index()\n        time.sleep(0.3)\n        with file_lock("shards"):  # ALSO\n',
            '    with file_lock("shards"):\n        index = read_index()\n        time.sleep(0.3)\n        with file_lock("index"):\n',
        ),
    ),
    "pesq_pool_worker": (("seconds = 14 if (epoch, i) == (1, 7) else 1", "seconds = 1"),),
    "artifact_pool_nested": (
        (
            "[self.executor.submit(self._download_entry, *item) for item in self.files.items()]",
            "[self.entries.submit(self._download_entry, *item) for item in self.files.items()]",
        ),
        (
            "        self.executor = ThreadPoolExecutor(",
            '        self.entries = ThreadPoolExecutor(threads, thread_name_prefix="entry")\n        self.executor = ThreadPoolExecutor(',
        ),
    ),
    "vocab_store_key": (
        (
            "            with open(path) as f:\n                return json.load(f)  # GUILTY",
            '            store.set("path", path)\n            with open(path) as f:\n                return json.load(f)',
        ),
    ),
    "moe_zero_tokens": (
        (
            "            return  # ALSO",
            "            self.model(torch.empty(0, DIM))\n            return",
        ),
    ),
    "share_config_swallowed": (
        (
            "lambda step: 0.5 * (1 - math.cos(math.pi * min(1.0, step / cycle)))  # ALSO",
            "linear_beta if cycle > math.pi else None",
        ),
    ),
    "tp_sampler_per_rank": (
        ("num_replicas=world, rank=rank, shuffle=False", "num_replicas=1, rank=0, shuffle=False"),
    ),
    "wds_open_shards": (
        (
            "        if name not in self.handles:\n",
            "        if name not in self.handles:\n            for each in self.handles.values():\n                each.close()\n            self.handles.clear()\n",
        ),
    ),
    "lightning_walltime_exit": (("{0: 400, 1: 25}", "{0: 4000, 1: 2500}"),),
    "features_half_written": (
        ('with open(path, "wb") as f:  # ALSO', 'with open(path + ".tmp", "wb") as f:'),
        (
            "            time.sleep(0.15)  # a home directory on NFS\n",
            '            time.sleep(0.15)  # a home directory on NFS\n    os.replace(path + ".tmp", path)\n',
        ),
    ),
    "results_db_locked": (
        ("sqlite3.connect(DATABASE, ", "sqlite3.connect(DATABASE, timeout=60, "),
    ),
    "group_src_is_global": (("src=0, group=self.group", "src=self.ranks[0], group=self.group"),),
    "run_dir_timestamp": (
        (
            '        stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")  # GUILTY',
            '        box = [datetime.datetime.now().strftime("%Y%m%d-%H%M%S-%f")]\n        dist.broadcast_object_list(box, src=0)\n        stamp = box[0]',
        ),
    ),
}
