"""Anybody's table of logged losses (.csv, .tsv, .parquet, .jsonl) -> named float64 columns, and what was left out.

    columns    OURS=THEIRS: our name states the quantity and its unit; theirs is a column of the file, times a number
               where the file counts in another unit: train_flops=total_gflops*1e9
    cells      1.3B, 400M, 12k, 7e9, "1,000,000", 1_000, 95 % (of a share); an empty cell is a missing one
    where      COLUMN<VALUE and its like on columns of the file, COLUMN=A|B for one of several; who fails is left out
    best_of    of the rows that agree in these columns (and in the group) the lowest loss is kept
    flops      "6ND": the one of train_flops, num_params and num_tokens that is missing, from the other two

A row is used or stands in `left_out` with its reason; a number that no law can use stops the reading with its place
unless bad rows are to be skipped. Units are stated by the names and never guessed: losses in bits become nats and the
table says so; a loss of another name keeps its own unit. What a column means to a law is for `fit`.
"""

from smelt.foreign.reading import Table, ours, read, to_csv

__all__ = ["Table", "ours", "read", "to_csv"]
