"""Measurements as text: the exact nccl-tests table and its parsers, CSV, and the HTML page."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.core.findings import Verdict
from holdfast.core.measurements import (
    BenchHost,
    BenchRow,
    BenchSeries,
    IterationTiming,
    LinkPair,
    Measurement,
)
from holdfast.core.measurements.fit import AlphaBetaFit
from holdfast.preflight.bench import tables
from holdfast.preflight.bench.page import bench_page

#: Table header and row in the format of src/util.cu of NVIDIA/nccl-tests 2.19.6.
THEIRS = """\
#                                                              out-of-place                       in-place          
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong 
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         
           8             2     float     sum      -1   663.27    0.00    0.00       0   398.54    0.00    0.00       0
"""  # noqa: W291 - the blanks are theirs


def timing(seconds, wrong=0):
    return IterationTiming(
        mean_s=seconds,
        min_s=seconds / 2,
        p50_s=seconds,
        p90_s=2 * seconds,
        p99_s=3 * seconds,
        max_s=4 * seconds,
        calls=40,
        wrong=wrong,
    )


def series(rows, **more):
    fields = {
        "collective": "all_reduce",
        "way": "torch",
        "backend": "gloo",
        "dtype": "float32",
        "op": "sum",
        "root": -1,
        "ranks": 2,
    }
    return BenchSeries(**fields | more, rows=rows)


SMALL = BenchRow(size_bytes=8, count=2, out_of_place=timing(663.27e-6), in_place=timing(398.54e-6))
LARGE = BenchRow(
    size_bytes=1 << 30,
    count=1 << 28,
    out_of_place=timing(0.5),
    in_place=timing(12.3456789, wrong=1234567),
)
ONE_WAY = BenchRow(size_bytes=4096, count=512, out_of_place=timing(1e-3, wrong=None))
FIT = AlphaBetaFit(
    collective="all_reduce",
    way="torch",
    backend="gloo",
    dtype="float32",
    ranks=2,
    hosts=1,
    latency_s=663e-6,
    latency_interval_s=(6e-4, 7e-4),
    bandwidth=2e9,
    bandwidth_interval=(1e9, None),
    worst_error=0.12,
)
HOST = BenchHost(
    name="node<1>",
    processor="EPYC",
    cores=64,
    interface="eth0",
    line_rate=12.5e9,
    line="says /sys",
    ranks=(0, 1),
)
WHOLE = Measurement(
    ranks=2,
    torch="2.13.0",
    hosts=(HOST,),
    fits=(FIT,),
    pairs=(LinkPair(ranks=(0, 1), latency_s=1e-4, bandwidth=1.5e9),),
    series=(
        series((SMALL, LARGE)),
        series((SMALL,), way="holdfast"),
        series((ONE_WAY,), collective="all_to_all", op="none"),
    ),
)


def test_header_and_rows_equal_those_of_nccl_tests():
    assert "\n".join([*tables.HEADER[1:], tables.table_row(series(()), SMALL)]) + "\n" == THEIRS


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [  # getFloatStr of src/util.cu
        (0.004, 6, "0.00"),
        (999.994, 6, "999.99"),
        (1234.56, 6, "1234.6"),
        (12345.6, 6, "12346"),
        (1234567.8, 6, "1e+06"),
        (9999.99, 7, "9999.99"),
        (10000.55, 7, "10000.5"),
        (1234567.8, 7, "1234568"),
        (12345678.9, 7, "1.2e+07"),
    ],
)
def test_numbers_use_the_most_digits_that_fit(value, width, text):
    assert tables._format_float(value, width) == text


def test_every_row_has_thirteen_columns_for_parsers_that_count_from_the_end():
    printed = [tables.table_row(series(()), row) for row in (SMALL, LARGE, ONE_WAY)]
    assert [len(line.split()) for line in printed] == [13, 13, 13]
    assert [line.split()[-6] for line in printed] == [
        "0.00",
        "2.15",
        "0.00",
    ]  # SuperBench reads busbw there
    assert printed[1].split()[-1] == "1.23457e+06"
    assert printed[2].split()[-5:] == ["N/A"] * 5


def table_as_superbench_reads_it(text):
    """Return the largest out-of-place busbw, parsed as in microsoft/superbenchmark's cuda_nccl_bw_performance.py."""
    content = text.splitlines()
    first = max(at for at, line in enumerate(content) if "out-of-place" in line)
    last = max(at for at, line in enumerate(content) if "Out of bounds values" in line)
    best = -1.0
    for line in content[first + 4 : last]:
        words = re.sub(" +", " ", line.strip(" ")).split(" ")
        if len(words) <= 10:
            break
        best = max(best, float(words[-6]))
    return best


