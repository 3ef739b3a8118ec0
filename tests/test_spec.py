"""Specs say what they refuse, survive a round trip, and differ in their hash wherever they differ."""

import json
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt import committed
from smelt.errors import BadInput
from smelt.spec import (
    FFN,
    ArchSpec,
    Attention,
    DataSpec,
    Latent,
    Loop,
    OptimSpec,
    Own,
    Router,
    RunSpec,
    SigmoidScores,
    Views,
    arch_from_dict,
    flatten,
    run_from_dict,
    to_dict,
)
from tests.strategies import arch_specs, run_specs

ATTENTION = Attention(num_heads=4, num_kv_heads=2, head_dim=8, scale="1/sqrt(d_k)")
LOOP = Loop(num_layers=4, num_passes=1, residual_scale=1.0, attention_sets="shared")
EXPERTS = FFN(width=16, num_experts=8, top_k=2)
ARCH = ArchSpec(
    vocab_size=256,
    d_model=32,
    num_prelude=1,
    loop=LOOP,
    num_coda=0,
    attention=ATTENTION,
    ffn=EXPERTS,
    outer_ffn=EXPERTS,
    router=Router(load_balance_coef=0.01, z_loss_coef=0.001),
    norm_gain=True,
    tied_embeddings=False,
)
OPTIM = OptimSpec(
    peak_lr=1e-2,
    schedule="wsd",
    warmup_frac=0.1,
    decay_frac=0.2,
    final_frac=0.05,
    beta1=0.9,
    beta2=0.95,
    eps=1e-8,
    weight_decay=0.1,
    clip_norm=1.0,
)
DATA = DataSpec(corpus="builtin", seq_len=128, batch_seqs=8, confine_attention=True, validation_tokens=4096)
RUN = RunSpec(arch=ARCH, optim=OPTIM, data=DATA, num_steps=100, seed=0)


@dataclass(frozen=True)
class Sinks(Own):
    """A part of an experiment's own, with a setting."""

    replaces = "attention"
    num_sinks: int


LATENT = Latent(width=8, views=Views(num_views=2, mixing="learned"))
MANY = FFN(width=16, num_experts=8, top_k=2, shared_width=12, latent=LATENT)
SIGMOID = SigmoidScores(num_heads=2, fusion="sum", bias_rate=0.001)
IN_STEPS = replace(OPTIM, warmup_frac=0.0, warmup_steps=10, decay_frac=0.0, decay_steps=20)
# A run that has every part there is.
WHOLE = replace(
    RUN,
    optim=IN_STEPS,
    arch=replace(
        ARCH,
        ffn=MANY,
        outer_ffn=MANY,
        router=replace(ARCH.router, sigmoid=SIGMOID),
        mup_base_width=16,
        own=(Sinks(num_sinks=1),),
    ),
)


@given(run_specs())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_run_read_back_from_its_json_is_the_same_run(run):
    again = run_from_dict(json.loads(json.dumps(to_dict(run))))
    assert again == run
    assert again.run_id == run.run_id


@given(arch_specs())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_an_architecture_read_back_from_its_json_is_the_same_architecture(arch):
    assert arch_from_dict(json.loads(json.dumps(to_dict(arch)))) == arch


# One other value for every field of a run, by its dotted name.
OTHERS = {
    "arch.vocab_size": 257,
    "arch.d_model": 34,
    "arch.num_prelude": 2,
    "arch.loop.num_layers": 5,
    "arch.loop.num_passes": 2,
    "arch.loop.residual_scale": 0.5,
    "arch.loop.attention_sets": "per_pass",
    "arch.num_coda": 1,
    "arch.attention.num_heads": 6,
    "arch.attention.num_kv_heads": 1,
    "arch.attention.head_dim": 10,
    "arch.attention.scale": "1/d_k",
    "arch.ffn.width": 17,
    "arch.ffn.num_experts": 9,
    "arch.ffn.top_k": 3,
    "arch.ffn.shared_width": 13,
    "arch.ffn.latent.width": 9,
    "arch.ffn.latent.views.num_views": 3,
    "arch.ffn.latent.views.mixing": "routers",
    "arch.outer_ffn.width": 17,
    "arch.outer_ffn.num_experts": 9,
    "arch.outer_ffn.top_k": 3,
    "arch.outer_ffn.shared_width": 13,
    "arch.outer_ffn.latent.width": 9,
    "arch.outer_ffn.latent.views.num_views": 3,
    "arch.outer_ffn.latent.views.mixing": "routers_detached",
    "arch.router.load_balance_coef": 0.02,
    "arch.router.z_loss_coef": 0.002,
    "arch.router.sigmoid.num_heads": 3,
    "arch.router.sigmoid.fusion": "max",
    "arch.router.sigmoid.bias_rate": 0.0,
    "arch.norm_gain": False,
    "arch.tied_embeddings": None,  # muP has untied ones: below
    "arch.mup_base_width": 32,
    "arch.own": [Sinks(num_sinks=2).record()],
    "optim.peak_lr": 2e-2,
    "optim.schedule": None,  # needs decay_frac to move too: below
    "optim.warmup_frac": None,  # in place of whole steps: below
    "optim.decay_frac": None,
    "optim.final_frac": 0.1,
    "optim.beta1": 0.8,
    "optim.beta2": 0.9,
    "optim.eps": 1e-9,
    "optim.weight_decay": 0.2,
    "optim.clip_norm": 2.0,
    "optim.warmup_steps": 11,
    "optim.decay_steps": 21,
    "data.corpus": "other",
    "data.seq_len": 256,
    "data.batch_seqs": 16,
    "data.confine_attention": False,
    "data.validation_tokens": 8192,
    "num_steps": 101,
    "seed": 1,
}

