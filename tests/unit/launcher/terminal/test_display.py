"""What the terminal shows of several output streams."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.launcher.terminal.display import IDLE_S, Display, Stream
from tests.process.terminal import screen


class Screen:
    """A display with streams out and err of ranks 0 and 1, and the launcher's."""

    def __init__(self, prefix="auto", columns=40):
        self.display, self.now, self.shown = Display(prefix, columns), 0.0, b""
        self.out, self.err, self.other = (
            Stream(rank, f"[rank{rank}]: ".encode()) for rank in (0, 0, 1)
        )
        self.launcher = Stream(None)

    def write(self, stream, *texts):
        for text in texts:
            self.shown += self.display.write(stream, text.encode(), self.now)
        return self

    def wait(self, seconds):
        self.now += seconds
        self.shown += self.display.refresh(self.now)
        return self

    def close(self, stream):
        self.shown += self.display.close(stream)
        return self

    @property
    def lines(self):
        return screen(self.shown.decode().replace("\n", "\r\n"))


BAR = ("\r  0%|    | 0/2", "\r 50%|##  | 1/2", "\r100%|####| 2/2", "\n")


@pytest.mark.parametrize("prefix", ["auto", "never"])
def test_the_bytes_of_a_single_rank_pass_unchanged(prefix):
    texts = ("\x1b[32mgreen\x1b[0m\n", *BAR, "\x1b[2K\x1b[1Aup", "no line end", "\n")
    seen = Screen(prefix)
    assert seen.write(seen.out, *texts).shown.decode() == "".join(texts)


def test_lines_appear_above_a_bar_in_any_order_of_arrival():
    """tqdm.write erases the bar on stderr, prints on stdout, and draws the bar again."""
    cleared, bar = "\r               \r", BAR[1]
    for order in ("ecob", "ecbo", "oecb"):
        seen = Screen()
        writes = {"e": (seen.err, bar), "c": (seen.err, cleared), "b": (seen.err, bar)}
        for step in order:
            seen.write(*writes.get(step, (seen.out, "a line\n")))
        assert seen.lines == ["a line", " 50%|##  | 1/2"], order


def test_a_message_of_the_launcher_appears_above_the_bar():
    seen = Screen()
    seen.write(seen.err, *BAR[:2]).write(seen.launcher, "holdfast: note\n").write(
        seen.err, *BAR[2:]
    )
    assert seen.lines == ["holdfast: note", "100%|####| 2/2", ""]


def test_a_second_rank_makes_all_lines_prefixed_and_keeps_the_bar():
    seen = Screen()
    seen.write(seen.err, *BAR[:1]).write(seen.other, "hi\n").write(seen.err, *BAR[1:2])
    assert seen.lines == ["[rank1]: hi", "[rank0]:  50%|##  | 1/2"]
    seen.write(seen.err, *BAR[2:]).write(seen.out, "end\n")
    assert seen.lines == ["[rank1]: hi", "[rank0]: 100%|####| 2/2", "[rank0]: end", ""]


def test_prefixes_can_be_forced_or_switched_off():
    for prefix, expected in (("always", "[rank0]: a"), ("never", "a")):
        seen = Screen(prefix)
        seen.write(seen.out, "a\n").write(seen.other, "b\n")
        assert seen.lines[0] == expected
        assert seen.lines[1] == expected.replace("rank0", "rank1").replace("a", "b").replace(
            "rbnk", "rank"
        )


def test_a_prompt_stays_where_it_is():
    seen = Screen()
    seen.write(seen.err, "name? ")
    seen.shown += b"Ada\n"  # echoed by the terminal
    seen.write(seen.out, "hello Ada\n").write(seen.launcher, "holdfast: note\n").close(seen.err)
    assert seen.lines == ["name? Ada", "hello Ada", "holdfast: note", ""]


def test_a_message_does_not_continue_a_prompt():
    seen = Screen()
    seen.write(seen.out, "(Pdb) ").write(seen.launcher, "holdfast: note\n")
    assert seen.lines == ["(Pdb)", "holdfast: note", ""]


def test_a_prompt_of_another_rank_replaces_an_idle_bar():
    seen = Screen()
    seen.write(seen.err, BAR[1]).wait(0.1).write(seen.other, "(Pdb) ")
    assert "Pdb" not in "".join(seen.lines)
    assert seen.wait(IDLE_S).lines == ["[rank1]: (Pdb)"]


