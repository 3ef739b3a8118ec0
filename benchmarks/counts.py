"""The papers' printed tables beside what `smelt.budget` counts; `python -m benchmarks.counts > docs/counts.md`.

A count reproduces a printed number when it rounds to it. SMELT's sparsity needs the printed S = 0 row of its own
architecture as the control, which is printed to two digits: there the count is the interval that its rounding allows.
What is known not to reproduce stands in `KNOWN_MISSES`, and the table shows by how much it misses. The last table lists
every architecture of the papers with its counts, printed or not.
"""

from dataclasses import dataclass

from smelt import budget, papers, variants
from smelt.spec import ArchSpec


@dataclass(frozen=True, kw_only=True)
class Count:
    """One printed number and the lowest and highest count it may be compared with (equal, but for SMELT's S)."""

    table: str
    model: str
    quantity: str
    printed: str
    low: float
    high: float

    @property
    def half_digit(self) -> float:
        """Half a unit of the last printed digit."""
        decimals = len(self.printed.partition(".")[2])
        return 0.5 * 10.0**-decimals

    @property
    def miss(self) -> float:
        """How far the count lies from the printed number; 0 inside the interval."""
        printed = float(self.printed)
        return max(self.low - printed, printed - self.high, 0.0)

    @property
    def reproduces(self) -> bool:
        return self.miss <= self.half_digit * (1 + 1e-9)


# scale -> for each of the four expert counts: active B, S %, total N B
SMELT_BASELINE_PRINTED = {
    "100M": (
        ("0.100", "0", "0.10"),
        ("0.100", "86.0", "0.71"),
        ("0.101", "95.2", "2.12"),
        ("0.102", "97.2", "3.70"),
    ),
    "1.6B": (
        ("1.629", "0", "1.63"),
        ("1.632", "84.5", "10.55"),
        ("1.641", "94.7", "30.94"),
        ("1.651", "96.9", "53.89"),
    ),
}
# the same, then FLOPs ratio and KV ratio over the Baseline of the column
SMELT_LOOPED_PRINTED = {
    "100M": (
        ("0.071", "0", "0.10", "1.081", "1.018"),
        ("0.067", "86.8", "0.71", "1.024", "0.964"),
        ("0.069", "95.5", "2.12", "1.031", "0.964"),
        ("0.070", "97.4", "3.70", "1.039", "0.964"),
    ),
    "1.6B": (
        ("1.101", "0", "1.64", "1.022", "0.984"),
        ("1.081", "84.6", "10.45", "1.000", "0.984"),
        ("1.091", "94.8", "30.90", "1.004", "0.984"),
        ("1.103", "97.0", "53.90", "1.008", "0.984"),
    ),
}
# d_model -> active M, stored Looped-MoE M, stored MoE M
LOOPED_MOE_PRINTED = {
    128: ("16", "18", "23"),
    384: ("67", "81", "124"),
    512: ("103", "129", "207"),
    768: ("190", "247", "417"),
    1024: ("305", "407", "711"),
}
# run -> stored M, which follows from the formula of the released code
FOIL_PRINTED = {"S1": "520.2", "U1": "553.73", "U2": "553.73", "U3": "553.73", "U4": "553.73"}
# SMELT's S = 0 rows do not follow "top-8 of 16 equal experts" of its sparse rows' geometry; the MoE of 366 M is no
# multiple of 64 wide (704 is the nearest).
KNOWN_MISSES = {
    ("SMELT 100M, 16 experts", "active B"),
    ("SMELT 100M, 16 experts", "total B"),
    ("SMELT 100M, 16 experts", "FLOPs ratio"),
    ("SMELT 100M, 16 experts", "KV ratio"),
    ("SMELT 1.6B, 16 experts", "active B"),
    ("SMELT 1.6B, 16 experts", "total B"),
    ("SMELT 1.6B, 16 experts", "FLOPs ratio"),
    ("MoE 16, d 704", "stored M"),
}


def counts() -> list[Count]:
    """Every printed number that `papers` can be held against."""
    return [*_smelt_baseline(), *_smelt_looped(), *_foil(), *_looped_moe(), *_multi_view()]


