"""Reports: tables and plots from result files. Nothing here loads models."""

from weft.report.arena import write_report
from weft.report.plots import plot_bench
from weft.report.tables import Table, bench_table, bench_tables, to_markdown, to_rich
from weft.rows import append, read

__all__ = [
    "Table",
    "append",
    "bench_table",
    "bench_tables",
    "plot_bench",
    "read",
    "to_markdown",
    "to_rich",
    "write_report",
]
