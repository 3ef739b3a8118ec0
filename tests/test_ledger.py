import csv
import json

import pytest

from smelt import ledger, spec
from smelt.errors import BadInput
from tests import synthetic, test_spec


@pytest.fixture(scope="module")
def rows():
    return synthetic.planted_rows(synthetic.planted_grid())[:4]


@pytest.mark.smoke
def test_rows_survive_a_csv_digit_by_digit(rows, tmp_path):
    ledger.export(rows, tmp_path / "rows.csv")
    assert ledger.read_csv(tmp_path / "rows.csv") == [ledger.check(row, "row") for row in rows]


def test_a_parquet_holds_the_same_values(rows, tmp_path):
    import pyarrow.parquet

    ledger.export(rows, tmp_path / "rows.parquet")
    back = pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [row["val_loss_nats"] for row in back] == [row["val_loss_nats"] for row in rows]
    assert back[0]["arch.outer_ffn.width"] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"val_loss_nats": float("nan")}, "val_loss_nats is nan"),
        ({"val_loss_nats": None}, "null without a reason"),
        ({"num_tokens": None}, "num_tokens is null, and may not be"),
        ({"num_tokens": "many"}, "expected int"),
        ({"surprise": 1}, "unknown column 'surprise'"),
        ({"outcome": "excellent"}, "outcome is 'excellent'"),
    ],
)
def test_a_row_that_is_not_whole_is_refused(rows, change, message):
    with pytest.raises(BadInput, match=message):
        ledger.check(rows[0] | change, "row")


def test_a_missing_column_is_refused(rows):
    with pytest.raises(BadInput, match="'seed' is missing"):
        ledger.check({name: value for name, value in rows[0].items() if name != "seed"}, "row")


def test_a_ledger_without_the_columns_of_a_part_is_one_of_architectures_without_it(rows, tmp_path):
    part = {name for name, column in ledger.COLUMNS.items() if column.may_lack}
    assert "arch.router.sigmoid.num_heads" in part
    assert not part & {"arch.outer_ffn.width", "arch.ffn.width", "val_loss_nats"}
    lines = ledger.to_csv(rows).splitlines()
    kept = [index for index, name in enumerate(lines[0].split(",")) if name not in part]
    table = [[line[index] for index in kept] for line in csv.reader(lines)]
    with (tmp_path / "rows.csv").open("w") as file:
        csv.writer(file).writerows(table)
    assert ledger.read_csv(tmp_path / "rows.csv") == [ledger.check(row, "row") for row in rows]


def test_a_row_of_an_architecture_with_every_part_survives_a_csv(rows, tmp_path):
    flat = spec.flatten(test_spec.WHOLE)
    assert None not in flat.values()
    ledger.export([rows[0] | flat], tmp_path / "rows.csv")
    assert ledger.read_csv(tmp_path / "rows.csv")[0].items() >= flat.items()


def test_a_null_with_its_reason_is_a_row(rows):
    row = rows[0] | {"bits_per_byte": None, "null_reasons": json.dumps({"bits_per_byte": "bytes unknown"})}
    assert ledger.check(row, "row")["bits_per_byte"] is None


def test_only_folders_with_a_row_are_read(rows, tmp_path):
    ledger.write(tmp_path / rows[0]["run_id"], rows[0])
    (tmp_path / "unfinished").mkdir()
    assert [row["run_id"] for row in ledger.read_folder(tmp_path)] == [rows[0]["run_id"]]
    assert not list(tmp_path.rglob("*.tmp"))


def test_ledgers_merge_and_a_contradiction_is_named(rows):
    assert len(ledger.merge([rows[:3], rows[1:]])) == 4
    other = rows[0] | {"val_loss_nats": rows[0]["val_loss_nats"] + 1e-9, "host": "elsewhere"}
    with pytest.raises(BadInput, match=f"{rows[0]['run_id']} stands twice with val_loss_nats"):
        ledger.merge([rows, [other]])
