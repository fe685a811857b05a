"""Real clients: written metrics are read back; disk errors do not affect training."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.core.errors import MissingExtra
from holdfast.training import sinks

ROWS = [(1, {"loss": 2.5, "eval/accuracy": 0.5}), (5, {"loss": math.nan}), (3, {"late": math.inf})]


@pytest.fixture
def offline_clients(tmp_path, monkeypatch):
    """Give all clients separate folders and disable their network access."""
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    return {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
        "WANDB_SILENT": "true",
        "WANDB_CONSOLE": "off",
        "WANDB_CACHE_DIR": str(folder / "cache"),
        "WANDB_CONFIG_DIR": str(folder / "config"),
        "WANDB_ERROR_REPORTING": "false",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_TRACKING_URI": f"file://{folder}/mlruns",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def write_all(sink):
    for step, metrics in ROWS:
        sink.write(step, metrics)
    sink.close()


def same(values, expected):
    return [(step, str(value)) for step, value in values] == [
        (step, str(value)) for step, value in expected
    ]


@pytest.mark.slow
def test_tensorboard(offline_clients):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_all(sinks.TensorBoard(offline_clients / "runs"))
    read = EventAccumulator(str(offline_clients / "runs"))
    read.Reload()
    assert set(read.Tags()["scalars"]) == {"loss", "eval/accuracy", "late"}
    assert same(
        [(event.step, event.value) for event in read.Scalars("loss")], [(1, 2.5), (5, math.nan)]
    )
    assert same([(event.step, event.value) for event in read.Scalars("late")], [(3, math.inf)])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_mlflow(offline_clients):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    write_all(sinks.MLflow(experiment="digits", run_name="one"))
    client = MlflowClient(f"file://{offline_clients}/mlruns")
    (run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert (run.info.run_name, run.info.status) == ("one", "FINISHED")
    again = sinks.MLflow(experiment="digits", run_id=run.info.run_id)
    again.write(
        9, {"loss": 1.0, "lösung [%]": 2.0, **{f"m{number}": 1.0 for number in range(2100)}}
    )
    again.close()
    history = [
        (metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "loss")
    ]
    assert same(history, [(1, 2.5), (5, math.nan), (9, 1.0)])
    assert [metric.value for metric in client.get_metric_history(run.info.run_id, "late")] == [
        math.inf
    ]
    assert len(client.get_run(run.info.run_id).data.metrics) == 3 + 1 + 2100


LOGS_TO_WANDB = """
import math, time
from holdfast import sinks
guard = sinks.guarded([sinks.WandB(project="digits", dir=".")])
guard.write(1, {"loss": 2.5})
while not guard._workers[0]._written:  # the client is open, and will close itself when Python ends
    time.sleep(0.01)
for step in range(400):
    guard.write(5, {"loss": math.nan})
