"""Anybody's table: what is meant is read to the last digit, what is left out is listed, and nothing is guessed."""

import json
import math

import numpy as np
import pytest

from smelt import foreign
from smelt.errors import BadInput

COLUMNS = {"num_params": "N", "num_tokens": "D", "loss_nats": "L"}
ROWS = [("1e6", "2e7", "3.5"), ("2e6", "4e7", "3.25"), ("4e6", "8e8", "3.0")]


def written(tmp_path, lines, name="theirs.csv"):
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def table(tmp_path, rows=ROWS, header="N,D,L", columns=COLUMNS, **options):
    return foreign.read(written(tmp_path, [header, *(",".join(row) for row in rows)]), columns, **options)


def codes(found):
    return [flag.code for flag in found.warnings]


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("1.3B", 1.3e9),
        ("400M", 4e8),
        ("400m", 4e8),
        ("12k", 12e3),
        ("2T", 2e12),
        ("7e9", 7e9),
        (".5e9", 5e8),
        ('"1,000,000"', 1e6),
        ("1_000_000", 1e6),
        ('" 70 B "', 7e10),
        ("9223372036854775807", 9223372036854775807.0),
        ("0.1234567890123456789", 0.1234567890123456789),
    ],
)
def test_a_count_is_read_as_people_write_it(tmp_path, cell, value):
    found = table(tmp_path, [(cell, "2e7", "3.5")])
    assert found.columns["num_params"].dtype == np.float64
    assert found.columns["num_params"][0] == value


@pytest.mark.parametrize(
    ("cell", "secs"), [("90", 90.0), ("90 s", 90.0), ("1.5min", 90.0), ("2h", 7200.0), ("1 d", 86400.0)]
)
def test_seconds_are_read_in_units_of_time_and_never_in_millions(tmp_path, cell, secs):
    assert table(tmp_path, [(cell, "2e7")], "T,D", {"train_secs": "T", "num_tokens": "D"}).columns["train_secs"] == secs


@pytest.mark.parametrize(
    ("ours", "cell", "message"),
    [
        ("num_params", "1Mio", "N is '1Mio': expected a number"),
        ("num_params", "1e9B", "N is '1e9B'"),
        ("num_params", "50%", "N is '50%'"),
        ("num_params", '"1,5"', "N is '1,5': expected a number with a decimal point"),
        ("num_params", "True", "N is 'True'"),
        ("train_secs", "45m", "N is '45m': expected a number of seconds, or one with s sec secs min h hr d"),
        ("stored_bytes", "1.3B", "N is '1.3B': expected a number, or one with kB MB GB"),
        ("bits_per_byte", "1.2k", "N is '1.2k'"),
        ("bits_per_byte", '"3,141"', "N is '3,141': expected a number with a decimal point"),
        ("error", "34.2", "N is 34.2: a share is at most 1, or written with %"),
        ("sparsity", "1.0", "N is 1.0: a sparsity is a share from 0 to below 1"),
        ("density", "1.5", "N is 1.5: a share is at most 1"),
        ("num_params", "", "N is empty: num_params is expected"),
        ("num_params", "nan", "N is nan: num_params must be finite and above 0"),
        ("num_params", "inf", "N is inf"),
        ("num_params", "-1", "N is -1"),
        ("num_params", "0", "N is 0"),
        ("group", "", "N is empty: a group is expected"),
    ],
)
def test_a_cell_that_cannot_be_meant_is_named_with_its_place_or_skipped_and_listed(tmp_path, ours, cell, message):
    rows = [("0.5" if ours in ("sparsity", "density", "error") else "2", "2e7"), (cell, "3e7")]
    columns = {ours: "N", "num_tokens": "D"}
    with pytest.raises(BadInput, match=rf"theirs.csv:3: {message}.*; mend or drop the row, or skip bad rows"):
        table(tmp_path, rows, "N,D", columns)
    found = table(tmp_path, rows, "N,D", columns, skip_bad=True)
    assert found.rows == (2,)
    assert [item["row"] for item in found.left_out] == [3]
    assert found.left_out[0]["reason"].startswith("N is ")


