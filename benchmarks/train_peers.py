"""A peer's name, a shape and numbers of steps as lines in, seconds of its training steps as JSON lines out: the side of
`benchmarks.train` that has PyTorch.

Run by the interpreter of an environment with torch and transformers, never by smelt's: it imports nothing of smelt and
no jax. The first line written tells what was built; every line read is a number of steps, answered by their wall and
processor seconds and the last loss; at the end of input the peak memory is written.

Every peer has LAYERS layers, heads as wide as smelt's, no grouped queries, untied embeddings, AdamW, gradients clipped
at norm 1 and the cross-entropy of the next token, of random tokens. Experts are 3 D / 4 wide, two of them a token; the
dense peers' one feed-forward layer is twice as wide. Where an option is not given, the arrangement is the peer's best
of those measured (ARRANGEMENT).
"""

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

LAYERS, VOCAB, SEQ_LEN, BATCH_SEQS, TOP_K, WARM_UP = 8, 4096, 256, 8, 2, 2
# What an option that is not given is, for every peer and width, and what it was measured to give: processor ms a step,
# least of 3 to 5 rounds in turns on one shared core of an AMD EPYC (Zen 5), float32, torch 2.13, transformers 5.24.
ARRANGEMENT = {
    "mkl_as_intel": True,  # width 128: nano 185 against 347, mixtral 220 against 382; nothing to gain on an Intel
    "keep_memory": True,  # width 128, before the line above: mixtral 382 against 428
    "compile": True,  # widths 64, 128, 256, 512: mixtral 101, 188, 490, 1446 against 133, 220, 564, 1555 by layers;
    #                   nano 71, 155, 445, 1298 against 84, 185, 505, 1425; olmoe 107 against 131, 524 against 573
    "attention": "sdpa",  # width 128, compiled: mixtral 188, nano 155.0; eager 190, 160.7
    "experts_impl": "grouped_mm",  # by layers, widths 64 to 512: 133, 220, 564, 1542; eager 140, 224, 569, 1661;
    #                                compiled 101 against 138 at width 64; 32 experts of width 128: 273 against 391
    "optimizer": "fused",  # width 512: mixtral 1542, foreach 1582
}
# What the caller chooses was measured too. bfloat16 wins from width 256 up; at 64 to 512: mixtral 119, 205, 425, 1193,
# nano 77, 162, 309, 823. Experts stay float32 in it: autocast passes grouped_mm by, and eager experts, which it casts,
# are slower by layers (width 512: 1629). Mixtral of width 128 in the least contended of 5 rounds: a step of one process
# a core 186 wall, 184 processor ms; of one process of two threads, OMP_PROC_BIND=true GOMP_SPINCOUNT=1000000000, 147
# wall, 292 processor ms.


def head_width(width):
    return 32 if width < 256 else 64


def num_params(model, width, experts):
    """The count that a built peer is held against: embeddings, projections, router, experts and norms."""
    hidden, layer_norms = 3 * width // 4, 2 * width
    if model in ("mixtral", "olmoe"):
        feed_forward = experts * width + experts * 3 * width * hidden
    else:
        feed_forward = 3 * width * (TOP_K * hidden)
    if model == "olmoe":
        layer_norms += 2 * width  # of queries and keys
    return 2 * VOCAB * width + LAYERS * (4 * width**2 + feed_forward + layer_norms) + width


def keep_freed_memory():
    """glibc's allocator keeps what a step frees instead of giving it back to the kernel; numbers of malloc.h."""
    mallopt = ctypes.CDLL(None).mallopt
    for option, value in ((-4, 0), (-1, 2**31 - 1)):  # M_MMAP_MAX, M_TRIM_THRESHOLD
        if mallopt(option, value) != 1:
            raise RuntimeError(f"mallopt({option}, {value}) was refused")


