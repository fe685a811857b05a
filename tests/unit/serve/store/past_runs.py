"""Write run folders as `holdfast run` does."""

from holdfast.core.failures import JobFailure, JobState, RecoveryAction, RecoveryDecision
from holdfast.core.ledger import Ledger, LedgerEvent, LedgerRecord

BEGAN = 1_700_000_000.0
DEFAULT_STATE = JobState(step=50, saved=40, saved_at=BEGAN + 800, progressed=BEGAN + 950)


def failed(
    at,
    generation=0,
    *,
    action=RecoveryAction.RESTART,
    state=DEFAULT_STATE,
    rank=1,
    host="a",
    cause=("PROC006", "rank-killed"),
):
    """Return a failure of ``rank`` at ``at`` seconds after the start of the run."""
    failure = JobFailure(
        at=BEGAN + at,
        generation=generation,
        code=cause[0],
        cause=cause[1],
        message=f"rank {rank} was killed by SIGKILL",
        rank=rank,
        host=host,
        dead=(rank,),
        job_state=state,
    )
    decision = RecoveryDecision(action=action, reason=f"{action} {generation + 1} of 3")
    return LedgerRecord(
        event=LedgerEvent.FAILED,
        at=failure.at,
        generation=generation,
        failure=failure,
        decision=decision,
        folder=f"i/{generation}",
    )


def started(at, generation=0, *, job="", world_size=8, nodes=1):
    return LedgerRecord(
        event=LedgerEvent.STARTED,
        at=BEGAN + at,
        generation=generation,
        job=job,
        world_size=world_size,
        nodes=nodes,
        ranks=(0, 1),
    )


def ended(at, status=0):
    return LedgerRecord(event=LedgerEvent.ENDED, at=BEGAN + at, status=status)


#: 1 h with a failure after 1000 s: 150 s computed again, 50 s of silence, 100 s down.
ONE_FAILURE = (started(0), failed(1000), started(1100, 1), ended(3600))


def write_run(folder, records=ONE_FAILURE, *, text="train.py --steps 9", began=0.0, host="a"):
    """Write a run folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(folder)
    ledger.add(LedgerRecord(event=LedgerEvent.BEGUN, at=BEGAN + began, host=host, text=text))
    for record in records:
        ledger.add(record)
    return folder