@pytest.mark.parametrize("loss", ["nan", "-3", "0", "inf"])
def test_a_loss_that_no_law_can_have_stops_the_reading_and_an_empty_one_is_listed(tmp_path, loss):
    with pytest.raises(BadInput, match=rf"theirs.csv:3: L is {loss}"):
        table(tmp_path, [ROWS[0], ("2e6", "4e7", loss)])
    found = table(tmp_path, [ROWS[0], ("2e6", "4e7", ""), ("3e6", "4e7", "n/a")])
    assert found.left_out == ({"row": 3, "reason": "no loss"}, {"row": 4, "reason": "no loss"})


def test_a_table_between_semicolons_is_named_as_one(tmp_path):
    path = written(tmp_path, ["N;D;L", "1e6;2e7;3.5"])
    with pytest.raises(BadInput, match="has no column 'N': it has N;D;L; they stand between semicolons: save it with"):
        foreign.read(path, COLUMNS)


def test_a_spreadsheet_with_a_mark_quoted_headers_and_blank_rows_is_read(tmp_path):
    path = tmp_path / "theirs.csv"
    path.write_bytes(b'\xef\xbb\xbf"N", "D","L"\r\n1e6, 2e7, 3.5\r\n\r\n,,\r\n"2,000,000",4e7,3.25\r\n')
    found = foreign.read(path, COLUMNS)
    assert found.columns["num_params"].tolist() == [1e6, 2e6]
    assert found.rows == (2, 5)
    assert found.left_out == ({"row": 4, "reason": "blank row"},)


def test_the_four_kinds_of_file_hold_the_same_table(tmp_path):
    import pyarrow
    import pyarrow.parquet

    records = [
        {"N": 4_000_000_000, "D": 8_000_000_000_000, "L": 0.1 + 0.2, "who": "a, b"},
        {"N": 1, "D": 2, "L": None, "who": "c"},
        {"N": 2_000_000_000, "D": 9_000_000_000_000, "L": 2.5, "who": "d"},
    ]
    lines = [[json.dumps(value) if value is not None else "" for value in record.values()] for record in records]
    written(tmp_path, ["N,D,L,who", *(",".join(line) for line in lines)], "a.csv")
    written(tmp_path, ["N\tD\tL\twho", *("\t".join(line) for line in lines)], "b.tsv")
    written(tmp_path, [json.dumps(record) for record in records], "c.jsonl")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "d.parquet")
    columns = {**COLUMNS, "group": "who"}
    found = {name: foreign.read(tmp_path / name, columns) for name in ("a.csv", "b.tsv", "c.jsonl", "d.parquet")}
    for name, one in found.items():
        assert one.columns["loss_nats"].tolist() == [0.1 + 0.2, 2.5], name
        assert one.columns["num_params"].tolist() == [4e9, 2e9], name
        assert one.texts["group"] == ("a, b", "d"), name
    assert found["d.parquet"].rows == found["c.jsonl"].rows == (1, 3)
    assert found["a.csv"].rows == (2, 4)


def test_products_of_large_integers_do_not_overflow(tmp_path):
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "large.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"N": 4 * 10**9, "D": 10**13, "L": 2.0}]), path)
    assert foreign.read(path, COLUMNS, flops="6ND").columns["train_flops"].tolist() == [2.4e23]


def test_nested_records_of_a_logger_are_read_by_dotted_names(tmp_path):
    lines = [
        '{"config": {"model": {"params": "1.3B"}}, "summary": {"tokens": 26e9, "loss": 2.9, "extra": [1, 2]}}',
        "",
        '{"config": {"model": {"params": 4e8}}, "summary": {"tokens": 8e9}}',
    ]
    columns = {"num_params": "config.model.params", "num_tokens": "summary.tokens", "loss_nats": "summary.loss"}
    found = foreign.read(written(tmp_path, lines, "runs.jsonl"), columns)
    assert found.columns["num_params"].tolist() == [1.3e9]
    assert found.left_out == ({"row": 3, "reason": "no loss"},)