def _count(table: str, model: str, quantity: str, printed: str, counted: float) -> Count:
    return Count(table=table, model=model, quantity=quantity, printed=printed, low=counted, high=counted)


def smelt_flops(arch: ArchSpec) -> float:
    return budget.train_flops_per_token(arch, papers.SMELT_CONTEXT, "smelt")


def _smelt_baseline() -> list[Count]:
    found = []
    for scale, rows in SMELT_BASELINE_PRINTED.items():
        for num_experts, (active, sparsity, total) in zip(papers.SMELT_EXPERTS, rows, strict=True):
            arch = papers.smelt_baseline(scale, num_experts)
            model, table = f"Baseline {scale}, {num_experts} experts", "SMELT's Baseline"
            counted = 100 * budget.sparsity(arch, arch, papers.SMELT_CONTEXT, "smelt")
            found += [
                _count(table, model, "active B", active, budget.active_params(arch) / 1e9),
                _count(table, model, "S %", sparsity, counted),
                _count(table, model, "total B", total, budget.params(arch).non_embedding / 1e9),
            ]
    return found


def _smelt_looped() -> list[Count]:
    found = []
    for scale, rows in SMELT_LOOPED_PRINTED.items():
        control_experts = next(iter(papers.SMELT_EXPERTS))
        control_num_params, control_ratio = float(rows[0][2]), float(rows[0][3])
        control_flops = control_ratio * smelt_flops(papers.smelt_baseline(scale, control_experts))
        for (base_experts, num_experts), (active, sparsity, total, flops, kv) in zip(
            papers.SMELT_EXPERTS.items(), rows, strict=True
        ):
            base, arch = papers.smelt_baseline(scale, base_experts), papers.smelt_looped(scale, num_experts)
            model, table = f"SMELT {scale}, {num_experts} experts", "SMELT"
            num_params = budget.params(arch).non_embedding
            kv_ratio = budget.kv_cache_bytes_per_token(arch) / budget.kv_cache_bytes_per_token(base)
            found.append(_count(table, model, "active B", active, budget.active_params(arch) / 1e9))
            if base_experts != control_experts:  # S of the control is 0 by definition
                # N0 is printed to two digits: its rounding is the width of the interval
                ends = (
                    100
                    * budget.compute_equivalent_sparsity(
                        smelt_flops(arch), num_params, control_flops, 1e9 * (control_num_params + rounding)
                    )
                    for rounding in (0.005, -0.005)
                )
                low, high = ends
                found.append(Count(table=table, model=model, quantity="S %", printed=sparsity, low=low, high=high))
            found += [
                _count(table, model, "total B", total, num_params / 1e9),
                _count(table, model, "FLOPs ratio", flops, smelt_flops(arch) / smelt_flops(base)),
                _count(table, model, "KV ratio", kv, kv_ratio),
            ]
    least, most = (
        [
            smelt_flops(arch) * num_tokens
            for scale in SMELT_LOOPED_PRINTED
            for base_experts, num_experts in list(papers.SMELT_EXPERTS.items())[1:]
            for arch in (papers.smelt_baseline(scale, base_experts), papers.smelt_looped(scale, num_experts))
        ]
        for num_tokens in (papers.SMELT_HORIZONS_TOKENS[0], papers.SMELT_HORIZONS_TOKENS[-1])
    )
    return [
        *found,
        _count("SMELT", "fitted window, from", "1e19 FLOPs", "1.3", min(least) / 1e19),
        _count("SMELT", "fitted window, to", "1e21 FLOPs", "2.2", max(most) / 1e21),
    ]


def _foil() -> list[Count]:
    return [
        _count("Foil", _foil_label(run), "stored M", printed, budget.params(papers.foil_run(run)).total / 1e6)
        for run, printed in FOIL_PRINTED.items()
    ]


def _foil_label(run: str) -> str:
    name = papers.FOIL_NAMES.get(papers.FOIL_LARGE.get(run, run), "")
    return f"{run} {name}".strip() + f" {_foil_shape(run)}"


def _foil_shape(run: str) -> tuple[int, int, int]:
    return (papers.FOIL_TIED | papers.FOIL_UNTIED)[papers.FOIL_LARGE.get(run, run)]