def test_a_long_bar_is_cut_to_one_line_with_prefix():
    seen = Screen("always", columns=20)
    seen.write(seen.err, "\r" + "#" * 30).write(seen.err, "\r" + "=" * 30)
    assert seen.lines == ["[rank0]: =========="]


def test_the_end_of_a_stream_completes_its_line():
    seen = Screen("always")
    seen.write(seen.out, "dots...").write(seen.other, "\r10%").close(seen.out).close(seen.other)
    assert seen.lines == ["[rank0]: dots...", "[rank1]: 10%", ""]


def nested(outer, inner):
    """Return what tqdm writes for a bar and one below it (position=1)."""
    return f"\r{outer}", f"\n\r{inner}\x1b[A"


def test_several_bars_of_a_rank_stay_below_the_lines_of_others():
    seen = Screen()
    seen.write(seen.err, *nested("outer 1", "inner 1"), *nested("outer 2", "inner 2"))
    assert seen.lines == ["outer 2", "inner 2"]
    seen.write(seen.launcher, "holdfast: note\n").write(seen.err, *nested("outer 3", "inner 3"))
    assert seen.lines == ["holdfast: note", "outer 3", "inner 3"]
    seen.write(seen.other, "hello\n").write(seen.err, *nested("outer 4", "inner 4"))
    seen.write(seen.other, "bye\n")
    assert seen.lines[1:] == [
        *("[rank1]: hello", "[rank1]: bye"),
        *("[rank0]: outer 4", "[rank0]: inner 4"),
    ]


def test_the_bars_of_two_ranks_do_not_overwrite_each_other():
    seen = Screen("always")
    for number in range(3):
        seen.write(seen.err, *nested(f"a {number}", f"b {number}"))
        seen.wait(0.1).write(seen.other, *nested(f"c {number}", f"d {number}"))
    assert seen.lines == ["[rank0]: a 2", "[rank0]: b 2"]  # of the rank that began
    assert seen.wait(IDLE_S).lines == ["[rank1]: c 2", "[rank1]: d 2"]
    seen.close(seen.err).close(seen.other)
    assert seen.lines == [
        *("[rank0]: a 2", "[rank0]: b 2"),
        *("[rank1]: c 2", "[rank1]: d 2", ""),
    ]


@given(st.lists(st.integers(1, 9), max_size=40))
def test_several_bars_are_shown_alike_however_their_bytes_arrive(cuts):
    text = (
        "".join(
            part
            for number in range(4)
            for part in nested(f"ä {number}", f"\x1b[31mb {number}\x1b[0m")
        ).encode()
        + b"\r\x1b[Kline\nnext \x1b[3Dx\n\r"
    )
    whole, cut = Screen("always"), Screen("always")
    whole.write(whole.err, text.decode())
    for size in (*cuts, len(text)):
        piece, text = text[:size], text[size:]
        cut.shown += cut.display.write(cut.err, piece, cut.now)
    # The line before the first movement is complete if its line break arrives alone.
    assert [line for line in cut.lines if line != "[rank0]: ä 0"] == whole.lines
    assert whole.lines[0] == "[rank0]: line"


def test_a_program_that_draws_on_the_whole_screen_is_not_formatted():
    seen = Screen("always")
    text = "\x1b[?1049h\x1b[2;1Hmenu"
    assert seen.write(seen.out, text).shown.decode() == text


@given(
    st.sampled_from(["always", "never"]),
    st.lists(st.tuples(st.integers(0, 3), st.text("abcé\r", max_size=6), st.booleans())),
)
def test_every_line_is_shown_once(prefix, writes):
    """Complete lines appear once and in order, however they are cut and interleaved."""
    seen = Screen(prefix, columns=400)
    streams = (seen.out, seen.err, seen.other, seen.launcher)
    expected = {number: [] for number in range(4)}
    lines = dict.fromkeys(range(4), "")
    for count, (number, text, ends) in enumerate(writes):
        word = f"<{number}.{count}>{text.replace(chr(13), '')}"
        lines[number] += word
        seen.write(streams[number], word[:3], word[3:] + ("\n" if ends else ""))
        if ends:
            expected[number].append(lines[number])
            lines[number] = ""
    shown = "".join(seen.lines)
    for number, words in enumerate(expected.values()):
        positions = [shown.find(part) for text in words for part in text.split("<")[1:]]
        assert -1 not in positions, (number, words, seen.lines)
        assert positions == sorted(positions)