def test_a_torn_last_line_is_named_or_skipped_and_listed(tmp_path):
    whole = '{"N": 1e6, "D": 2e7, "L": 3.5}'
    path = written(tmp_path, [whole, '{"N": 2e6, "D": 4'], "runs.jsonl")
    with pytest.raises(BadInput, match=r"runs.jsonl:2: is torn: the last line is not whole JSON"):
        foreign.read(path, COLUMNS)
    assert foreign.read(path, COLUMNS, skip_bad=True).left_out[0]["row"] == 2
    path = written(tmp_path, ['{"N": 2e6, "D": 4', whole], "runs.jsonl")
    with pytest.raises(BadInput, match=r"runs.jsonl:1 is not JSON"):
        foreign.read(path, COLUMNS, skip_bad=True)


def test_an_integer_beyond_every_float_is_no_number(tmp_path):
    path = written(tmp_path, [json.dumps({"N": 10**400, "D": 4, "L": 3})], "runs.jsonl")
    with pytest.raises(BadInput, match=r"runs.jsonl:1: N is 1000.*must be finite and above 0"):
        foreign.read(path, {"num_params": "N", "num_tokens": "D", "loss_nats": "L"})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "has no column 'N': it has none"),
        ("a.csv", b"N,D,L\n", "holds no rows"),
        ("a.csv", b"N,N,D,L\n1,1,1,1\n", "has 2 columns 'N'"),
        ("a.csv", b"N,D,L\n1,2\n", "a.csv:2 has 2 fields, the header 3"),
        ("a.csv", b'N,D,L\n1,2,"3\n', "is not CSV"),
        ("a.csv", b"N,D,L\n1,2,\xff\n", "is not UTF-8"),
        ("a.parquet", b"N,D,L\n1,2,3\n", "is no parquet file"),
        ("a.parquet", b"", "is no parquet file"),
        ("a.jsonl", b"[1, 2]\n", "holds list, not an object"),
        ("a.jsonl", b"", "has no column 'N': it has none"),
        ("a.xlsx", b"", "give a file that ends in .csv, .tsv, .parquet, .jsonl"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=message):
        foreign.read(tmp_path / name, COLUMNS)
    with pytest.raises(BadInput, match=r"absent.* does not exist"):
        foreign.read(tmp_path / f"absent{name}", COLUMNS)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"loss": "L"}, "'loss' is no quantity known here; loss_nats or loss_bits may be meant: choose from loss_nats"),
        ({"num_tokns": "D"}, "num_tokens may be meant"),
        ({"frobs": "D"}, "'frobs' is no quantity known here: choose from loss_nats, loss_bits"),
        ({**COLUMNS, "pair": "N+M"}, "has no column 'M'"),
        ({"num_params": "params"}, "has no column 'params': it has N, D, L"),
        ({"loss_nats": "L", "loss_bits": "L"}, "two losses are named, loss_nats and loss_bits"),
        ({"num_params": "N*many"}, "'many' is no factor"),
        ({"num_params": "N*-1"}, "'-1' is no factor"),
        ({"density": "N", "sparsity": "D"}, "density and sparsity say the same"),
        ({}, "no column of .* is named: give OURS=THEIRS"),
    ],
)
def test_a_name_that_says_nothing_is_refused(tmp_path, columns, message):
    with pytest.raises(BadInput, match=message):
        table(tmp_path, columns=columns)