def _looped_moe() -> list[Count]:
    found = []
    for d_model, (active, stored_looped, stored_moe) in LOOPED_MOE_PRINTED.items():
        looped = papers.looped_moe(d_model, num_experts=8, num_passes=2)
        moe = papers.looped_moe(d_model, num_experts=8, num_passes=1)
        found += [
            _looped(f"Looped-MoE 8x2, d {d_model}", "active M", active, budget.looped_moe_active(looped)),
            _looped(f"Looped-MoE 8x2, d {d_model}", "stored M", stored_looped, budget.params(looped).total),
            _looped(f"MoE 16, d {d_model}", "active M", active, budget.looped_moe_active(moe)),
            _looped(f"MoE 16, d {d_model}", "stored M", stored_moe, budget.params(moe).total),
        ]
    at_704 = papers.looped_moe(704, num_experts=8, num_passes=2)
    stored = {
        ("Looped-MoE 8x2, d 704", "216"): at_704,
        ("MoE 16, d 704", "366"): papers.looped_moe(704, num_experts=8, num_passes=1),
        ("Base 16, d 896", "246"): papers.looped_moe(896, num_experts=1, num_passes=1),
        ("Looped 8x2, d 896", "168"): papers.looped_moe(896, num_experts=1, num_passes=2),
    }
    found.append(_looped("Looped-MoE 8x2, d 704", "active M", "167.4", budget.looped_moe_active(at_704)))
    for (model, printed), arch in stored.items():
        found.append(_looped(model, "stored M", printed, budget.params(arch).total))
    return found


def _looped(model: str, quantity: str, printed: str, counted: int) -> Count:
    return _count("Looped-MoE", model, quantity, printed, counted / 1e6)


def _multi_view() -> list[Count]:
    one = papers.multi_view_backbone()
    stored = {name: budget.params(arch).total for name, arch in _heads_and_views().items()}
    backbone = stored["one head"]
    active = budget.active_params(one) + budget.params(one).embedding + budget.params(one).head
    overheads = {
        ("a second head, over the backbone", "0.06"): stored["two heads"] - backbone,
        ("a second view, over the backbone", "0.13"): stored["two heads, two views"] - stored["two heads"],
        ("both, over the backbone", "0.19"): stored["two heads, two views"] - backbone,
    }
    return [
        _count("Multi-Router and Multi-View", "one head", "stored B", "10", backbone / 1e9),
        _count("Multi-Router and Multi-View", "one head", "active B", "1", active / 1e9),
        *(
            _count("Multi-Router and Multi-View", model, "parameters %", printed, 100 * further / backbone)
            for (model, printed), further in overheads.items()
        ),
    ]


def _heads_and_views() -> dict[str, ArchSpec]:
    one = papers.multi_view_backbone()
    two = variants.multi_router(one)
    return {"one head": one, "two heads": two, "two heads, two views": variants.multi_view(two)}


def architectures() -> dict[str, ArchSpec]:
    """Every architecture of the four papers by its label; of SMELT's cells, those of the first sparse level."""
    found: dict[str, ArchSpec] = {}
    for scale in papers.SMELT_BASELINE:
        found[f"SMELT's Baseline {scale}, 64 experts"] = papers.smelt_baseline(scale, 64)
        found[f"SMELT {scale}, 96 experts"] = papers.smelt_looped(scale, papers.SMELT_EXPERTS[64])
    for run in [*papers.FOIL_TIED, *papers.FOIL_UNTIED, *papers.FOIL_LARGE]:
        found[f"Foil {_foil_label(run)}"] = papers.foil_run(run)
    for run in papers.FOIL_NAMES:
        arch = papers.foil(*_foil_shape(run), untied=run in papers.FOIL_UNTIED, tier="pilot")
        found[f"Foil, pilot tier, {_foil_label(run)}"] = arch
    for num_experts, num_passes in ((1, 1), (1, 2), (8, 1), (8, 2), (8, 4), (8, 8)):
        sparse = "-MoE" if num_experts > 1 else ""
        name = f"Looped{sparse} {16 // num_passes}x{num_passes}" if num_passes > 1 else f"{sparse[1:] or 'Base'} 16"
        found[f"{name}, d 704"] = papers.looped_moe(704, num_experts=num_experts, num_passes=num_passes)
    found |= {f"LatentMoE, {name}": arch for name, arch in _heads_and_views().items()}
    return found


