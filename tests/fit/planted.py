"""Synthetic rows from planted laws, seeded: what the fits are held to."""

import numpy as np

from smelt import fit

# A byte-level quickstart in shape: 1e11 to 8e11 FLOPs, losses of 3.7 to 2.7 nats.
LAW = {"E": 1.0, "A": 60.0, "K": 900.0, "a": 0.35, "c": 0.45}
# The replication of Chinchilla's approach 3 (Besiroglu et al. 2024), as the law of a synthetic twin.
CHINCHILLA = {"E": 1.8172, "A": 482.01, "B": 2085.43, "alpha": 0.3478, "beta": 0.3658}


def chinchilla_twin(seed: int = 0, num_rows: int = 240, noise: float = 0.004) -> tuple[dict, np.ndarray]:
    """Sizes, tokens and losses spread as in Hoffmann et al.'s figure 4, with noise of Student's t (heavy tails)."""
    generator = np.random.default_rng(seed)
    num_params = np.exp(generator.uniform(np.log(4e7), np.log(1.5e10), num_rows))
    num_tokens = num_params * np.exp(generator.uniform(np.log(0.5), np.log(200), num_rows))
    columns = {"num_params": num_params, "num_tokens": num_tokens}
    log_noise = noise * generator.standard_t(4, num_rows)
    return columns, fit.predicted_loss(fit.CHINCHILLA, CHINCHILLA, columns) * np.exp(log_noise)


def frontier_loss(compute_flops: float, saving: float = 0.0) -> float:
    """The planted law's least loss at a compute, for a group that saves `saving` of it."""
    compute = compute_flops / (1 - saving)
    a, c, A, K = (LAW[name] for name in ("a", "c", "A", "K"))
    size = (a * A * compute**c / (c * K)) ** (1 / (a + c))
    return LAW["E"] + A * size**-a + K * (compute / size) ** -c


def grid(
    seed: int,
    saving: float = 0.0,
    *,
    pair_noise: float = 0.003,
    own_noise: float = 0.003,
    num_budgets: int = 4,
    num_sizes: int = 5,
) -> dict[str, list]:
    """Matched pairs of runs of the groups base and target on an IsoFLOP grid, as columns.

    `saving` is the same at every budget: the target is worth base with 1/(1-saving) of the compute. Noise in nats:
    `pair_noise` is shared by a pair, `own_noise` is not.
    """
    generator = np.random.default_rng(seed)
    names = ("group", "budget_flops", "pair", "seed", "num_params", "num_tokens", "train_flops", "loss_nats")
    table: dict[str, list] = {name: [] for name in (*names, "flops_per_token")}
    worth = {"base": 1.0, "target": (1 - saving) ** -0.5}
    a, c, A, K = (LAW[name] for name in ("a", "c", "A", "K"))
    for budget in np.geomspace(1e11, 8e11, num_budgets):
        best = (a * A * budget**c / (c * K)) ** (1 / (a + c))
        for index in range(num_sizes):
            flops_per_token = float(best * 1.7 ** (index - (num_sizes - 1) / 2))
            num_tokens = float(budget / flops_per_token)
            shared = pair_noise * generator.normal()
            for group, factor in worth.items():
                loss = LAW["E"] + A * (flops_per_token * factor) ** -a + K * (num_tokens * factor) ** -c
                values = {
                    "group": group,
                    "budget_flops": float(budget),
                    "pair": f"size {index}",
                    "seed": 0,
                    "num_params": flops_per_token / 6.9,
                    "num_tokens": num_tokens,
                    "train_flops": float(budget),
                    "flops_per_token": flops_per_token,
                    "loss_nats": float(loss + shared + own_noise * generator.normal()),
                }
                for name, value in values.items():
                    table[name].append(value)
    return table


def only(table: dict[str, list], group: str) -> dict[str, np.ndarray]:
    rows = [row for row, name in enumerate(table["group"]) if name == group]
    return {name: np.array([values[row] for row in rows]) for name, values in table.items()}


# Each named law with values near those that it was published with.
LAWS = {
    "chinchilla": CHINCHILLA,
    "tied": {"E": 1.508, "A": 113.7, "B": 152.0, "alpha": 0.2425},
    "smelt": {"E": 1.2, "A": 600.0, "K": 1200.0, "a": 0.24, "b": 0.13, "c": 0.31},
    "flops_tokens": {"E": 1.2, "A": 600.0, "K": 1200.0, "a": 0.24, "c": 0.31},
    "pure": {"A": 60.0, "alpha": 0.07},
    "saturating": {"E": 1.7, "A": 900.0, "alpha": 0.15},
    "iso_depth": {"E": 1.57, "A": 45.0, "B": 2200.0, "alpha": 0.199, "beta": 0.369, "phi": 0.46},
    "data_constrained": {"E": 1.87, "A": 521.0, "B": 1488.0, "alpha": 0.353, "beta": 0.353, "r_tokens": 15.4},
    "data_constrained_params": {
        **{"E": 1.87, "A": 521.0, "B": 1488.0, "alpha": 0.353, "beta": 0.353},
        **{"r_params": 5.3, "r_tokens": 15.4},
    },
    "kaplan": {"K": 20.1, "alpha_D": 0.095, "ratio": 0.8, "balance": -5.9},
    "gamma": {"E": 1.6, "K": 577.0, "gamma": 0.6, "alpha": 0.5, "beta": 0.55, "balance": -1.61},
    "moe_sparsity": {
        **{"E": 1.2, "A": 250.0, "B": 1900.0, "C": 0.35, "G": 40.0},
        **{"alpha": 0.32, "beta": 0.36, "lambda": 0.4, "delta": -0.25, "gamma": 0.25},
    },
    "active_total": {"E": 1.5, "A": 250.0, "B": 1900.0, "alpha": 0.18, "gamma": 0.12, "beta": 0.36},
    "routed": {"K": 12.7, "a": -0.082, "b": -0.108, "c": 0.009, "experts_start": 1.85, "experts_max": 314.0},
}


def columns_of(law: fit.Law, seed: int = 0, num_rows: int = 120) -> dict[str, np.ndarray]:
    """The law's columns: sizes and tokens over three decades, experts, passes and repeats as papers vary them."""
    generator = np.random.default_rng(seed)

    def between(low: float, high: float) -> np.ndarray:
        return np.exp(generator.uniform(np.log(low), np.log(high), num_rows))

    size = between(2e7, 1e10)
    tokens = size * between(1, 300)
    density = generator.choice([1.0, 0.5, 0.25, 0.1, 0.05, 0.02], num_rows)
    looped = generator.uniform(0.3, 0.8, num_rows)
    columns = {
        "num_params": size,
        "num_tokens": tokens,
        "compute_flops": 6 * size * tokens,
        "flops_per_token": 6 * size * density,
        "density": density,
        "num_params_once": size * (1 - looped),
        "num_params_recurrent": size * looped,
        "num_passes": generator.choice([1.0, 2.0, 4.0, 8.0], num_rows),
        "num_unique_tokens": tokens / between(1, 60),
        "num_useful_params": size / between(1, 30),
        "num_params_active": size * density**0.8 * between(0.8, 1.2),
        "num_experts": generator.choice(2.0 ** np.arange(10), num_rows),
    }
    return {name: columns[name] for name in law.columns}
