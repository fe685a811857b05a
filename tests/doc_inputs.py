"""What the code blocks of the documentation expect to exist: files and names; see doc_pages.py."""

#: Pages whose Python is complete.
OWN_NAMES = {"docs/layout.md", "docs/lint.md", "docs/memory.md", "docs/time.md"}
#: Page -> code that defines further names for its fragments.
MORE_NAMES = {
    "docs/checkpoints.md": "ddp = DistributedDataParallel(model)",
    "docs/collectives.md": """
statistics, everything, mine, weights, correct, histogram, counts = torch.ones(7, 8).unbind()
out_of_memory, error, path = False, None, "w.pt"
count, worst, loss_sum, evaluation, write_on_rank_0 = 8, 2.0, 3.0, dist.new_group(), Path("export").touch
torch.save(weights, path)
""",
    "docs/evaluation.md": "keep_if_best, log = print, print",
    "docs/frameworks.md": """
accelerator = SimpleNamespace(save_state=lambda folder: Path(folder).mkdir(parents=True))
""",
    "docs/heterogeneous.md": """
step = lambda samples: loss_function(model(torch.randn(samples, 4)), torch.zeros(samples).long())
model = DistributedDataParallel(model)
count_targets = lambda batch: len(batch[1])
loss_of = lambda model, batch: loss_function(model(batch[0]), batch[1])
engine = model
engine.set_gradient_accumulation_boundary = lambda last: None
engine.backward, engine.step = torch.Tensor.backward, optimizer.step
""",
    "docs/recovery.md": """
checkpoint = holdfast.Checkpoint("checkpoints", model=model, optimizer=optimizer, every="10m")
loop = holdfast.loop(loader, checkpoint, epochs=1)
model = torch.nn.Linear(4, 1)
""",
    "docs/run.md": "options, images, device = SimpleNamespace(num_workers=None), tensor, 'cpu'",
}
#: The log of a failed job.
LOG = "../golden/public_logs/driver-too-old/job.log"
#: The folder of stored checkpoints.
CHECKPOINTS = "../golden/checkpoints/stored"
#: Page -> file in its folder -> the file of ``tests/doc_files`` that it is a copy of.
FILES = {
    "docs/checklists.md": {
        "train.py": "save.txt",
        "holdfast-runs/r1/ledger.jsonl": "ledger.jsonl",
        "data/1.tar": LOG,
        "data/runs/1/log": LOG,
        "logs/job.log": LOG,
    },
    "docs/ckpt.md": {
        "step-300": f"{CHECKPOINTS}/accelerate_folder.tar.xz:accelerate_folder-fsdp2-sharded-2/saved",
        "src.pt": f"{CHECKPOINTS}/plain_files.tar.xz:plain_files-1/model.pt",
        "flipped.pt": f"{CHECKPOINTS}/plain_files.tar.xz:plain_files-1/model.pt",
        "plain/model.safetensors": f"{CHECKPOINTS}/plain_files.tar.xz:plain_files-1/model.safetensors",
        "torn": f"{CHECKPOINTS}/interrupted.tar.xz:interrupted-1/torn",
    },
    "docs/diagnose.md": {
        "slurm-1234.out": LOG,
        "logs/job.log": LOG,
        "stacks/1-rank0.txt": "stacks.txt",
        "evidence.tar.gz": LOG,
        "tmp/nccl_trace_rank_0": "flight_recorder.json",
    },
    "docs/env.md": {"run.sh": "deepspeed.txt"},
    "docs/first-hang.md": {"train.py": "save.txt", "src/train.py": "save.txt"},
    "docs/history.md": {"holdfast-runs/r1/ledger.jsonl": "ledger.jsonl"},
    "docs/json.md": {"job.log": LOG},
    "docs/lint.md": {
        "epochs.py": "epochs.txt",
        "prepare.py": "prepare.txt",
        "save.py": "save.txt",
        "walk.ipynb": "walk.json",
    },
    "docs/out-of-memory.md": {"train.log": "out_of_memory.log", "rank0.pickle": "snapshot.pickle"},
    "docs/plan.md": {
        "path/to/config.json": "config.json",
        "ds_config.json": "ds_config.json",
        "train.py": "sharded.txt",
    },
    "docs/report.md": {
        "logs/job.log": LOG,
        "slurm-42.out": LOG,
        "dumps/stacks.txt": "stacks.txt",
    },
}
#: What pages name that this machine does not have -> what is used in its place.
STAND_INS = {
    "s3://": "bucket/",
    "/data/": "data/",
    "/shared/": "shared/",
    "/tmp/": "tmp/",
    "/other/": "other/",
}
