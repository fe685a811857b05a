"""The picture of a set of hosts."""

import io

from holdfast.report.hosts import MOST_SHOWN, Pair, Picture, render_hosts

LEGEND = {".": "open", "-": "itself", "D": "dropped"}


def shown(picture):
    file = io.StringIO()
    render_hosts(picture, file=file, width=100)
    return file.getvalue()


def test_rows_stand_under_each_other_and_only_letters_that_occur_are_explained():
    pair = Pair(ends="a and b", round_trip_s=1e-4, forth=1.25e8, back=1.25e9)
    text = shown(Picture(labels=("a", "b"), rows=("-D", ".-"), legend=LEGEND, pairs=(pair,), clocks={"b": (3.0, 1e-4)}))
    first, second = (line for line in text.splitlines() if line.endswith(("  a", "  b")))
    assert first.index("- D  a") == second.index(". -  b")
    assert ". open, D dropped" in text
    assert "itself" not in text
    assert "1.00 Gbit/s forth, 10.00 Gbit/s back" in text
    assert "+3000.00 ms" in text


def test_one_host_has_no_picture():
    assert shown(Picture(labels=("a",), rows=("-",), legend=LEGEND)) == ""


def test_a_large_set_is_counted():
    size = MOST_SHOWN + 1
    rows = (*tuple("." * at + "-" + "." * (size - at - 1) for at in range(size - 1)), "D" * (size - 1) + "-")
    assert f"{size - 1} of {size**2:,} pairs are not open" in shown(
        Picture(labels=tuple(map(str, range(size))), rows=rows, legend=LEGEND)
    )
