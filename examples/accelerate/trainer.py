"""The loop of ``examples/ddp`` with Accelerate, which prepares model, optimizer and batches.

    holdfast run --standalone --nproc-per-node 2 examples/accelerate/trainer.py

``accelerate launch`` starts it too, but without monitoring.
"""

from __future__ import annotations

import sys
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim import Adam
from torch.utils.data import DataLoader

from holdfast import evaluate

sys.path.append(str(Path(__file__).parents[1] / "language"))
from job import BestStep, FaultyCount, create_parser, metric_sinks, print_step
from language import LanguageModel, count, held_out, next_letter_loss, training_texts


def main() -> None:
    """Run the job."""
    options = create_parser(__doc__).parse_args()
    accelerator = Accelerator(cpu=True)
    set_seed(options.seed)
    plain = LanguageModel()
    texts_in_order = DataLoader(
        training_texts(options.steps, options.batch_size, options.seed), options.batch_size
    )
    model, optimizer, batches = accelerator.prepare(
        plain, Adam(plain.parameters(), lr=options.lr), texts_in_order
    )

    # Loaders of held-out texts are not prepared: prepare() repeats texts to make the ranks' shares
    # even.
    faulty_count = FaultyCount(count, options.fail_evaluation)
    evaluation = evaluate.Evaluation(
        accelerator.unwrap_model(model),
        held_out(options.batch_size),
        faulty_count,
        budget=options.budget,
        sinks=metric_sinks(options),
    )
    best = BestStep(options.patience)

    for step, texts in enumerate(batches, start=1):
        loss = next_letter_loss(model, texts)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        print_step(step, loss)

        if step % options.evaluate_every == 0:
            faulty_count.step = step
            result = evaluation.run(step)
            if best.consider(step, result) and options.save_best is not None:
                accelerator.save_state(options.save_best / "best")  # on all ranks
            if best.is_exhausted:
                break

    best.print_summary(step)
    accelerator.end_training()  # also destroys the process group


if __name__ == "__main__":
    main()