# Fields that are a part of their own, and may be left out.
OPTIONAL = {"arch.ffn.shared_width", "arch.outer_ffn.shared_width", "arch.mup_base_width", "arch.own"}


def _moved(run, name, value):
    tree = to_dict(run)
    *path, leaf = name.split(".")
    inner = tree
    for part in path:
        inner = inner[part]
    inner[leaf] = value
    return run_from_dict(tree)


ABSENT = [
    replace(WHOLE, arch=replace(WHOLE.arch, outer_ffn=None)),
    replace(WHOLE, arch=replace(WHOLE.arch, ffn=replace(MANY, shared_width=None))),
    replace(WHOLE, arch=replace(WHOLE.arch, ffn=replace(MANY, latent=None))),
    replace(WHOLE, arch=replace(WHOLE.arch, ffn=replace(MANY, latent=replace(LATENT, views=None)))),
    replace(WHOLE, arch=replace(WHOLE.arch, router=replace(WHOLE.arch.router, sigmoid=None))),
    replace(WHOLE, arch=replace(WHOLE.arch, mup_base_width=None)),
    replace(WHOLE, arch=replace(WHOLE.arch, own=())),
    replace(WHOLE, optim=replace(IN_STEPS, warmup_steps=None)),
    replace(WHOLE, optim=replace(IN_STEPS, decay_steps=None)),
]


def test_no_two_runs_that_differ_in_a_field_or_a_part_share_a_run_id():
    assert OTHERS.keys() == flatten(RUN).keys() == flatten(WHOLE).keys()
    others = [_moved(WHOLE, name, value) for name, value in OTHERS.items() if value is not None]
    others.append(replace(WHOLE, optim=replace(OPTIM, schedule="cosine", decay_frac=1.0)))
    others.append(replace(WHOLE, optim=replace(IN_STEPS, warmup_steps=None, warmup_frac=0.2)))
    others.append(replace(WHOLE, optim=replace(IN_STEPS, decay_steps=None, decay_frac=0.3)))
    others.append(replace(WHOLE, arch=replace(WHOLE.arch, mup_base_width=None, tied_embeddings=True)))
    others += [RUN, *ABSENT]
    assert len({run.run_id for run in [WHOLE, *others]}) == len(OTHERS) + 2 + len(ABSENT)


@pytest.mark.parametrize("run", [RUN, WHOLE, *ABSENT], ids=lambda run: run.run_id)
def test_a_part_that_is_absent_is_not_written_and_does_not_come_back(run):
    written = json.dumps(to_dict(run))
    assert "null" not in written.replace('"outer_ffn": null', "")
    again = run_from_dict(json.loads(written))
    assert (again.run_id, flatten(again)) == (run.run_id, flatten(run))


def test_the_run_ids_of_architectures_without_the_parts_are_those_of_the_committed_rows():
    for name in ("quickstart", "siblings"):
        for row in committed.read(name)[0]:
            tree: dict = {}
            for column, value in row.items():
                *path, leaf = column.split(".")
                if value is None or (path or [leaf])[0] not in ("arch", "optim", "data", "num_steps", "seed"):
                    continue
                inner = tree
                for part in path:
                    inner = inner.setdefault(part, {})
                inner[leaf] = value
            tree["arch"].setdefault("outer_ffn", None)
            assert run_from_dict(tree).run_id == row["run_id"]


