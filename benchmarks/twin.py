"""A seed in, a synthetic twin of the Chinchilla table out: 240 runs whose best fit is known before anything is fitted.

    loss = E + A N^-alpha + B D^-beta, times exp(residual)

The rows spread as those that Epoch AI read off Hoffmann et al. 2022, figure 4 (sizes 5e7 to 3e10, 0.45 to 340 tokens a
parameter, log residuals of 0.5 % with heavy tails, five of six beyond the Huber threshold), but none is copied: those
have no licence.

The optimum is the planted law by construction. At a minimum of the sum of Huber(residual) the clipped residuals times
the derivatives of the log loss add up to zero. A residual beyond the threshold counts by its sign alone; those inside
are moved, as little as possible, until the sum at the planted law is zero. So the law is stationary; that it is a
minimum is said by its Hessian (the fit's certificate), and that none is lower by 4,500 starts of another solver
(`python -m benchmarks.fit`).

`python -m benchmarks.twin` writes fits/tables/chinchilla_twin.csv and prints the objective at the planted law.
"""

import csv
import io
import math
from pathlib import Path

import numpy as np

from smelt import files

FILE = Path(__file__).resolve().parent.parent / "fits" / "tables" / "chinchilla_twin.csv"
LAW = {"E": 1.8, "A": 480.0, "B": 2000.0, "alpha": 0.35, "beta": 0.365}
DELTA = 1e-3
NUM_ROWS = 240
# Seeds 7, 11, 45 and 57 can be balanced too; the objective of this one is nearest the original's 0.001018.
SEED = 61


def rows(seed: int = SEED) -> dict[str, np.ndarray]:
    """Columns num_params, num_tokens and loss_nats of the twin."""
    generator = np.random.default_rng(seed)
    flops = np.exp(generator.uniform(np.log(3e18), np.log(6e21), NUM_ROWS))
    ratio = np.clip(23 * np.exp(1.3 * generator.standard_normal(NUM_ROWS)), 0.45, 340)
    num_params = np.round(np.sqrt(flops / (6 * ratio)))
    num_tokens = np.round(ratio * num_params)
    size_term, token_term = LAW["A"] * num_params ** -LAW["alpha"], LAW["B"] * num_tokens ** -LAW["beta"]
    predicted = LAW["E"] + size_term + token_term
    # Of ln predicted by ln E, ln A, ln B, alpha and beta; centred, so that the five conditions are far from parallel.
    derivatives = np.stack(
        [
            LAW["E"] / predicted,
            size_term / predicted,
            token_term / predicted,
            size_term / predicted * np.log(num_params / 1e9),
            token_term / predicted * np.log(num_tokens / 2e10),
        ],
        axis=1,
    )
    size = np.abs(0.0045 * generator.standard_t(3, NUM_ROWS))
    inside = size < DELTA
    # Of many draws of the signs the one nearest to balance: the rows inside could not make up for just any.
    sign_RN = generator.choice([-1.0, 1.0], size=(4000, NUM_ROWS))
    missing_RP = -(sign_RN * np.minimum(size, DELTA)) @ derivatives
    move_RN = missing_RP @ np.linalg.pinv(derivatives[inside])
    best = int(np.argmin(np.abs(move_RN).max(axis=1)))
    residual = sign_RN[best] * size
    residual[inside] += move_RN[best]
    assert np.abs(residual[inside]).max() < DELTA, f"the rows inside cannot balance the others at seed {seed}"
    return {"num_params": num_params, "num_tokens": num_tokens, "loss_nats": predicted * np.exp(residual)}


def objective(columns: dict[str, np.ndarray], law: dict[str, float] = LAW) -> float:
    """Sum over rows of Huber(ln loss - ln predicted) at a law's parameters, added without rounding."""
    size_term = law["A"] * columns["num_params"] ** -law["alpha"]
    token_term = law["B"] * columns["num_tokens"] ** -law["beta"]
    size = np.abs(np.log(columns["loss_nats"] / (law["E"] + size_term + token_term)))
    clipped = np.minimum(size, DELTA)
    return math.fsum(clipped * (size - clipped / 2))


def read(path: Path = FILE) -> dict[str, np.ndarray]:
    """The committed twin's columns, every digit as it was written."""
    with path.open(newline="") as file:
        table = list(csv.DictReader(file))
    return {name: np.array([float(row[name]) for row in table]) for name in table[0]}


def main() -> None:
    columns = rows()
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(columns)
    for num_params, num_tokens, loss in zip(*columns.values(), strict=True):
        writer.writerow([int(num_params), int(num_tokens), repr(float(loss))])
    FILE.parent.mkdir(exist_ok=True)
    files.write_text(FILE, written.getvalue())
    law = ", ".join(f"{name} = {value:g}" for name, value in LAW.items())
    print(f"{FILE.name}: {NUM_ROWS} rows; optimum {law}; objective there {objective(columns):.16g}")


if __name__ == "__main__":
    main()
