"""The terminal application: a table of ranks that follows the run folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from holdfast.core.live_state import LiveState
from holdfast.core.text import escape_invisible, pluralize
from holdfast.serve.live import reader, runs
from holdfast.serve.terminal import rows
from holdfast.serve.terminal.rows import TopRow

EVERY_S = 1.0
#: Columns of numbers, aligned to the right.
_NUMBERS = frozenset({"step", "steps/s", "in coll.", "silent", "memory", "GPU"})


class StackScreen(ModalScreen[None]):
    """The state and the stack of one rank."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,q,enter", "dismiss", "Close")]

    def __init__(self, title: str, lines: Sequence[str]) -> None:
        super().__init__()
        self._title, self._lines = title, lines

    def compose(self) -> ComposeResult:
        """Yield the text; it scrolls."""
        with VerticalScroll(id="stack"):
            yield Static(Text(self._title, style="bold"))
            yield Static(Text("\n".join(self._lines)), id="stack-lines")
            yield Static(Text("Escape closes.", style="dim"))


class TopApplication(App[None]):
    """Shows the live state in ``folder``."""

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
        ("q", "quit", "Quit"),
        ("escape", "clear", "Clear filter"),
    ]

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._state: LiveState | None = None
        self._rows: list[TopRow] = []
        self._sort, self._reverse, self._fold, self._text = "difference", False, True, ""

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
        self._follow()
        self.set_interval(EVERY_S, self._follow)

    def _follow(self) -> None:
        """Read the state; draw only what changed."""
        reading = reader.read_live(self._folder, time.time())
        problems = [escape_invisible(problem) for problem in reading.problems]
        if reading.state is None:
            problems.append(f"{self._folder} has no live state yet; its leader writes it")
        self.query_one("#problems", Static).update(Text("\n".join(problems)))
        if reading.state is not None and reading.state != self._state:
            self._state = reading.state
            self._draw()

    def _draw(self) -> None:
        state = self._state
        if state is None:
            return
        self._rows = rows.build_rows(
            state, sort=self._sort, reverse=self._reverse, text=self._text, fold=self._fold
        )
        head = Text(rows.head_line(state), style="bold")
        if state.notice:
            head.append(f"\n{escape_invisible(state.notice)}", style="bold red")
        order = f"{'reverse ' if self._reverse else ''}order: {self._sort}"
        shown = f"{pluralize(len(self._rows), 'row')}, {order}"
        head.append(f"\n{shown}{f', filter: {self._text}' if self._text else ''}", style="dim")
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
        found = runs.read_stacks(self._folder, rank)
        lines = [f"{name}: {cell}" for name, cell in zip(rows.COLUMNS, row.cells(), strict=True)]
        if found is None:
            lines += ["", "No incident has a stack of this rank. On its host: holdfast attach"]
        else:
            incident, stack = found
            lines += ["", f"Stack in incident {incident}, innermost call first:"]
            lines += [escape_invisible(line) for line in stack]
        self.push_screen(StackScreen(f"rank {rank}", lines))

    def action_sort(self) -> None:
        """Sort by the next column."""
        self._sort = rows.SORTS[(rows.SORTS.index(self._sort) + 1) % len(rows.SORTS)]
        self._draw()

    def action_reverse(self) -> None:
        """Reverse the order."""
        self._reverse = not self._reverse
        self._draw()

    def action_fold(self) -> None:
        """Fold ranks that do not differ, or show each."""
        self._fold = not self._fold
        self._draw()

    def action_filter(self) -> None:
        """Show the filter."""
        field = self.query_one("#filter", Input)
        field.add_class("shown")
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the user types."""
        self._text = event.value
        self._draw()

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
    style = "bold red" if row.difference >= 10 else "bold" if row.difference >= 1 else ""
    return [
        Text(cell, style=style, justify="right" if name in _NUMBERS else "left")
        for name, cell in zip(rows.COLUMNS, row.cells(), strict=True)
    ]
