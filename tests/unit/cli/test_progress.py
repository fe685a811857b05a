"""The progress line appears on a terminal after two seconds, and disappears at the end."""

import io
import threading

import pytest

from holdfast.cli import progress


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    encoding = "utf-8"

    def isatty(self):
        """Return True."""
        return True


def test_analysis_shows_files_time_and_share(monkeypatch):
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    stream = Terminal()
    with progress.AnalysisProgress(stream) as line:
        line.tell(3, 2048, "package/train.py")
        line.tell_share(3, 0, 8)
        line.tell_share(3, 2, 8)
    read, started, quarter, cleared = stream.getvalue().split("\r")[1:5]
    assert read.startswith("reading: 3 files, 2.0 KiB: …package/train.py")
    assert started.startswith("analyzing 3 files: ")
    assert "%" not in started
    assert quarter.rstrip().endswith(", 25%")
    assert not cleared.strip()


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_nothing_is_shown_in_the_first_two_seconds_or_without_a_terminal(stream):
    with progress.AnalysisProgress(stream) as line:
        line.tell_share(3, 2, 8)
    assert stream.getvalue() == ""


def test_work_without_progress_shows_its_duration_until_it_ends(monkeypatch):
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    monkeypatch.setattr(progress, "EVERY_S", 0.001)
    shown = threading.Event()

    class Watched(Terminal):
        def write(self, text):
            shown.set()
            return super().write(text)

    stream = Watched()
    with progress.ElapsedProgress(stream, "reading"):
        assert shown.wait(30)
    first, *_, cleared, end = stream.getvalue().split("\r")[1:]
    assert first.startswith("reading: ")
    assert (cleared.strip(), end) == ("", "")


def test_a_fast_or_unwatched_run_shows_no_duration():
    for stream in (Terminal(), io.StringIO()):
        with progress.ElapsedProgress(stream, "reading"):
            pass
        assert stream.getvalue() == ""