def test_units_are_stated_and_conversions_are_said(tmp_path):
    found = table(
        tmp_path, [("1e6", "2e7", "3.5")], columns={"num_params": "N*1e3", "num_tokens": "D", "loss_bits": "L"}
    )
    assert found.columns["num_params"].tolist() == [1e9]
    assert found.columns["loss_nats"].tolist() == [3.5 * math.log(2)]
    assert (found.loss, found.loss_unit) == ("loss_nats", "nats per token")
    assert found.notes == ("loss_nats is loss_bits times ln 2: bits per token became nats",)
    shares = table(tmp_path, [("95%", "2e7", "34.2 %")], columns={"sparsity": "N", "num_tokens": "D", "error": "L"})
    assert shares.columns["density"].tolist() == [1 - 0.95]
    assert shares.columns["error"][0] == pytest.approx(0.342)
    other = table(tmp_path, columns={"num_params": "N", "loss:prose": "L"})
    assert (other.loss, other.loss_unit) == ("loss:prose", "prose, its own unit")


def test_columns_that_carry_our_names_need_no_naming(tmp_path):
    found = table(tmp_path, header="num_params,num_tokens,loss_nats", columns=None)
    assert set(found.columns) == {"num_params", "num_tokens", "loss_nats"}
    assert foreign.read(written(tmp_path, foreign.to_csv(found).splitlines(), "again.csv")).columns.keys() == (
        found.columns.keys()
    )


def test_flops_are_derived_by_6nd_only_when_asked_and_then_said(tmp_path):
    assert "train_flops" not in table(tmp_path).columns
    found = table(tmp_path, flops="6ND")
    assert found.columns["train_flops"].tolist() == [6 * 1e6 * 2e7, 6 * 2e6 * 4e7, 6 * 4e6 * 8e8]
    assert found.notes == ("train_flops is 6 num_params num_tokens, as asked",)
    tokens = table(tmp_path, columns={"num_params": "N", "train_flops": "D*1e9", "loss_nats": "L"}, flops="6ND")
    assert tokens.columns["num_tokens"][0] == pytest.approx(2e16 / 6e6)
    for columns, message in (
        ({**COLUMNS, "train_flops": "D"}, "has train_flops, num_params, num_tokens: leave it out"),
        ({"num_params": "N", "loss_nats": "L"}, "has num_params: name two of them"),
    ):
        with pytest.raises(BadInput, match=message):
            table(tmp_path, columns=columns, flops="6ND")
    with pytest.raises(BadInput, match="the one rule known here is 6ND"):
        table(tmp_path, flops="8ND")


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        (["L<3.4"], (3, 4)),
        (["L<=3.25", "N>=4M"], (4,)),
        (["L = 3.25"], (3,)),
        (["L!=3.25"], (2, 4)),
        (["who=a"], (2, 3)),
        (["who!=a"], (4,)),
        (["N>1e6"], (3, 4)),
        (["N=1e6|4M"], (2, 4)),
        (["N!=1e6 | 4M"], (3,)),
        (["who=b|c"], (4,)),
    ],
)
def test_a_filter_keeps_what_it_says_and_lists_the_rest(tmp_path, where, rows):
    labelled = [(*row, who) for row, who in zip(ROWS, "aab", strict=True)]
    found = table(tmp_path, labelled, "N,D,L,who", where=where)
    assert found.rows == rows
    assert {item["row"] for item in found.left_out} == {2, 3, 4} - set(rows)
    assert all(item["reason"].startswith("where ") for item in found.left_out)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("L", "compares nothing"),
        ("loss<3", "has no column 'loss'"),
        ("L<three", "'three' is no number, and < compares numbers"),
        ("L>100", "has no row left of 3, the first: where L>100: L is 3.5"),
        ("who<3", "who is 'a': expected a number, for where who<3"),
    ],
)
def test_a_filter_that_cannot_be_meant_is_refused(tmp_path, where, message):
    labelled = [(*row, who) for row, who in zip(ROWS, "aab", strict=True)]
    with pytest.raises(BadInput, match=message):
        table(tmp_path, labelled, "N,D,L,who", where=[where])


