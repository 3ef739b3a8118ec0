"""Every case of the matcher: its errors, the paper's own where there are any, and the seconds.

Run `python -m benchmarks.match`. Errors are relative to the baseline: FLOPs per token, non-embedding parameters, KV
cache; what is not held stands in brackets.
"""

import time

from smelt import budget, papers, variants
from smelt.match import HELD, Match, co_design, match, relative_errors
from smelt.match.lattice import sizes_of
from smelt.spec import FFN, ArchSpec, Attention, Loop

BUDGETS = HELD["three_budgets"]
BYTE_LEVEL = {"context": 128, "multiples": {"d_model": 2, "head_dim": 4, "width": 1}}


def byte_level_moe(
    d_model: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    width: int,
    *,
    num_experts: int = 8,
    num_layers: int = 4,
) -> ArchSpec:
    """An unlooped top-2 MoE over bytes, of the size that a CPU trains in minutes."""
    return ArchSpec(
        vocab_size=256,
        d_model=d_model,
        num_prelude=0,
        loop=Loop(num_layers=num_layers, num_passes=1, residual_scale=1.0, attention_sets="shared"),
        num_coda=0,
        attention=Attention(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, scale="1/sqrt(d_k)"),
        ffn=FFN(width=width, num_experts=num_experts, top_k=2),
        outer_ffn=None,
        router=papers.ROUTER,
        norm_gain=True,
        tied_embeddings=False,
    )


# Ten sizes from 10 k to 430 k parameters, each with a looped partner within 1 % on all three budgets.
LADDER = [
    byte_level_moe(16, 1, 1, 12, 4),
    byte_level_moe(16, 2, 1, 12, 8),
    byte_level_moe(16, 2, 2, 12, 14),
    byte_level_moe(16, 2, 2, 12, 26),
    byte_level_moe(28, 3, 1, 12, 20),
    byte_level_moe(32, 4, 1, 12, 32),
    byte_level_moe(40, 4, 1, 12, 40),
    byte_level_moe(48, 4, 1, 12, 48),
    byte_level_moe(56, 4, 1, 12, 52),
    byte_level_moe(64, 4, 1, 12, 64),
]


def _errors(errors: dict[str, float], held: tuple[str, ...] = BUDGETS) -> str:
    shown = (f"{errors[name]:+.2%}" if name in held else f"({errors[name]:+.2%})" for name in BUDGETS)
    return " ".join(f"{error:>9}" for error in shown)


def _shape(arch: ArchSpec) -> str:
    sizes = sizes_of(arch)
    return "d {d_model} L {num_layers} heads {num_heads}/{num_kv_heads}/{head_dim} E {num_experts} F {width}".format(
        **sizes
    )


def _line(label: str, found: Match, seconds: float) -> None:
    print(f"{label:<46} {_errors(found.errors, HELD[found.held])}  {seconds:5.2f} s  {_shape(found.arch)}")
    if found.reason:
        print(f"    {found.reason}")


def _timed(label: str, baseline: ArchSpec, variant: ArchSpec, **settings) -> None:
    started = time.perf_counter()
    found = match(baseline, variant, **settings)
    _line(label, found, time.perf_counter() - started)


def main() -> None:
    print(f"{'case':<46} {'FLOPs':>9} {'params':>9} {'KV':>9}")
    for scale in papers.SMELT_LOOPED:
        for base_experts, num_experts in list(papers.SMELT_EXPERTS.items())[1:]:
            baseline = papers.smelt_baseline(scale, base_experts)
            looped = papers.smelt_looped(scale, num_experts)
            own = relative_errors(looped, baseline, context=papers.SMELT_CONTEXT, convention="smelt")
            label = f"SMELT {scale}, {base_experts} experts"
            print(f"{label + ': the paper':<46} {_errors(own)}           {_shape(looped)}")
            for convention in ("smelt", "model"):
                _timed(
                    f"{label}: convention {convention}",
                    baseline,
                    variants.loop_middle(baseline),
                    context=papers.SMELT_CONTEXT,
                    convention=convention,
                )
    for baseline in LADDER:
        label = f"bytes, {budget.params(baseline).non_embedding:,} parameters"
        _timed(label, baseline, variants.loop_middle(baseline), **BYTE_LEVEL)
    baseline = LADDER[-1]
    for label, held, variant in (
        ("whole stack looped", "three_budgets", variants.loop_all),
        ("dense", "flops_and_kv", variants.dense),
        ("dense, whole stack looped", "flops_and_kv", variants.dense_loop_all),
        ("dense", "active_params", variants.dense),
        ("looped middle", "active_params", variants.loop_middle),
        ("looped middle", "none", variants.loop_middle),
        ("dense", "three_budgets", variants.dense),
    ):
        _timed(f"bytes, {label}: {held}", baseline, variant(baseline), held=held, **BYTE_LEVEL)
    foil = papers.foil(8, 8, 2, untied=False)
    for label, variant in (("flattened", variants.flatten), ("untied attention", variants.untie_attention)):
        _timed(f"Foil, {label}: expert_budget", foil, variant(foil), held="expert_budget", context=4096)
    started = time.perf_counter()
    together = co_design(
        byte_level_moe(32, 4, 4, 8, 32),
        (variants.loop_middle, variants.loop_all),
        context=128,
        multiples={"d_model": 4, "head_dim": 8, "width": 2},
    )
    print(f"co-design of two loops: baseline moved to {_shape(together.baseline)}")
    for pair in together.matches:
        _line(f"    {pair.arch.num_layers} layers", pair, time.perf_counter() - started)


if __name__ == "__main__":
    main()