LISTED = (
    "d",
    "layers",
    "executed",
    "E_real",
    "E_eq",
    "E_comp",
    "stored M",
    "non-embedding M",
    "active M",
    "executed M",
)


def _listed(arch: ArchSpec) -> list[str]:
    experts, stored = budget.expert_budget(arch), budget.params(arch)
    counts = (stored.total, stored.non_embedding, budget.active_params(arch), budget.executed_params(arch))
    sizes = (arch.d_model, arch.num_layers, arch.effective_depth, experts.e_real, experts.e_eq, experts.e_comp)
    return [*map(str, sizes), *(f"{count / 1e6:.2f}" for count in counts)]


NOTES = {
    "SMELT's Baseline": "arXiv 2609.01343. Heads and expert widths are reconstructed (see `smelt/papers.py`); the "
    "control of S is the Baseline's own fully active form. FLOPs under the convention `smelt` at context 4096.",
    "SMELT": "The control of S is SMELT's own S = 0 row as printed (FLOPs ratio and N); the interval is what the "
    "rounding of N allows. The rows of 16 experts are known not to follow the geometry of the sparse rows. The fitted "
    "window reaches from the sparse run of least compute to that of most.",
    "Foil": "arXiv 2609.35751, width 1024, vocabulary 49,152; all parameters, embeddings included. "
    "Its two numbers are not printed: they follow from the formula of its released code, which a test holds every "
    "registered shape to.",
    "Looped-MoE": "arXiv 2605.09165, vocabulary 50,257; active parameters count every executed layer and both "
    "embeddings. The width of the 246M and 168M models is inferred: 896 is the multiple of 64 that gives both. None "
    "gives the MoE of 366M; 704 is the nearest. The active 167.4M is derived, not printed.",
    "Multi-Router and Multi-View": "24 layers, 256 experts top-8 on a latent of 512, width 1024. Width and latent are "
    "inferred from the printed overheads; expert widths, heads and vocabulary are chosen so that the totals come out "
    "(`papers.multi_view_backbone`), so the totals are no witness and the overheads are one of the shape alone.",
}


def markdown(found: list[Count]) -> str:
    """The page: one table a paper, one line a number."""
    lines = [
        "# Counts against the papers",
        "",
        "Printed numbers beside what `smelt.budget` counts. Made by `python -m benchmarks.counts > docs/counts.md`;",
        "a test holds this page to it.",
    ]
    for table, note in NOTES.items():
        lines += ["", f"## {table}", "", note, ""]
        lines += ["| model | quantity | printed | counted | |", "|---|---|---:|---:|---|"]
        for count in found:
            if count.table == table:
                lines.append(
                    f"| {count.model} | {count.quantity} | {count.printed} | {_counted(count)} | {_verdict(count)} |"
                )
    lines += [
        "",
        "## Every architecture",
        "",
        "Executed: layers with every visit counted. E_real, E_eq and E_comp are of the loop block. Active: one "
        "physical traversal, k experts, no embeddings; executed parameters count every visit. L1 to L4 and UL1 to UL4 "
        "are registered in Foil's code; that their shapes are those of the main tier is assumed.",
        "",
        f"| architecture | {' | '.join(LISTED)} |",
        f"|---|{'---:|' * len(LISTED)}",
        *(f"| {label} | {' | '.join(_listed(arch))} |" for label, arch in architectures().items()),
    ]
    return "\n".join(lines) + "\n"


def _counted(count: Count) -> str:
    decimals = len(count.printed.partition(".")[2]) + 1
    low, high = (f"{value:.{decimals}f}" for value in (count.low, count.high))
    return low if low == high else f"{low} to {high}"


def _verdict(count: Count) -> str:
    if count.reproduces:
        return "yes"
    return f"off by {count.low / float(count.printed) - 1:+.1%}"


if __name__ == "__main__":
    print(markdown(counts()), end="")