def test_words_of_two_columns_are_one_label_and_an_empty_half_is_none(tmp_path):
    rows = [(*row, arch, rank) for row, arch, rank in zip(ROWS, ("moe", "moe", "dense"), "812", strict=True)]
    found = table(tmp_path, rows, "N,D,L,arch,experts", {**COLUMNS, "group": "arch+experts"})
    assert found.texts["group"] == ("moe 8", "moe 1", "dense 2")
    one = table(tmp_path, rows, "N,D,L,arch,arch+experts", {**COLUMNS, "group": "arch+experts"})
    assert one.texts["group"] == ("8", "1", "2")
    with pytest.raises(BadInput, match=r"theirs.csv:4: experts is empty: a group is expected"):
        table(
            tmp_path, [*rows[:2], (*ROWS[2], "dense", "")], "N,D,L,arch,experts", {**COLUMNS, "group": "arch+experts"}
        )


def test_runs_that_differ_in_the_loss_alone_are_flagged_unless_they_are_seeds_or_the_best_is_kept(tmp_path):
    rows = [*ROWS, ("2e6", "4e7", "3.3"), ("2e6", "4e7", "3.35")]
    found = table(tmp_path, rows)
    assert codes(found) == ["repeated_cells"]
    assert "3 rows agree with others in num_params, num_tokens and not in the loss (rows 3 and 5: 3.25 and 3.3)" in (
        found.warnings[0].message
    )
    assert codes(table(tmp_path, rows, best_of=("num_params", "num_tokens"))) == ["best_of_sweep"]
    labelled = [(*row, str(place), who) for place, (row, who) in enumerate(zip(rows, "aaabc", strict=True))]
    header = "N,D,L,seed,who"
    assert codes(table(tmp_path, labelled, header, {**COLUMNS, "seed": "seed"})) == []
    assert codes(table(tmp_path, labelled, header, {**COLUMNS, "group": "who"})) == []


def test_repeated_rows_are_flagged_or_kept_once_and_listed(tmp_path):
    found = table(tmp_path, [*ROWS, ROWS[0]])
    assert codes(found) == ["duplicated_rows"]
    assert "row 5 is row 2" in found.warnings[0].message
    dropped = table(tmp_path, [*ROWS, ROWS[0]], drop_duplicates=True)
    assert (dropped.rows, codes(dropped)) == ((2, 3, 4), [])
    assert dropped.left_out == ({"row": 5, "reason": "repeats row 2 in every named column"},)


def test_the_best_of_a_sweep_is_a_rule_that_is_told(tmp_path):
    sweep = [(*row, rate) for row in ROWS for rate in ("1", "2")]
    sweep[3] = ("2e6", "4e7", "3.2", "2")
    found = table(tmp_path, sweep, "N,D,L,rate", best_of=("num_params", "num_tokens"))
    assert found.columns["loss_nats"].tolist() == [3.5, 3.2, 3.0]
    assert found.rows == (2, 5, 6)
    assert found.selection == {
        "rule": "lowest loss of each (num_params, num_tokens)",
        "num_candidates": 6,
        "num_kept": 3,
        "most_candidates": 2,
        "bias": "biased low by selection",
    }
    assert codes(found) == ["best_of_sweep"]
    assert found.left_out[1] == {"row": 4, "reason": "best of 2: 3.25, row 5 has 3.2"}
    with pytest.raises(BadInput, match="best of 'width': it is neither named nor a column"):
        table(tmp_path, sweep, "N,D,L,rate", best_of=("width",))


def test_the_best_of_a_sweep_is_taken_in_each_group(tmp_path):
    rows = [(*row, who) for row in ROWS[:1] for who in "ab"]
    found = table(tmp_path, rows, "N,D,L,who", {**COLUMNS, "group": "who"}, best_of=("num_params",))
    assert found.texts["group"] == ("a", "b")