def let_mkl_use_avx512():
    """MKL gives other makers' processors its AVX2 kernels; where it asks for the maker, answer Intel. Before torch."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "maker.c"), Path(folder, "maker.so")
        source.write_text("int mkl_serv_intel_cpu_true(void) { return 1; }\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", choices=("mixtral", "olmoe", "nano", "llama"), required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--core", default="none", help="a core's number, or none")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction)
    parser.add_argument("--experts-impl", choices=("eager", "grouped_mm", "batched_mm"))
    parser.add_argument("--attention", choices=("eager", "sdpa"))
    parser.add_argument("--optimizer", choices=("fused", "foreach", "loop"))
    parser.add_argument("--keep-memory", action=argparse.BooleanOptionalAction)
    parser.add_argument("--mkl-as-intel", action=argparse.BooleanOptionalAction)
    return parser.parse_args()


def nano_model(width, attention):
    """A dense decoder as nanoGPT's, with the parts that its successors agree on; its forward is the loss."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    head, hidden = head_width(width), TOP_K * (3 * width // 4)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm_attention, self.norm_mlp = nn.RMSNorm(width), nn.RMSNorm(width)
            self.qkv = nn.Linear(width, 3 * width, bias=False)
            self.out = nn.Linear(width, width, bias=False)
            self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
            self.down = nn.Linear(hidden, width, bias=False)

        def forward(self, x, cos, sin):
            num_seqs, seq_len, _ = x.shape
            qkv = self.qkv(self.norm_attention(x)).view(num_seqs, seq_len, 3, width // head, head)
            qk, v = qkv[:, :, :2], qkv[:, :, 2].transpose(1, 2)
            first, second = qk.chunk(2, dim=-1)
            qk = qk * cos + torch.cat((-second, first), dim=-1) * sin
            q, k = (qk[:, :, i].to(v.dtype).transpose(1, 2) for i in range(2))
            if attention == "sdpa":
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                mask = torch.full((seq_len, seq_len), float("-inf")).triu(1)
                mixed = F.softmax(q @ k.transpose(-1, -2) * head**-0.5 + mask, dim=-1).to(v.dtype) @ v
            x = x + self.out(mixed.transpose(1, 2).reshape(num_seqs, seq_len, width))
            gate, up = self.gate_up(self.norm_mlp(x)).chunk(2, dim=-1)
            return x + self.down(F.silu(gate) * up)

    class Nano(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(VOCAB, width)
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
            self.norm = nn.RMSNorm(width)
            self.unembed = nn.Linear(width, VOCAB, bias=False)
            for weight in self.parameters():
                if weight.ndim == 2:
                    nn.init.normal_(weight, std=0.02)
            angles = torch.outer(torch.arange(SEQ_LEN), 10_000.0 ** (-torch.arange(0, head, 2) / head)).repeat(1, 2)
            for name, table in (("cos", angles.cos()), ("sin", angles.sin())):
                self.register_buffer(name, table[:, None, None, :], persistent=False)

        def forward(self, tokens, targets):
            x = self.embed(tokens)
            for layer in self.layers:
                x = layer(x, self.cos, self.sin)
            x = self.norm(x).flatten(0, 1)
            return F.linear_cross_entropy(x, self.unembed.weight, targets.flatten())

    return Nano()


def transformers_model(name, width, experts, attention, experts_impl):
    import transformers
    from torch import nn

    shape = {
        "vocab_size": VOCAB,
        "hidden_size": width,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": width // head_width(width),
        "num_key_value_heads": width // head_width(width),
        "max_position_embeddings": SEQ_LEN,
        "tie_word_embeddings": False,
        "use_cache": False,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if name == "llama":
        config = transformers.LlamaConfig(intermediate_size=TOP_K * (3 * width // 4), **shape)
    else:
        kind, count = {
            "mixtral": (transformers.MixtralConfig, "num_local_experts"),
            "olmoe": (transformers.OlmoeConfig, "num_experts"),
        }[name]
        shape |= {count: experts, "num_experts_per_tok": TOP_K, "output_router_logits": True}
        config = kind(intermediate_size=3 * width // 4, **shape)
        config._experts_implementation = experts_impl
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)

    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, tokens, targets):
            # `shift_labels` are used as they are: all SEQ_LEN positions predict.
            return self.model(input_ids=tokens, labels=targets, shift_labels=targets).loss

    return Loss()


def main() -> None:
    chosen = options()
    for name, value in ARRANGEMENT.items():
        if getattr(chosen, name) is None:
            setattr(chosen, name, value)
    if chosen.core != "none":
        os.sched_setaffinity(0, {int(chosen.core)})
    os.environ["OMP_NUM_THREADS"] = str(chosen.threads)
    if chosen.keep_memory:
        keep_freed_memory()
    if chosen.mkl_as_intel:
        let_mkl_use_avx512()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # packages print; only answers may reach the other side
    import torch

    torch.set_num_threads(chosen.threads)
    torch.set_num_interop_threads(1)
    torch.manual_seed(0)
    if chosen.model == "nano":
        model = nano_model(chosen.width, chosen.attention)
    else:
        model = transformers_model(chosen.model, chosen.width, chosen.experts, chosen.attention, chosen.experts_impl)
    params = list(model.parameters())
    count = sum(weight.numel() for weight in params)
    expected = num_params(chosen.model, chosen.width, chosen.experts)
    if count != expected:
        raise ValueError(f"{chosen.model} of width {chosen.width} has {count} parameters, its shape {expected}")
    optimizer = torch.optim.AdamW(
        params,
        lr=1e-3,
        betas=(0.9, 0.95),
        weight_decay=0.1,
        fused=chosen.optimizer == "fused",
        foreach=chosen.optimizer == "foreach",
    )
    loss_of = torch.compile(model) if chosen.compile else model

    def step():
        tokens = torch.randint(VOCAB, (BATCH_SEQS, SEQ_LEN + 1))
        with torch.autocast("cpu", torch.bfloat16) if chosen.dtype == "bfloat16" else nullcontext():
            loss = loss_of(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    start = time.perf_counter()
    for _ in range(WARM_UP):
        step()
    ready = {"ready": True, "params": count, "warm_up_secs": time.perf_counter() - start} | vars(chosen)
    print(json.dumps(ready), file=answers)
    for line in sys.stdin:
        start, start_cpu = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            loss = step()
        took = {"secs": time.perf_counter() - start, "cpu_secs": time.process_time() - start_cpu, "loss": loss}
        print(json.dumps(took), file=answers)
    print(json.dumps({"peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}), file=answers)


if __name__ == "__main__":
    main()
