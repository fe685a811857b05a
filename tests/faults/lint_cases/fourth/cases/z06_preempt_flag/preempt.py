import signal


class PreemptionWatcher:
    """Remembers that SLURM asked the job to stop."""

    def __init__(self, signals=(signal.SIGTERM, signal.SIGUSR1)):
        self._requested = False
        for number in signals:
            signal.signal(number, self._handle)

    def _handle(self, number, frame):
        self._requested = True

    @property
    def requested(self):
        return self._requested