@pytest.mark.parametrize("live", [True, False])
def test_output_can_be_parsed_as_nccl_tests_output(live):
    out = io.StringIO()
    printer = tables.TablePrinter(out, live=live)
    one = replace(WHOLE, series=(series((SMALL, SMALL, LARGE)),))
    for row in one.series[0].rows:
        printer.row(series(()), row)
    printer.finish(one, Path("links.json"))
    assert table_as_superbench_reads_it(out.getvalue()) == 2.15
    lines = out.getvalue().splitlines()
    assert "# Out of bounds values : 1234567 FAILED" in lines
    assert [line for line in lines if not line.startswith("#") and len(line.split()) != 13] == []


def test_percentiles_algorithms_fits_and_hosts_follow_the_table():
    text = "\n".join(tables.side_by_side(WHOLE))
    assert "           8" in text
    assert "663.3 (1.00)" not in text  # in-place calls have no ratio
    assert "398.5 (1.00)" in text
    (text,) = tables.fits(WHOLE)
    assert text.startswith(
        "all_reduce over gloo: latency 663 µs (95% CI: 600 µs–700 µs), bandwidth 2 GB/s (95% CI: 1–∞)"  # noqa: RUF001
    )
    assert text.endswith("max residual 12%")
    assert (
        next(tables.efficiency(WHOLE))
        == "all_reduce over gloo: peak bus bandwidth 0.087 GB/s, 1% of the 12.5 GB/s link"
    )
    assert "rank 0 ── rank 1: 100 µs, 1.5 GB/s" in "\n".join(tables.topology(WHOLE))
    assert list(tables.percentiles(WHOLE.series[0]))[1].split() == [
        "8",
        "40",
        "199.3",
        "398.5",
        "797.1",
        "1195.6",
        "1594.2",
    ]


def test_csv_has_a_line_for_each_size_and_placement():
    rows = list(csv.DictReader(io.StringIO(tables.measurement_csv(WHOLE))))
    assert [(row["collective"], row["way"], row["placement"]) for row in rows] == [
        ("all_reduce", "torch", "out-of-place"),
        ("all_reduce", "torch", "in-place"),
        ("all_reduce", "torch", "out-of-place"),
        ("all_reduce", "torch", "in-place"),
        ("all_reduce", "holdfast", "out-of-place"),
        ("all_reduce", "holdfast", "in-place"),
        ("all_to_all", "torch", "out-of-place"),
    ]
    assert (rows[0]["mean_us"], rows[2]["busbw_GBps"], rows[-1]["wrong"]) == (
        "663.270",
        "2.14748",
        "",
    )


def test_page_loads_no_external_resources_and_escapes_text():
    text = bench_page(WHOLE, Verdict(question="is it <fast>?"))
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)=\"(?!data:,)", text)
    assert "node<1>" not in text
    assert "node&lt;1&gt;" in text
    assert "is it &lt;fast&gt;?" in text
    assert text.count('<svg class="plot"') == 4
    assert "1.5 GB/s, 100 µs" in text
    assert "nan" not in text


def test_the_page_of_an_empty_measurement_is_rendered():
    assert "<svg" in bench_page(Measurement(), Verdict(question="?"))
    assert "rank 0" in bench_page(replace(WHOLE, pairs=(), fits=()), Verdict(question="?"))