def test_an_own_part_that_was_written_down_keeps_its_record_and_cannot_be_built():
    again = run_from_dict(json.loads(json.dumps(to_dict(WHOLE)))).arch
    assert again.own_part("attention").record() == WHOLE.arch.own[0].record()
    with pytest.raises(BadInput, match="Sinks is a part of an experiment's own: load the experiment's file for it"):
        again.own_part("attention").module(again, again.ffn)


def test_an_integer_and_the_same_float_are_one_run():
    whole = replace(RUN, optim=replace(OPTIM, clip_norm=1, weight_decay=0))
    assert whole.run_id == replace(RUN, optim=replace(OPTIM, weight_decay=0.0)).run_id
    assert replace(RUN, optim=replace(OPTIM, weight_decay=-0.0)).run_id == whole.run_id


def test_the_run_id_does_not_depend_on_the_process():
    code = "from tests.test_spec import RUN; print(RUN.run_id)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == RUN.run_id


def test_planning_modules_import_neither_jax_nor_pandas():
    code = (
        "import sys, smelt.spec, smelt.variants, smelt.budget, smelt.match; "
        "print([name for name in ('jax', 'flax', 'pandas', 'scipy', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


BAD = [
    (lambda: replace(ATTENTION, num_heads=0), "num_heads is 0: give a positive integer"),
    (lambda: replace(ATTENTION, num_heads=4.0), "num_heads is 4.0"),
    (lambda: replace(ATTENTION, num_heads=True), "num_heads is True"),
    (lambda: replace(ATTENTION, num_heads=5), "num_heads 5 is no multiple of num_kv_heads 2"),
    (lambda: replace(ATTENTION, head_dim=7), "head_dim is 7: RoPE turns pairs"),
    (lambda: replace(ATTENTION, scale="1"), "scale is '1': choose one of"),
    (lambda: replace(EXPERTS, top_k=9), "top_k 9 is more than num_experts 8"),
    (lambda: replace(EXPERTS, width=-1), "width is -1"),
    (lambda: replace(EXPERTS, shared_width=0), "shared_width is 0: give a positive integer"),
    (lambda: replace(EXPERTS, latent=8), "latent is 8: give a Latent"),
    (lambda: replace(MANY, num_experts=1, top_k=1), "one expert .* has no router to mix its views"),
    (lambda: replace(LATENT, width=0), "Latent.width is 0"),
    (lambda: replace(LATENT, views=2), "views is 2: give a Views"),
    (lambda: replace(LATENT.views, num_views=1), "num_views is 1: give 2 or more"),
    (
        lambda: replace(LATENT.views, mixing="mean"),
        "mixing is 'mean': choose one of routers, routers_detached, learned",
    ),
    (lambda: replace(SIGMOID, num_heads=0), "num_heads is 0"),
    (lambda: replace(SIGMOID, fusion="mean"), "fusion is 'mean': choose one of sum, max, product, geometric_mean"),
    (lambda: replace(SIGMOID, bias_rate=-0.1), "bias_rate is -0.1"),
    (lambda: replace(ARCH.router, sigmoid=True), "sigmoid is True: give a SigmoidScores"),
    (lambda: replace(ARCH, mup_base_width=0), "mup_base_width is 0"),
    (lambda: replace(ARCH, mup_base_width=16, tied_embeddings=True), "muP wants a head of its own"),
    (lambda: _moved(WHOLE, "arch.ffn.latent.views", {"num_views": 3, "mixing": "routers"}), "num_views is 3 .* has 2"),
    (lambda: replace(ARCH, own=Sinks(num_sinks=1)), "own is Sinks.*: give a tuple of parts"),
    (lambda: replace(ARCH, own=("router",)), "own holds 'router': give instances of a subclass of spec.Own"),
    (lambda: replace(ARCH, own=(Own(),)), "Own.replaces is '': one of router, experts, attention, layer"),
    (lambda: replace(ARCH, own=(Sinks(num_sinks=1), Sinks(num_sinks=2))), "two own parts replace .*attention"),
    (lambda: replace(LOOP, residual_scale=0.0), r"residual_scale is 0.0: give a number in \(0.0, 1.0\]"),
    (lambda: replace(LOOP, residual_scale=float("nan")), "residual_scale is nan"),
    (lambda: replace(LOOP, residual_scale=True), "residual_scale is True"),
    (lambda: replace(LOOP, attention_sets="own"), "attention_sets is 'own'"),
    (lambda: replace(LOOP, num_passes=0), "num_passes is 0"),
    (lambda: replace(ARCH.router, load_balance_coef=-1.0), "load_balance_coef is -1.0"),
    (lambda: replace(ARCH.router, z_loss_coef=float("inf")), "z_loss_coef is inf"),
    (lambda: replace(ARCH, num_prelude=-1), "num_prelude is -1: give a non-negative integer"),
    (lambda: replace(ARCH, num_prelude=0), "outer_ffn is given but there is no prelude or coda"),
    (lambda: replace(ARCH, loop=None), "loop is None: give a Loop"),
    (lambda: replace(ARCH, outer_ffn=LOOP), "give a FFN"),
    (lambda: replace(ARCH, norm_gain="yes"), "norm_gain is 'yes': give a bool"),
    (lambda: replace(ARCH, vocab_size=0), "vocab_size is 0"),
    (lambda: replace(OPTIM, peak_lr=0.0), "peak_lr is 0.0"),
    (lambda: replace(OPTIM, peak_lr="1e-3"), "peak_lr is '1e-3'"),
    (lambda: replace(OPTIM, schedule="linear"), "schedule is 'linear': choose one of wsd, cosine"),
    (lambda: replace(OPTIM, schedule="cosine"), "decay_frac is 0.2: the cosine schedule decays throughout"),
    (lambda: replace(OPTIM, warmup_frac=0.9), "warmup_frac 0.9 [+] decay_frac 0.2 is over 1"),
    (lambda: replace(OPTIM, warmup_steps=5), "warmup_steps 5 and warmup_frac 0.1 say it twice: give warmup_frac=0.0"),
    (lambda: replace(OPTIM, decay_steps=5), "decay_steps 5 and decay_frac 0.2 say it twice: give decay_frac=0.0"),
    (lambda: replace(IN_STEPS, warmup_steps=-1), "warmup_steps is -1: give a non-negative integer"),
    (lambda: replace(WHOLE, num_steps=29), r"warmup_steps 10 \+ decay_steps 20 are more than the 29 of the run"),
    (lambda: replace(OPTIM, beta2=1.0), "beta2 is 1.0"),
    (lambda: replace(DATA, corpus=""), "corpus is empty"),
    (lambda: replace(DATA, seq_len=0), "seq_len is 0"),
    (lambda: replace(DATA, confine_attention=1), "confine_attention is 1: give a bool"),
    (lambda: replace(RUN, seed=-1), "seed is -1"),
    (lambda: replace(RUN, num_steps=0), "num_steps is 0"),
    (lambda: replace(RUN, arch=None), "arch is None: give a ArchSpec"),
    (lambda: run_from_dict({**to_dict(RUN), "sed": 1}), "unknown field sed: known are arch"),
    (lambda: run_from_dict({"arch": {}}), "field data is missing"),
    (lambda: run_from_dict({**to_dict(RUN), "optim": 3}), "optim is 3: expected an object"),
    (lambda: arch_from_dict({**to_dict(ARCH), "ffn": {"width": 3}}), "field arch.ffn.num_experts is missing"),
    (
        lambda: arch_from_dict({**to_dict(ARCH), "own": [{"name": "x"}]}),
        "own holds .*: expected the keys replaces, name",
    ),
    (lambda: arch_from_dict([]), r"arch is \[\]: expected an object"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_input_is_refused_in_one_line_with_the_value(make, message):
    with pytest.raises(BadInput, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@given(arch_specs())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_segments_cover_every_layer_and_visit_once(arch):
    assert sum(segment.num_layers for segment in arch.segments) == arch.num_layers
    assert sum(segment.num_visits for segment in arch.segments) == arch.effective_depth
    looped = arch.loop.num_layers * (arch.loop.num_passes - 1)
    assert arch.effective_depth == arch.num_layers + looped
    assert all(segment.num_layers > 0 for segment in arch.segments)


@given(st.sampled_from(sorted(OTHERS.keys() - OPTIONAL)))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_a_missing_field_is_named(name):
    tree = to_dict(WHOLE)
    *path, leaf = name.split(".")
    inner = tree
    for part in path:
        inner = inner[part]
    del inner[leaf]
    with pytest.raises(BadInput, match=f"field {name} is missing"):
        run_from_dict(tree)


def test_an_absent_outer_ffn_flattens_to_nulls():
    flat = flatten(replace(ARCH, outer_ffn=None))
    assert flat.keys() == flatten(ARCH).keys()
    assert flat["outer_ffn.width"] is None
