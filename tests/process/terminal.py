"""A terminal for tests: a pseudo-terminal, what programs wrote to it, and what its screen shows."""

import fcntl
import os
import re
import select
import struct
import termios
import threading
import time
from contextlib import suppress

LIMIT_S = 60
_SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b\[[^A-Za-z]*$")


class Terminal:
    """An open terminal; ``file`` is what a program gets as stdin, stdout and stderr."""

    def __init__(self, rows=40, columns=100):
        self._master, slave = os.openpty()
        os.set_blocking(self._master, False)
        self.file = os.fdopen(slave, "r+b", buffering=0)
        self.resize(rows, columns)
        self._data, self._lock, self._closed = b"", threading.Lock(), False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def resize(self, rows, columns):
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def _read(self):
        with suppress(OSError):  # the last program closed it
            while not self._closed:
                select.select([self._master], [], [], 0.1)
                with self._lock, suppress(BlockingIOError):
                    self._data += os.read(self._master, 4096)

    def _is_read(self):
        with self._lock:
            return not select.select([self._master], [], [], 0)[0]

    def type(self, text):
        os.write(self._master, text.encode())

    @property
    def text(self):
        """Return everything that was written to the terminal until now."""
        while not self._is_read():
            time.sleep(0.001)
        return self._data.decode(errors="replace")

    @property
    def lines(self):
        """Return the lines on an endless screen, without trailing blanks and colours."""
        return screen(self.text)

    def wait_for(self, text, times=1):
        until = time.monotonic() + LIMIT_S
        while self.text.count(text) < times:
            assert time.monotonic() < until, f"no {text!r} in:\n{self.text}"
            time.sleep(0.02)

    def close(self):
        self._closed = True
        self.file.close()
        self._thread.join()  # it would read from the next file of this number
        os.close(self._master)


def screen(text):
    """Return the lines that a terminal shows after ``text``."""
    rows, row, column = [[]], 0, 0
    position = 0
    while position < len(text):
        if found := _SEQUENCE.match(text, position):
            position = found.end()
            count = int(found[1]) if (found[1] or "").isdigit() else 1
            if found[2] == "A":
                row = max(row - count, 0)
            elif found[2] == "C":
                column += count
            elif found[2] == "J":
                rows[row:] = [rows[row][:column]]
            elif found[2] == "K":
                rows[row] = [] if found[1] == "2" else rows[row][:column]
            continue
        character = text[position]
        position += 1
        if character == "\r":
            column = 0
        elif character == "\n":
            row += 1
            rows += [[]] if row == len(rows) else []
        elif character == "\b":
            column = max(column - 1, 0)
        else:
            rows[row] += [" "] * (column + 1 - len(rows[row]))
            rows[row][column] = character
            column += 1
    return ["".join(each).rstrip() for each in rows]
