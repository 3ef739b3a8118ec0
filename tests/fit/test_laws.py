"""Laws as values: what they predict, their gradients, that each named one comes back when planted, and adding one."""

import numpy as np
import pytest

from smelt import fit
from smelt.errors import BadInput
from smelt.fit import laws
from tests.fit import planted


@pytest.mark.parametrize("name", list(laws.NAMED))
def test_gradients_agree_with_finite_differences(name):
    law = laws.law(name)
    columns = {column: values[:6] for column, values in planted.columns_of(law).items()}
    parameters = planted.LAWS[name]
    gradient = laws.loss_gradient(law, parameters, columns)
    for parameter, value in parameters.items():
        step = 1e-6 * max(1.0, abs(value))
        up, down = ({**parameters, parameter: value + sign * step} for sign in (1, -1))
        difference = (fit.predicted_loss(law, up, columns) - fit.predicted_loss(law, down, columns)) / (2 * step)
        np.testing.assert_allclose(gradient[parameter], difference, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", list(laws.NAMED))
def test_a_named_law_comes_back_from_noise_free_rows(name):
    law = laws.law(name)
    columns = planted.columns_of(law)
    found = fit.fit_surface(columns, fit.predicted_loss(law, planted.LAWS[name], columns), name)
    assert found.certificate.certified, found.certificate.why_not
    for parameter, value in planted.LAWS[name].items():
        assert found.parameters[parameter] == pytest.approx(value, rel=1e-6), parameter
    assert found.to_json()["estimates"].keys() == planted.LAWS[name].keys()


def test_shapes_lie_inside_their_bootstrap_intervals():
    inside = []
    for name in ("iso_depth", "data_constrained", "gamma", "kaplan", "routed"):
        law = laws.law(name)
        columns = planted.columns_of(law)
        for seed in range(4):
            noise = np.exp(0.003 * np.random.default_rng(seed).standard_t(4, len(columns[law.columns[0]])))
            losses = fit.predicted_loss(law, planted.LAWS[name], columns) * noise
            found = fit.bootstrap(fit.fit_surface(columns, losses, name), draws=100)
            assert found.certificate.certified, found.certificate.why_not
            for shape in law.shapes:
                low, high = found.estimates[shape.name].low, found.estimates[shape.name].high
                inside.append(low < planted.LAWS[name][shape.name] < high)
    # 36 intervals of 95 %: below 30 that hold the truth happen once in ten thousand times.
    assert len(inside) >= 36
    assert np.mean(inside) > 30 / 36


def test_a_law_of_one_s_own_with_an_effective_column_is_a_formula_and_recovers():
    batches = fit.Effective(
        name="steps_effective",
        of=("num_tokens", "batch_tokens"),
        shapes=(fit.Shape(name="critical", low=1e4, high=1e7, positive=True),),
        log_value=lambda ln, shape: ln["num_tokens"] - np.log(shape["critical"] + np.exp(ln["batch_tokens"])),
        equation="num_tokens / (critical + batch_tokens)",
    )
    law = fit.Law(
        name="critical_batch",
        floor="E",
        effective=(batches,),
        terms=(fit.decay("A", num_params="alpha"), fit.decay("B", steps_effective="beta")),
    )
    truth = {"E": 1.7, "A": 300.0, "B": 40.0, "alpha": 0.33, "beta": 0.4, "critical": 5e5}
    generator = np.random.default_rng(0)
    columns = {
        "num_params": 10 ** generator.uniform(7, 10, 60),
        "num_tokens": 10 ** generator.uniform(9, 11, 60),
        "batch_tokens": 10 ** generator.uniform(4.5, 7, 60),
    }
    found = fit.fit_surface(columns, fit.predicted_loss(law, truth, columns), law)
    for name, value in truth.items():
        assert found.parameters[name] == pytest.approx(value, rel=1e-6), name
    assert law.columns == ("num_params", "num_tokens", "batch_tokens")


def test_a_formula_without_shapes_is_a_column():
    ratio = fit.Effective(
        name="tokens_per_param",
        of=("num_tokens", "num_params"),
        shapes=(),
        log_value=lambda ln, shape: ln["num_tokens"] - ln["num_params"],
        equation="num_tokens / num_params",
    )
    terms = (fit.decay("A", num_params="alpha"), fit.decay("B", tokens_per_param="beta", num_params=0.25))
    law = fit.Law(name="ratio", floor="E", effective=(ratio,), terms=terms)
    truth = {"E": 1.7, "A": 300.0, "B": 90.0, "alpha": 0.33, "beta": 0.35}
    columns = planted.columns_of(fit.CHINCHILLA, num_rows=60)
    found = fit.fit_surface(columns, fit.predicted_loss(law, truth, columns), law)
    for name, value in truth.items():
        assert found.parameters[name] == pytest.approx(value, rel=1e-6), name


def test_a_formula_with_an_edge_is_fitted_up_to_it():
    # Parameters less an unknown number of embeddings: no logarithm where more are taken off than a run has.
    inner = fit.Effective(
        name="num_params_inner",
        of=("num_params",),
        shapes=(fit.Shape(name="embedding", low=1e4, high=1e8, positive=True),),
        log_value=lambda ln, shape: np.log(np.exp(ln["num_params"]) - shape["embedding"]),
        equation="num_params - embedding",
    )
    terms = (fit.decay("A", num_params_inner="alpha"), fit.decay("B", num_tokens="beta"))
    law = fit.Law(name="inner", floor="E", effective=(inner,), terms=terms)
    truth = {"E": 1.7, "A": 300.0, "B": 900.0, "alpha": 0.33, "beta": 0.35, "embedding": 1.5e7}
    columns = planted.columns_of(fit.CHINCHILLA, num_rows=60)
    losses = fit.predicted_loss(law, truth, columns)
    found = fit.fit_surface(columns, losses, law)
    assert found.certificate.certified, found.certificate.why_not
    for name, value in truth.items():
        assert found.parameters[name] == pytest.approx(value, rel=1e-6), name
    noise = np.exp(0.003 * np.random.default_rng(0).standard_normal(60))
    drawn = fit.bootstrap(fit.fit_surface(columns, losses * noise, law), draws=100)
    assert np.isnan(drawn.draws["embedding"]).mean() < 0.05
    assert drawn.estimates["embedding"].low < truth["embedding"] < columns["num_params"].min()


def test_a_law_of_three_terms_with_a_tied_exponent_is_one_value_and_recovers():
    law = fit.Law(
        name="tied",
        floor="E",
        terms=(
            fit.decay("A", num_params="alpha"),
            fit.decay("B", num_tokens="alpha"),
            fit.decay("G", num_experts="gamma"),
        ),
    )
    truth = {"E": 1.5, "A": 300.0, "B": 900.0, "G": 0.4, "alpha": 0.33, "gamma": 0.6}
    generator = np.random.default_rng(0)
    columns = {
        "num_params": 10 ** generator.uniform(6, 9, 60),
        "num_tokens": 10 ** generator.uniform(8, 11, 60),
        "num_experts": generator.choice([1.0, 4.0, 16.0, 64.0], 60),
    }
    found = fit.fit_surface(columns, fit.predicted_loss(law, truth, columns), law)
    for name, value in truth.items():
        assert found.parameters[name] == pytest.approx(value, rel=1e-6)
    assert law.equation == "loss = E + A num_params^-alpha + B num_tokens^-alpha + G num_experts^-gamma"


def test_an_exponent_that_is_a_number_is_not_fitted():
    law = fit.Law(name="half", floor="E", terms=(fit.decay("A", num_params=0.5), fit.decay("B", num_tokens="beta")))
    truth = {"E": 1.7, "A": 9000.0, "B": 500.0, "beta": 0.3}
    columns = planted.columns_of(law)
    found = fit.fit_surface(columns, fit.predicted_loss(law, truth, columns), law)
    assert list(found.parameters) == ["E", "A", "B", "beta"]
    for name, value in truth.items():
        assert found.parameters[name] == pytest.approx(value, rel=1e-6)


def test_kaplan_s_and_the_gamma_form_s_own_constants_come_back():
    columns = planted.columns_of(laws.KAPLAN)
    N, D = columns["num_params"], columns["num_tokens"]
    losses = ((8.8e13 / N) ** (0.076 / 0.095) + 5.4e13 / D) ** 0.095
    found = laws.kaplan_constants(fit.fit_surface(columns, losses, "kaplan").parameters)
    assert found == pytest.approx({"N_c": 8.8e13, "D_c": 5.4e13, "alpha_N": 0.076, "alpha_D": 0.095}, rel=1e-6)
    losses = 1.6 + (8e3 * N**-0.5 + 2e5 * D**-0.55) ** 0.6
    found = laws.gamma_constants(fit.fit_surface(columns, losses, "gamma").parameters)
    assert found == pytest.approx({"A": 8e3, "B": 2e5, "alpha": 0.5, "beta": 0.55, "gamma": 0.6}, rel=1e-6)


def test_the_data_constrained_law_predicts_what_its_authors_print():
    # Muennighoff et al. 2023: constants and the two losses of the example in huggingface/datablations' README.
    A, B, E = np.exp([6.255414, 7.3049974, 0.6254804])
    parameters = {"E": E, "A": A, "B": B, "alpha": 0.3526596, "beta": 0.3526596}
    parameters |= {"r_params": 5.309743, "r_tokens": 15.387756}
    optimal = (A / B) ** (1 / 0.3526596)  # parameters a unique token, where both exponents are one
    for num_params, num_tokens, loss in ((6.34e9, 242e9, 2.2256440889984477), (8.67e9, 178e9, 2.2269634075087867)):
        columns = {
            "num_params": num_params,
            "num_tokens": num_tokens,
            "num_unique_tokens": 25e9,
            "num_useful_params": min(num_params, 25e9 * optimal),
        }
        predicted = fit.predicted_loss(laws.DATA_CONSTRAINED_PARAMS, parameters, columns)
        assert float(predicted) == pytest.approx(loss, rel=1e-12)


def test_units_of_the_columns_of_a_formula_change_no_prediction():
    for name in ("gamma", "kaplan", "data_constrained"):
        law = laws.law(name)
        columns = planted.columns_of(law)
        noise = np.exp(0.003 * np.random.default_rng(6).standard_normal(len(columns["num_tokens"])))
        losses = fit.predicted_loss(law, planted.LAWS[name], columns) * noise
        plain = fit.fit_surface(columns, losses, name)
        in_millions = {column: values / 1e6 for column, values in columns.items()}
        scaled = fit.fit_surface(in_millions, losses, name)
        assert scaled.certificate.certified, name
        np.testing.assert_allclose(scaled.predict(in_millions), plain.predict(columns), rtol=1e-7)


def test_an_unknown_law_and_a_missing_column_are_named():
    with pytest.raises(BadInput, match=r"'hoffmann'.*chinchilla"):
        fit.fit_surface({"num_params": [1.0]}, [1.0], "hoffmann")
    with pytest.raises(BadInput, match="'num_tokens'"):
        fit.predicted_loss(
            fit.CHINCHILLA, {"E": 1.0, "A": 1.0, "B": 1.0, "alpha": 1.0, "beta": 1.0}, {"num_params": 2.0}
        )


def test_rows_that_do_not_show_a_shape_are_refused_by_its_name():
    columns = planted.columns_of(laws.ISO_DEPTH)
    losses = fit.predicted_loss(laws.ISO_DEPTH, planted.LAWS["iso_depth"], columns)
    with pytest.raises(BadInput, match="phi changes nothing"):
        fit.fit_surface({**columns, "num_passes": np.ones(len(losses))}, losses, "iso_depth")
    fresh = planted.columns_of(laws.DATA_CONSTRAINED)
    fresh["num_unique_tokens"] = fresh["num_tokens"]
    with pytest.raises(BadInput, match="r_tokens changes nothing"):
        fit.fit_surface(fresh, losses, "data_constrained")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"floor": "A"}, "distinct"),
        ({"effective": (laws.ISO_DEPTH.effective[0],)}, "no term of x uses the effective column"),
        ({"terms": ()}, "needs terms"),
    ],
    ids=["two of one name", "an unused column", "no terms"],
)
def test_a_law_that_is_no_law_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        fit.Law(**{"name": "x", "floor": "E", "terms": (fit.decay("A", num_params="alpha"),), **change})


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (lambda: (fit.decay("A", num_params=0.0),), "exponent 0.0"),
        (lambda: (fit.decay("A", num_params=float("nan")),), "exponent nan"),
        (lambda: (fit.Term(coefficient="A", powers=(fit.Power(column="N", exponent="a", sign=2),)),), "sign 2"),
        (lambda: (fit.Term(coefficient="A", powers=()),), "needs columns"),
        (lambda: (fit.decay("A", N="a"), fit.decay("B", N="a")), "the same function"),
    ],
    ids=["a zero exponent", "no number", "a sign", "no columns", "one term twice"],
)
def test_terms_that_no_rows_could_tell_are_refused(terms, message):
    with pytest.raises(ValueError, match=message):
        fit.Law(name="x", floor="E", terms=terms())


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        (lambda ln, shape: 1 / 0, "ZeroDivisionError"),
        (lambda ln, shape: ln["elsewhere"] * shape["s"], "KeyError"),
        (lambda ln, shape: ln["num_params"] * shape["other"], "KeyError"),
        (lambda ln, shape: np.sin(ln["num_params"] * shape["s"]), "np.logaddexp"),
        (lambda ln, shape: (ln["num_params"] + 0 * shape["s"])[:3], "TypeError"),
        (lambda ln, shape: None, "returns None"),
        (lambda ln, shape: "word", "fails"),
        (lambda ln, shape: ln["num_params"], "s changes nothing"),
    ],
)
def test_a_formula_that_fails_or_gives_no_number_a_row_is_told_how_to_be_written(formula, words):
    made = fit.Effective(
        name="made",
        of=("num_params",),
        shapes=(fit.Shape(name="s", low=0.1, high=2.0),),
        log_value=formula,
        equation="q",
    )
    law = fit.Law(name="mine", floor="E", effective=(made,), terms=(fit.decay("A", made="a"),))
    with pytest.raises(BadInput, match=words) as refused:
        fit.fit_surface({"num_params": np.geomspace(1e7, 1e9, 12)}, np.linspace(3, 2, 12), law)
    assert "\n" not in str(refused.value)


