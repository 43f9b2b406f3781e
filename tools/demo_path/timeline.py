"""Shows the demonstration as it happens: a picture that is drawn again and again on a terminal,
plain lines otherwise."""

import shutil
import sys
import threading
import time

COLOURS = {"A": "36", "B": "33"}


class Timeline:
    """Rows of nodes over time, the jobs below, and the last events. Thread-safe."""

    EVENTS_SHOWN = 9

    def __init__(self, node_names, stream=sys.stdout):
        self._stream = stream
        self._terminal = stream.isatty()
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self._nodes = {name: [] for name in node_names}  # name -> letter for each second
        self._events = []
        self._jobs = []
        self._drawn = 0

    def elapsed(self):
        return time.monotonic() - self._start

    def note(self, text, mark=None):
        """An event. `mark` (one character) goes into the nodes' rows at this second."""
        with self._lock:
            line = f"{self.elapsed():6.1f} s  {text}"
            self._events.append(line)
            if mark:
                for row in self._nodes.values():
                    self._fill(row)
                    if row[-1] != "\N{MIDDLE DOT}":
                        row[-1] = mark
            if self._terminal:
                self._draw()
            else:
                print(line, file=self._stream, flush=True)

    def _fill(self, row):
        while len(row) <= int(self.elapsed()):
            row.append(row[-1] if row and row[-1] in "AB" else "\N{MIDDLE DOT}")

    def update(self, occupants, jobs):
        """`occupants`: node -> letter or None; `jobs`: lines of text."""
        with self._lock:
            for name, row in self._nodes.items():
                self._fill(row)
                letter = occupants.get(name) or "\N{MIDDLE DOT}"
                if row[-1] in "AB\N{MIDDLE DOT}":
                    row[-1] = letter
            self._jobs = jobs
            if self._terminal:
                self._draw()

    def _paint(self, row):
        if not self._terminal:
            return "".join(row)
        return "".join(f"\033[{COLOURS[c]}m{c}\033[0m" if c in COLOURS else
                       f"\033[1;31m{c}\033[0m" if c in "!x" else c for c in row)

    def picture(self):
        """The rows of the nodes; a column is a second, or more when the line gets too long."""
        width = shutil.get_terminal_size((100, 40)).columns - 12
        lines = []
        for name, row in self._nodes.items():
            scale = max(1, -(-len(row) // width))
            shown = []
            for at in range(0, len(row), scale):
                cell = row[at:at + scale]
                marks = [c for c in cell if c in "!x"]
                shown.append(marks[0] if marks else cell[-1])
            lines.append(f"{name:>8}  " + self._paint(shown))
        return lines

    def _draw(self):
        columns = shutil.get_terminal_size((100, 40)).columns
        lines = [f"  {self.elapsed():5.1f} s   A, B: the job on the node; !: notice; x: a worker "
                 "was killed", *self.picture(), "", *self._jobs, "",
                 *self._events[-self.EVENTS_SHOWN:]]
        out = f"\033[{self._drawn}A" if self._drawn else ""
        for line in lines:
            if "\033" not in line:
                line = line[:columns - 1]
            out += "\033[2K" + line + "\n"
        out += "\033[J"
        self._stream.write(out)
        self._stream.flush()
        self._drawn = len(lines)

    def close(self):
        """Leaves the whole story on a terminal, where only its end was shown."""
        with self._lock:
            if not self._terminal:
                for line in self.picture():
                    print(line, file=self._stream)
                return
            if self._drawn:
                self._stream.write(f"\033[{self._drawn}A\033[J")
            for line in self._events:
                print(line, file=self._stream)
            for line in self.picture():
                print(line, file=self._stream)
            self._stream.flush()
            self._drawn = 0
