"""Requests as JSON lines in, the fits of other packages as JSON lines out: the side of `benchmarks.fit` that has them.

Run by the interpreter of an environment that has the packages, never by smelt's: it imports nothing of smelt. A request
is {"package", "columns", "options"} with columns num_params, num_tokens and loss; an answer {"parameters", "secs"} in
the units of the columns, or {"error"}. The first line written says which packages there are.
"""

import importlib.metadata
import json
import os
import sys
import tempfile
import time

PACKAGES = ("chinchilla", "vpnls", "simple-scaling-laws", "scaling-audit")
# Both grids are products of five axes: the one of chinchilla's README, and Hoffmann et al. 2022, appendix D.3.
GRIDS = {
    "readme": {"E": (1, 2, 5), "a": (1, 10, 5), "b": (1, 10, 5), "alpha": (0.1, 0.7, 5), "beta": (0.1, 0.7, 5)},
    "small": {"E": (1, 2, 3), "a": (1, 10, 3), "b": (1, 10, 3), "alpha": (0.1, 0.7, 3), "beta": (0.1, 0.7, 3)},
}


def fit_chinchilla(columns, loss, grid):
    """BFGS from every point of a grid; `loss` None is the package's own default."""
    import functools

    import chinchilla
    import numpy as np
    import pandas as pd
    from chinchilla._metrics import log_huber

    with tempfile.TemporaryDirectory() as folder:
        fitter = chinchilla.Chinchilla(
            project_dir=folder,
            param_grid={name: np.linspace(*axis) for name, axis in GRIDS[grid].items()},
            log_level=50,
            **({} if loss is None else {"loss_fn": functools.partial(log_huber, delta=1e-3)}),
        )
        sizes, tokens = np.array(columns["num_params"]), np.array(columns["num_tokens"])
        # Not through `append`, which rounds sizes and tokens to whole numbers and so could not take other units.
        fitter.database.df = pd.DataFrame({"C": 6 * sizes * tokens, "N": sizes, "D": tokens, "loss": columns["loss"]})
        fitter.visualizer.optim = lambda *_, **__: None  # a figure, no part of the fit
        start = time.perf_counter()
        fitter.fit()
        secs = time.perf_counter() - start
        return {name: float(getattr(fitter, name)) for name in ("E", "A", "B", "alpha", "beta")}, secs


def fit_vpnls(columns, method):
    """Variable projection with a Huber loss of the raw residuals."""
    import numpy as np
    from vpnls.api import fit_vpnls, huber

    arrays = [np.array(columns[name], dtype=float) for name in ("num_params", "num_tokens", "loss")]
    start = time.perf_counter()
    found = fit_vpnls(*arrays, method=method, loss=huber(1e-3))
    secs = time.perf_counter() - start
    return {name: float(getattr(found, name)) for name in ("E", "A", "B", "alpha", "beta")}, secs


def fit_simple(columns, draws):
    """Least squares of raw losses and its wild bootstrap; amplitudes taken back to the columns' units."""
    import polars
    from simple_scaling_laws import fit

    table = polars.DataFrame(
        {
            "training_run_id": [str(row) for row in range(len(columns["loss"]))],
            "model_size__n": columns["num_params"],
            "dataset_size__d": columns["num_tokens"],
            "test_loss__l": columns["loss"],
        }
    )
    start = time.perf_counter()
    model = fit(table, law="separable-power", n_draws=draws, seed=0)
    secs = time.perf_counter() - start
    found = {name: float(value) for name, value in model.params("test_loss__l").items()}
    domain = model.observed_domain
    found["A"] *= domain["model_size__n"]["reference"] ** found["alpha"]
    found["B"] *= domain["dataset_size__d"]["reference"] ** found["beta"]
    return found, secs


FITS = {"chinchilla": fit_chinchilla, "vpnls": fit_vpnls, "simple-scaling-laws": fit_simple}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # packages print; only answers may reach the other side
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    print(json.dumps(versions), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            parameters, secs = FITS[request["package"]](request["columns"], **request["options"])
            answer = {"parameters": parameters, "secs": secs}
        except Exception as error:  # a package's failure is a result of the comparison
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
