"""The same table written in every format, by other code than that which reads it."""

import csv
import gzip
import io
import json
import lzma


def csv_text(names, rows, delimiter=","):
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return out.getvalue()


def json_text(names, rows):
    return "".join(
        json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) + "\n" for row in rows
    )


def parquet_file(path, names, rows):
    import pyarrow
    from pyarrow import parquet

    columns = list(zip(*rows, strict=True)) if rows else [[] for _ in names]
    parquet.write_table(pyarrow.table(dict(zip(names, map(list, columns), strict=True))), path)


def write(folder, kind, names, rows, stem="rows"):
    """Write the rows as `kind`, which is the file's ending; the path comes back."""
    path = folder / f"{stem}{kind}"
    if kind == ".parquet":
        parquet_file(path, names, rows)
    elif kind.startswith(".jsonl"):
        _compressed(path, json_text(names, rows))
    else:
        delimiter = "\t" if kind == ".tsv" else ";" if kind == ".semicolon.csv" else ","
        _compressed(path, csv_text(names, rows, delimiter))
    return path


def _compressed(path, text):
    data = text.encode()
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(data))


KINDS = (
    ".csv",
    ".tsv",
    ".semicolon.csv",
    ".csv.gz",
    ".jsonl",
    ".jsonl.xz",
    ".parquet",
)
