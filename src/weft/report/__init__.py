"""Reports: tables and plots from result files. Nothing here loads models."""

from weft.report.charts.plots import plot_bench
from weft.report.page.comparison import write_report
from weft.report.tables.table import TextTable, bench_table, bench_tables, to_markdown, to_rich
from weft.rows import append, read

__all__ = [
    "TextTable",
    "append",
    "bench_table",
    "bench_tables",
    "plot_bench",
    "read",
    "to_markdown",
    "to_rich",
    "write_report",
]