def test_losses_per_token_of_two_tokenizers_do_not_mix(tmp_path):
    rows = [(*row, who) for row, who in zip(ROWS, "aab", strict=True)]
    columns = {"num_params": "N", "tokenizer": "who"}
    with pytest.raises(BadInput, match=r"mixes losses per token of 2 tokenizers \(a, b\).*bits_per_byte.*who=a"):
        table(tmp_path, rows, "N,D,L,who", {**columns, "loss_nats": "L"})
    assert codes(table(tmp_path, rows, "N,D,L,who", {**columns, "loss:x": "L"})) == ["mixed_tokenizers"]
    assert codes(table(tmp_path, rows, "N,D,L,who", {**columns, "bits_per_byte": "L"})) == []
    one = table(tmp_path, rows, "N,D,L,who", {**columns, "loss_nats": "L"}, where=["who=a"])
    assert one.rows == (2, 3)


@pytest.mark.parametrize(
    ("ratios", "code"),
    [
        ((1.0, 1.1, 1.3, 1.45), []),
        ((1.0, 1.2, 1.4, 1.7), ["mixed_flops"]),
        ((1.0, 3.0, 1.001, 3.001), ["mixed_flops"]),
        ((1e-9, 1e-9, 1e-9, 1e-9), ["flops_unit"]),
    ],
)
def test_flops_counted_in_several_ways_or_in_another_unit_are_flagged(tmp_path, ratios, code):
    rows = [
        (f"{n}", f"{d}", f"{6 * n * d * ratio}", "3")
        for (n, d), ratio in zip(((1e6, 2e7), (2e6, 1e7), (3e6, 9e8), (4e6, 1e9)), ratios, strict=True)
    ]
    found = table(tmp_path, rows, "N,D,C,L", {**COLUMNS, "train_flops": "C"})
    assert codes(found) == code


def test_flops_that_overflowed_64_bit_integers_are_named_as_such(tmp_path):
    runs = [(10**9, 2 * 10**10), (3 * 10**9, 6 * 10**10), (7 * 10**9, 14 * 10**11), (10**8, 10**9)]
    rows = [(str(n), str(d), str(6 * n * d % 2**64), "3") for n, d in runs]
    found = table(tmp_path, rows, "N,D,C,L", {**COLUMNS, "train_flops": "C"})
    assert codes(found) == ["mixed_flops"]
    assert "3 of 4 rows is 6 num_params num_tokens modulo 2^64" in found.warnings[0].message


def test_budgets_of_two_conventions_are_flagged_with_their_ratios(tmp_path):
    rows = [("1e6", "2e7", "3e18", budget, "3") for budget in ("1e18", "3e18", "1.001e18")]
    columns = {"train_flops": "C", "budget_flops": "B", "loss_nats": "L"}
    found = table(tmp_path, rows, "N,D,C,B,L", columns)
    assert codes(found) == ["mixed_budgets"]
    assert "1 (1 rows), 2.998 (2 rows)" in found.warnings[0].message


def test_tokens_that_go_with_size_are_flagged(tmp_path):
    rows = [("1e6", "2e7", "3.5"), ("2e6", "5e7", "3.25"), ("4e6", "8e7", "3.0")]
    found = table(tmp_path, rows)
    assert codes(found) == ["narrow_ratio"]
    assert "tokens per parameter span 1.25 times" in found.warnings[0].message


def test_a_reading_is_made_again_from_its_settings(tmp_path):
    found = table(tmp_path, [*ROWS, ROWS[0]], flops="6ND", where=["L<3.4"], best_of=("num_params",), skip_bad=True)
    again = foreign.read(found.path, **json.loads(json.dumps(found.settings)))
    assert again.rows == found.rows
    assert again.sha256 == found.sha256
    assert {k: v.tolist() for k, v in again.columns.items()} == {k: v.tolist() for k, v in found.columns.items()}
