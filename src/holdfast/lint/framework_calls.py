"""Tables of the calls of training frameworks that all ranks make, and of what their hooks get.

Sources: transformers 5.24 trainer.py and trainer_callback.py; trl 0.11.4 and 0.12.2
trainer/ppo_trainer.py (``PPOTrainer`` derives from transformers' since 0.12), 1.10 experimental;
accelerate 1.15 accelerator.py; lightning 2.6 fabric/fabric.py, pytorch/core/module.py and
pytorch/callbacks; pytorch-ignite 0.5.5 distributed/utils.py, engine and
metrics/metric.py.
"""

from __future__ import annotations

#: By class: the method, its parameters, and its kind as in
#: :class:`~holdfast.lint.abstract_domain.effects.Operation`.
METHODS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "accelerate.Accelerator": (
        # FSDP and tensor parallelism: the norm is that of all shards
        ("clip_grad_norm_", "parameters max_norm norm_type", "sharded"),
        ("save_model", "model save_directory", "sharded"),
    ),
    "lightning.Fabric": (
        ("clip_gradients", "module optimizer clip_val max_norm", "sharded"),
        ("load_raw", "path obj", "sharded"),
    ),
    "wrapped:configured": (
        ("generate", "inputs", "sharded"),
        ("clip_grad_norm_", "max_norm norm_type", "sharded"),
    ),
    "torch.distributed.fsdp": (("generate", "inputs", "forward"),),
    "wrapped:tp": (("generate", "inputs", "forward"),),
    "lightning.Module": (("manual_backward", "loss", "backward"),),
    # saves through Trainer.save_checkpoint, and agrees whether to
    "lightning.ModelCheckpoint": (
        ("on_train_batch_end", "trainer", "sharded"),
        ("on_train_epoch_end", "trainer", "sharded"),
        ("on_validation_end", "trainer", "sharded"),
    ),
    # reduce_boolean_decision
    "lightning.EarlyStopping": (
        ("on_train_epoch_end", "trainer", "collective"),
        ("on_validation_end", "trainer", "collective"),
    ),
    "transformers.Trainer": (
        # calls save_model on all ranks, and uploads on one
        ("push_to_hub", "commit_message", "sharded"),
        ("_save_checkpoint", "model trial", "sharded"),
    ),
    "trl.PPOTrainer": (
        ("step", "queries responses scores", "collective"),
        ("train", "", "collective"),
        # gathers the rewards
        ("log_stats", "stats batch rewards", "collective"),
        ("save_model", "output_dir", "sharded"),
        ("push_to_hub", "commit_message", "sharded"),
    ),
    # the metrics of a supervised evaluator are reduced, the model of a trainer runs backward
    # its loops build all samplers by rank, and reduce the metrics
    "mmengine.Runner": (
        ("train", "", "collective"),
        ("val", "", "collective"),
        ("test", "", "collective"),
    ),
    "mmengine.Loop": (("run", "", "collective"),),
    "ignite.Engine": (("run", "data max_epochs", "collective"),),
}
_TRL_TRAINERS = (
    "SFTTrainer", "DPOTrainer", "RewardTrainer", "GRPOTrainer", "KTOTrainer", "ORPOTrainer",
    "CPOTrainer", "BCOTrainer", "OnlineDPOTrainer", "RLOOTrainer", "PRMTrainer", "GKDTrainer",
    "NashMDTrainer", "XPOTrainer", "IterativeSFTTrainer", "PPOv2Trainer",
)  # fmt: skip
#: Trainers that trl moved to ``trl.experimental`` in 1.0, by their folder.
_TRL_EXPERIMENTAL = {
    "bco": "BCOTrainer", "cpo": "CPOTrainer", "gkd": "GKDTrainer", "nash_md": "NashMDTrainer",
    "online_dpo": "OnlineDPOTrainer", "orpo": "ORPOTrainer", "prm": "PRMTrainer",
    "xpo": "XPOTrainer", "gold": "GOLDTrainer", "minillm": "MiniLLMTrainer",
}  # fmt: skip
_LIGHTNING = ("lightning", "lightning.pytorch", "pytorch_lightning")
#: Classes: canonical name → name in the table of methods.
CLASSES: dict[str, str] = {
    **{f"trl.{name}": "transformers.Trainer" for name in _TRL_TRAINERS},
    **{
        f"trl.experimental.{folder}.{name}": "transformers.Trainer"
        for folder, name in _TRL_EXPERIMENTAL.items()
    },
    "trl.PPOTrainer": "trl.PPOTrainer",
    "trl.experimental.ppo.PPOTrainer": "trl.PPOTrainer",
    "ignite.engine.Engine": "ignite.engine",
    "ignite.engine.engine.Engine": "ignite.engine",
    **{
        f"{home}.callbacks.{module}{name}": f"lightning.{name}"
        for home in _LIGHTNING
        for module, name in (
            ("", "ModelCheckpoint"), ("", "EarlyStopping"),
            ("model_checkpoint.", "ModelCheckpoint"), ("early_stopping.", "EarlyStopping"),
        )
    },
}  # fmt: skip
#: Functions over all ranks of ignite, with their parameters.
IGNITE_CALLS = (
    ("all_reduce", "tensor op group"), ("all_gather", "tensor group"),
    ("broadcast", "tensor src safe_mode"), ("barrier", ""),
    ("all_gather_tensors_with_shapes", "tensor shapes group"),
)  # fmt: skip
#: Functions of mmengine 0.10 over all ranks (dist/dist.py, dist/utils.py), with their parameters.
MMENGINE_CALLS = (
    ("all_reduce", "data op group"), ("all_gather", "data group"), ("gather", "data dst group"),
    ("broadcast", "data src group"), ("sync_random_seed", "group"),
    ("broadcast_object_list", "data src group"), ("all_reduce_dict", "data op group"),
    ("all_gather_object", "data group"), ("gather_object", "data dst group"),
    ("collect_results", "results size device tmpdir"),
    ("collect_results_cpu", "result_part size tmpdir"),
    ("collect_results_gpu", "result_part size"), ("allreduce_params", "params coalesce"),
    ("barrier", "group"),
)  # fmt: skip
#: Packages of metrics whose ``compute()`` reduces over all ranks.
METRICS = ("torchmetrics.", "ignite.metrics.")
#: What a framework passes to the methods of a class derived from one of its own, by the names of
#: the parameters. ``wrapped:configured``: a model that
#: is sharded if the program configures it so.
HOOK_PARAMETERS: dict[str, dict[str, tuple[str, ...]]] = {
    "lightning.Callback": {
        "trainer": ("lightning.Trainer",),
        "pl_module": ("lightning.Module", "wrapped:configured"),
        "batch": ("batch",),
        "outputs": ("batch",),
    },
    "lightning.Module": {"batch": ("batch",), "outputs": ("batch",)},
    "transformers.TrainerCallback": {"model": ("wrapped:configured",)},
    "transformers.Trainer": {"inputs": ("batch",), "model": ("wrapped:configured",)},
    "mmengine.Hook": {
        "runner": ("mmengine.Runner",),
        "data_batch": ("batch",),
        "outputs": ("batch",),
    },
}
#: Attributes of a framework's object, and what they are.
HELD_OBJECTS: dict[str, dict[str, str]] = {
    "transformers.Trainer": {"model": "wrapped:configured", "model_wrapped": "wrapped:configured"},
    "mmengine.Runner": dict.fromkeys(("train_loop", "val_loop", "test_loop"), "mmengine.Loop"),
}
HOOK_CLASSES: dict[str, str] = {
    **{
        f"{home}.{name}": "lightning.Callback"
        for home in _LIGHTNING
        for name in (
            "Callback", "callbacks.Callback", "callbacks.callback.Callback",
            "callbacks.ModelCheckpoint", "callbacks.EarlyStopping",
            "callbacks.BasePredictionWriter",
        )
    },
    **{
        f"{home}.{name}": "lightning.Module"
        for home in _LIGHTNING
        for name in ("LightningModule", "core.LightningModule", "core.module.LightningModule")
    },
    **{f"trl.{name}": "transformers.Trainer" for name in _TRL_TRAINERS},
    "transformers.Trainer": "transformers.Trainer",
    "transformers.Seq2SeqTrainer": "transformers.Trainer",
    "mmengine.hooks.Hook": "mmengine.Hook",
    "transformers.TrainerCallback": "transformers.TrainerCallback",
    "transformers.trainer_callback.TrainerCallback": "transformers.TrainerCallback",
}  # fmt: skip