guard.write(3, {"late": math.inf, "none": None})
"""


@pytest.mark.slow
def test_wandb_gets_all_writes_before_exit_without_close(offline_clients):
    wandb = pytest.importorskip("wandb")
    process = subprocess.run(
        [sys.executable, "-c", LOGS_TO_WANDB],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert process.returncode == 0, process.stderr
    assert "lost" not in process.stderr
    (file,) = offline_clients.glob("wandb/offline-run-*/*.wandb")
    rows = read_wandb(file)
    assert [{name: row[name] for name in row if not name.startswith("_")} for row in rows] == [
        {"loss": 2.5, "step": 1},
        *[{"loss": "NaN", "step": 5}] * 400,
        {"late": "Infinity", "step": 3},
    ]
    assert wandb.__version__


def read_wandb(file):
    """Return the history rows in a W&B record file."""
    from wandb.proto import wandb_internal_pb2

    rows = []
    for data in leveldb_log(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {
                item.key or ".".join(item.nested_key): item.value_json
                for item in record.history.item
            }
            rows.append({name: _known(value) for name, value in items.items()})
    return rows


def _known(text):
    value = json.loads(text)  # Python's parser accepts NaN and Infinity
    return (
        value
        if isinstance(value, int | str) or math.isfinite(value)
        else {"nan": "NaN"}.get(str(value), "Infinity")
    )


def leveldb_log(data):
    """Yield the records of a LevelDB log (LevelDB's doc/log_format.md) after W&B's 7-byte header."""
    assert data.startswith(b":W&B")
    offset, record = 7, b""
    while offset + 7 <= len(data):
        if 32768 - offset % 32768 < 7:  # the rest of a block is too small for a record's header
            offset += 32768 - offset % 32768
            continue
        size, kind = int.from_bytes(data[offset + 4 : offset + 6], "little"), data[offset + 6]
        record += data[offset + 7 : offset + 7 + size]
        offset += 7 + size
        if kind in (1, 4):  # full, last
            yield record
            record = b""


@pytest.mark.parametrize(
    ("name", "client", "arguments"),
    [
        ("WandB", "wandb", []),
        ("TensorBoard", "torch.utils.tensorboard", ["x"]),
        ("MLflow", "mlflow.entities", []),
    ],
)
def test_a_missing_client_raises_one_sentence(monkeypatch, name, client, arguments):
    sink = getattr(sinks, name)
    monkeypatch.setitem(sys.modules, client, None)
    with pytest.raises(MissingExtra) as caught:
        sink(*arguments)
    assert str(caught.value).endswith(f"install it with: pip install 'holdfast[{name.lower()}]'")
    assert name.lower() in importlib.import_module(sink.__module__).__doc__.lower().replace(
        "weights & biases", "wandb"
    )


TRAINING = """
import json, logging, resource, sys, time
logging.basicConfig(format="%(message)s")
import holdfast
from holdfast import sinks
folder, limit = sys.argv[1], int(sys.argv[2])
clients = [
    sinks.JsonLines(f"{folder}/metrics.jsonl"),
    sinks.TensorBoard(f"{folder}/runs"),
    sinks.MLflow(f"file://{folder}/mlruns"),
    sinks.WandB(project="digits", dir=folder),
]
guard = sinks.guarded(clients, most_failures=3)
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
guard.write(0, {"loss": 1.0})
time.sleep(float(sys.argv[3]))
durations = []
for step in range(1, 300):
    begun = time.perf_counter()
    guard.write(step, {f"metric {number}": 1.0 for number in range(20)})
    durations.append(time.perf_counter() - begun)
    time.sleep(0.002)
guard.close(20)
slow = sum(duration > 0.25 for duration in durations)
print(json.dumps({"slow": slow, "lost": guard.lost}))
"""


def run_training(folder: Path, target: str, limit: int = 0) -> tuple[dict[str, float], str]:
    process = subprocess.run(
        [sys.executable, "-c", TRAINING, target, str(limit), "2"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, **environment(folder)},
        cwd=folder,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1]), process.stderr


@pytest.mark.slow
def test_a_full_disk_does_not_affect_training(tmp_path):
    for extra in ("wandb", "tensorboard", "mlflow"):
        pytest.importorskip(extra)
    result, stderr = run_training(tmp_path, str(tmp_path), limit=20_000)
    assert stderr.count("JsonLines failed; training continues: OSError") == 1
    assert stderr.count("JsonLines failed 3 times in a row; it is disabled") == 1
    assert "TensorBoard f" in stderr
    assert result["lost"] > 300
    assert result["slow"] <= 2  # a loaded host may run a few writes late
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines[:10]] == list(range(10))


@pytest.mark.slow
def test_an_unwritable_folder_does_not_affect_training(tmp_path):
    for extra in ("wandb", "tensorboard", "mlflow"):
        pytest.importorskip(extra)
    result, stderr = run_training(tmp_path, "/proc/holdfast")
    for name in ("JsonLines", "TensorBoard", "MLflow"):
        assert stderr.count(f"{name} failed; training continues") == 1
        assert stderr.count(f"{name} lost 300 of 300 writes") == 1
    assert result["slow"] <= 2  # a loaded host may run a few writes late
