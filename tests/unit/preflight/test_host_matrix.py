"""The rendered reachability matrix."""

import io

from holdfast.preflight.host_matrix import MAX_SHOWN, HostMatrix, HostPair, render_hosts

LEGEND = {".": "open", "-": "itself", "D": "dropped"}


def render(matrix):
    file = io.StringIO()
    render_hosts(matrix, file=file, width=100)
    return file.getvalue()


def test_rows_are_aligned_and_used_letters_explained():
    pair = HostPair(ends="a and b", round_trip_s=1e-4, forth=1.25e8, back=1.25e9)
    text = render(
        HostMatrix(
            labels=("a", "b"),
            rows=("-D", ".-"),
            legend=LEGEND,
            pairs=(pair,),
            clocks={"b": (3.0, 1e-4)},
        )
    )
    first, second = (line for line in text.splitlines() if line.endswith(("  a", "  b")))
    assert first.index("- D  a") == second.index(". -  b")
    assert ". open, D dropped" in text
    assert "itself" not in text
    assert "1.00 Gbit/s forth, 10.00 Gbit/s back" in text
    assert "+3000.00 ms" in text


def test_one_host_has_no_matrix():
    assert render(HostMatrix(labels=("a",), rows=("-",), legend=LEGEND)) == ""


def test_large_matrices_are_summarized():
    size = MAX_SHOWN + 1
    rows = (
        *tuple("." * at + "-" + "." * (size - at - 1) for at in range(size - 1)),
        "D" * (size - 1) + "-",
    )
    assert f"{size - 1} of {size**2:,} pairs are not open" in render(
        HostMatrix(labels=tuple(map(str, range(size))), rows=rows, legend=LEGEND)
    )