def test_a_law_without_a_fitted_exponent_is_linear_and_recovers():
    law = fit.Law(name="given", floor="E", terms=(fit.decay("A", num_params=0.34), fit.decay("B", num_tokens=0.28)))
    columns = planted.columns_of(fit.CHINCHILLA, num_rows=30)
    losses = 1.7 + 400 * columns["num_params"] ** -0.34 + 410 * columns["num_tokens"] ** -0.28
    found = fit.fit_surface(columns, losses, law)
    assert found.certificate.certified
    assert found.parameters == pytest.approx({"E": 1.7, "A": 400.0, "B": 410.0}, rel=1e-8)


@pytest.mark.parametrize("change", [{"num_params": -1e8}, {"num_tokens": 0.0}])
def test_a_column_that_is_not_above_zero_predicts_nothing(change):
    with pytest.raises(BadInput, match="needs numbers above 0"):
        fit.predicted_loss(fit.CHINCHILLA, planted.CHINCHILLA, {"num_params": 1e8, "num_tokens": 1e9, **change})
    with pytest.raises(BadInput, match="the parameter beta"):
        fit.predicted_loss(fit.CHINCHILLA, {"E": 1, "A": 1, "B": 1, "alpha": 1}, {"num_params": 1e8, "num_tokens": 1e9})
