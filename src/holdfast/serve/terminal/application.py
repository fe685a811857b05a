"""The terminal application: a table of ranks that follows a run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

from msgspec.structs import replace
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.css.query import NoMatches
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from holdfast.core.live_state import LiveState
from holdfast.core.text import escape_invisible, pluralize
from holdfast.serve.live.reader import LiveReading
from holdfast.serve.live.source import RunSource
from holdfast.serve.terminal import rows
from holdfast.serve.terminal.rows import TopRow, TopView

EVERY_S = 1.0
#: Columns of numbers, aligned to the right.
_NUMBERS = frozenset({"step", "steps/s", "in coll.", "silent", "memory", "GPU"})


class StackScreen(ModalScreen[None]):
    """The state and the stack of one rank; ``r`` samples it again."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,q,enter", "dismiss", "Close"),
        ("r", "sample", "Sample again"),
    ]

    def __init__(self, source: RunSource, rank: int, host: str, lines: Sequence[str]) -> None:
        super().__init__()
        self._source, self._rank, self._host, self._lines = source, rank, host, lines

    def compose(self) -> ComposeResult:
        """Yield the text; it scrolls."""
        with VerticalScroll(id="stack"):
            yield Static(Text(f"rank {self._rank}", style="bold"))
            yield Static(Text("\n".join(self._lines)), id="rank-lines")
            yield Static(id="stack-lines")
            yield Static(Text("r samples the stack again, Escape closes.", style="dim"))

    def on_mount(self) -> None:
        """Read the stack in a thread: it may be sampled, here or by the server."""
        self.action_sample()

    def action_sample(self) -> None:
        """Read the stack again."""
        self.query_one("#stack-lines", Static).update(Text("\nReading the stack"))
        self.run_worker(self._read, thread=True, exclusive=True)

    def _read(self) -> None:
        stack = self._source.stack(self._rank, self._host)
        lines = ["", f"No sample of now: {stack.why}"] if stack.why else []
        if stack.frames:
            lines += ["", f"Stack {stack.origin}, innermost call first:", *stack.frames]
        text = Text("\n".join(map(escape_invisible, lines)))
        with suppress(RuntimeError, NoMatches):  # closed meanwhile
            self.app.call_from_thread(self.query_one("#stack-lines", Static).update, text)


class TopApplication(App[None]):
    """Shows the live state of a run."""

    TITLE = "holdfast top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: auto; padding: 0 1; }
    #problems { height: auto; padding: 0 1; color: $warning; }
    #ranks { height: 1fr; }
    #below { height: auto; max-height: 12; padding: 0 1; border-top: solid $panel; }
    #filter { display: none; }
    #filter.shown { display: block; }
    StackScreen { align: center middle; }
    #stack { width: 90%; height: 80%; padding: 1 2; background: $surface; border: round $primary; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("s", "sort", "Sort"),
        ("r", "reverse", "Reverse"),
        ("slash", "filter", "Filter"),
        ("f", "fold", "Fold"),
        ("b", "blocks", "Groups"),
        ("q", "quit", "Quit"),
        ("escape", "clear", "Clear filter"),
    ]

    def __init__(self, source: RunSource) -> None:
        super().__init__()
        self._source = source
        self._state: LiveState | None = None
        self._rows: list[TopRow] = []
        self._view = TopView()

    def compose(self) -> ComposeResult:
        """Yield head, table, groups and waits, filter, keys."""
        yield Static(id="head")
        yield Static(id="problems")
        yield DataTable(id="ranks", cursor_type="row", zebra_stripes=True)
        yield Static(id="below")
        yield Input(placeholder="rank, host or text; Enter keeps it, Escape clears it", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        """Start to follow the run."""
        self.query_one(DataTable).add_columns(*rows.COLUMNS)
        self.query_one(DataTable).focus()
        self.follow()
        self.set_interval(EVERY_S, self.follow)

    def follow(self) -> None:
        """Read the state in a thread, unless it is being read: a disk or a network may hang."""
        if not any(worker.name == "read" and not worker.is_finished for worker in self.workers):
            self.run_worker(self._read, name="read", thread=True)

    def _read(self) -> None:
        reading = self._source.read()
        with suppress(RuntimeError, NoMatches):  # the application ends, its widgets may be gone
            self.call_from_thread(self._show, reading)

    def _show(self, reading: LiveReading) -> None:
        """Draw what changed."""
        problems = [escape_invisible(problem) for problem in reading.problems]
        if reading.state is None and not (problems and self._state):
            problems.append(f"{self._source.name} has no live state yet; its leader writes it")
        self.query_one("#problems", Static).update(Text("\n".join(problems)))
        if reading.state is not None and reading.state != self._state:
            self._state = reading.state
            self._draw()

    def _draw(self) -> None:
        state = self._state
        if state is None:
            return
        view = self._view
        self._rows = rows.build_rows(state, view)
        head = Text(rows.head_line(state), style="bold")
        if state.notice:
            head.append(f"\n{escape_invisible(state.notice)}", style="bold red")
        order = f"{'reverse ' if view.reverse else ''}order: {view.sort}"
        shown = f"{pluralize(len(self._rows), 'row')}, {order}"
        shown += ", a block per process group" if view.blocks else ""
        head.append(f"\n{shown}{f', filter: {view.text}' if view.text else ''}", style="dim")
        self.query_one("#head", Static).update(head)
        below = Text("\n".join(rows.group_lines(state)))
        for line in rows.finding_lines(state):
            below.append(f"\n{line}", style="yellow")
        self.query_one("#below", Static).update(below)
        self._fill_table()

    def _fill_table(self) -> None:
        """Update the cells that changed, or all if the number of rows did."""
        table = self.query_one(DataTable)
        cells = [_styled(row) for row in self._rows]
        if table.row_count != len(cells):
            selected = table.cursor_row
            table.clear()
            table.add_rows(cells)
            table.move_cursor(row=min(selected, max(len(cells) - 1, 0)))
            return
        for at, row in enumerate(cells):
            for column, cell in enumerate(row):
                if table.get_cell_at((at, column)) != cell:  # type: ignore[arg-type]
                    table.update_cell_at((at, column), cell, update_width=True)  # type: ignore[arg-type]

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the first rank of the row."""
        if event.cursor_row < len(self._rows):
            self._open_rank(self._rows[event.cursor_row])

    def _open_rank(self, row: TopRow) -> None:
        rank = row.ranks[0]
        lines = [f"{name}: {cell}" for name, cell in zip(rows.COLUMNS, row.cells(), strict=True)]
        host = row.host if len(row.ranks) == 1 else ""
        self.push_screen(StackScreen(self._source, rank, host, lines))

    def _change(self, **fields: Any) -> None:
        self._view = replace(self._view, **fields)
        self._draw()

    def action_sort(self) -> None:
        """Sort by the next column."""
        at = rows.SORTS.index(self._view.sort) + 1
        self._change(sort=rows.SORTS[at % len(rows.SORTS)])

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._change(reverse=not self._view.reverse)

    def action_fold(self) -> None:
        """Fold ranks that do not differ, or show each."""
        self._change(fold=not self._view.fold)

    def action_blocks(self) -> None:
        """Show a block of rows per process group, or all ranks once."""
        self._change(blocks=not self._view.blocks)

    def action_filter(self) -> None:
        """Show the filter."""
        field = self.query_one("#filter", Input)
        field.add_class("shown")
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the user types."""
        self._change(text=event.value)

    def on_input_submitted(self, _event: Input.Submitted) -> None:
        """Keep the filter and return to the table."""
        self.query_one("#filter", Input).remove_class("shown")
        self.query_one(DataTable).focus()

    def action_clear(self) -> None:
        """Clear the filter."""
        field = self.query_one("#filter", Input)
        field.value = ""
        field.remove_class("shown")
        self.query_one(DataTable).focus()


def _styled(row: TopRow) -> list[Text]:
    """Return the cells; a row that differs is highlighted."""
    style = (
        "reverse"
        if row.is_head
        else "bold red"
        if row.difference >= 10
        else "bold"
        if row.difference >= 1
        else ""
    )
    return [
        Text(cell, style=style, justify="right" if name in _NUMBERS else "left")
        for name, cell in zip(rows.COLUMNS, row.cells(), strict=True)
    ]
