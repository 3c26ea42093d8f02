"""A whole decoder on a GPU: attnkit, whose steps are CUDA graphs, beside PyTorch's transformers, in turns in one process.

    PYTHONPATH=build/lib/attnkit/python ATTNKIT=build/bin/attnkit python3 tests/bench/compare/cuda_model.py [--shape smollm2] [--type bf16,f32]
        [--case 1x128,1x1024,16x128,64x128] [--tokens 128] [--rounds 5] [--seconds 45] [--compile 1] [--device cuda]

The weights are random, of the shape of SmolLM2-135M, and are saved once as a checkpoint that both open.  A case is batch x prompt: prompts are
read, then each is continued greedily by --tokens.  PyTorch's contenders are "eager", which writes a quarter of the tokens, and "graph": a cache of
fixed size and the step with its argmax captured by hand, tokens read after each step, as attnkit does, or "at the end".  --compile 1 compiles the
step before it is captured, which takes a minute.  A batch of attnkit is as many sessions in one call, whose scores come to the host; "relu" has that
mechanism in place of softmax.  Before anything is timed attnkit and PyTorch must write the same tokens in f32, or the first difference is
printed.  No case begins later than --seconds.  Without a GPU PyTorch has no graphs: that is to try the script, with --device cpu or emulator, which
is where attnkit then runs (tests/cuda).
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
import torch
from common import Lines, in_turns, options_of
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache, logging

import attnkit
from attnkit.session import write_all

START = time.perf_counter()
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
SHAPES = {"smollm2": {"num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536,
                      "vocab_size": 49152},
          "small": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128,
                    "vocab_size": 512}}
TOKENIZER = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
             "model": {"type": "BPE", "vocab": {"<s>": 0, "</s>": 1}, "merges": []}}


def say(*what):
    print(f"{time.perf_counter() - START:.1f} s:", *what, file=sys.stderr, flush=True)


def checkpoint(folder, shape, device):
    """A folder of weights large enough that what is written does not repeat itself, and its manifest's text."""
    torch.manual_seed(1)
    config = LlamaConfig(**SHAPES[shape], max_position_embeddings=2048, tie_word_embeddings=True, bos_token_id=0, eos_token_id=1, initializer_range=0.08,
                         rope_parameters={"rope_type": "default", "rope_theta": 100000.0})
    with torch.device(device):
        LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    subprocess.run([os.environ["ATTNKIT"], "import", folder, "-o", folder / "model.toml"], check=True, stdout=subprocess.DEVNULL)
    return (folder / "model.toml").read_text()


class Attnkit:
    def __init__(self, text, folder, kind, mechanism, device):
        text = re.sub(r"(?m)^\[weights\]$", f'[weights]\ntype = "{kind}"', text)
        text = re.sub(r'(?m)^default( *)= "softmax"', rf'default\1= "{mechanism}"', text)
        runtime = attnkit.Runtime(threads=os.cpu_count(), device_type=1 if device == "cpu" else 2)
        self.model = attnkit.Model.from_text(runtime, text, str(folder))
        self.sessions = []

    def end(self):
        while self.sessions:
            self.sessions.pop().close()

    def read(self, prompts):
        self.end()
        self.sessions = [attnkit.Session(self.model) for _ in prompts]
        self.scores = numpy.empty((len(prompts), 1, self.model.info.outputs), numpy.float32)
        prompts = numpy.array(prompts, numpy.int32)
        start = time.perf_counter()
        if len(prompts) == 1:
            self.sessions[0].write(prompts, logits=False)
        else:
            write_all(self.sessions, prompts[:, :-1], logits=False)
            self.step(prompts[:, -1:])
        return time.perf_counter() - start

    def step(self, tokens):
        write_all(self.sessions, tokens, out=self.scores)
        self.next = self.scores.argmax(2).astype(numpy.int32)

    def write(self, n):
        """Lists of a row's tokens, and the seconds."""
        start = time.perf_counter()
        if len(self.sessions) == 1:
            made = [self.sessions[0].generate(n)]
        else:
            made = []
            for _ in range(n):
                made.append(self.next[:, 0].tolist())
                self.step(self.next)
            made = list(zip(*made))
        return made, time.perf_counter() - start


class Torch:
    """By transformers as it is."""
    share = 4

    def __init__(self, model, compiled=False):
        self.model = model
        self.forward = torch.compile(model.forward, fullgraph=True, dynamic=False) if compiled else model

    def new_cache(self, batch):
        return DynamicCache(config=self.model.config)

    def read(self, prompts):
        prompts = torch.tensor(prompts, device=self.model.device)
        self.cache = self.new_cache(len(prompts))
        wait(self.model)
        start = time.perf_counter()
        self.token = self.best(self.model, prompts)
        wait(self.model)
        return time.perf_counter() - start

    def best(self, forward, tokens):
        out = forward(tokens, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1].argmax(-1, keepdim=True)

    def step(self):
        self.token = self.best(self.forward, self.token)

    def write(self, n):
        n = max(1, n // self.share)
        start = time.perf_counter()
        made = []
        for _ in range(n):
            made.append(self.token[:, 0].tolist())
            self.step()
        wait(self.model)
        return list(zip(*made)), time.perf_counter() - start


class Graph(Torch):
    """The step captured, with a cache whose place and size stay."""
    share = 1

    def __init__(self, model, prompts, limit, compiled=False):
        super().__init__(model, compiled)
        self.kept = StaticCache(config=model.config, max_cache_len=(len(prompts[0]) + limit + 7) // 8 * 8)  # whole pieces of its kernels
        self.made = torch.zeros(len(prompts), 1, dtype=torch.int64, device=model.device)
        self.graph = None
        self.read(prompts)
        if model.device.type != "cuda":
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self.step()
        self.graph = graph

    def new_cache(self, batch):
        if self.kept.is_initialized:
            self.kept.reset()
        return self.kept

    def read(self, prompts):
        seconds = super().read(prompts)
        self.made.copy_(self.token)
        self.token = self.made
        return seconds

    def step(self):
        if self.graph:
            self.graph.replay()
        else:
            self.made.copy_(self.best(self.forward, self.made))

    def write_on(self, n):
        """The same without looking at the tokens."""
        start = time.perf_counter()
        for _ in range(n):
            self.step()
        wait(self.model)
        return n * len(self.made), time.perf_counter() - start


def wait(model):
    if model.device.type == "cuda":
        torch.cuda.synchronize()


def same_tokens(ours, theirs, prompts, tokens):
    """Says whether both write the same, and where they part."""
    made = []
    for who in (ours, theirs):
        who.read(prompts)
        made.append(list(who.write(tokens)[0][0])[:tokens])
    a, b = made
    apart = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None)
    if apart is None and len(a) == len(b):
        return say(f"f32: the same {len(a)} tokens, {len(set(a))} of them different: {a[:8]} ...")
    say(f"f32: THE TOKENS DIFFER, from token {apart} on, of {len(a)} and {len(b)}: attnkit {a[apart or 0:][:4]}, PyTorch {b[apart or 0:][:4]}")


def measure(lines, kind, models, case, tokens, rounds, compiled):
    batch, prompt = map(int, case.split("x"))
    cases = [{"call": call, "type": kind, "batch": batch, "prompt": prompt, "tokens": tokens} for call in ("written", "read")]
    if all(c in lines for c in cases):
        return
    attnkits, model = models(kind)
    random = numpy.random.default_rng(1)
    prompts = random.integers(2, model.config.vocab_size, (batch, prompt)).tolist()
    who = {**attnkits, "PyTorch, eager": Torch(model)}
    for name, compiles in {"PyTorch, graph": False, **({"PyTorch, compiled graph": True} if compiled else {})}.items():
        try:
            who[name] = Graph(model, prompts, tokens, compiles)
        except Exception as e:  # of the compiler, or of what cannot be captured
            say(f"{name}: {type(e).__name__}: {str(e).splitlines()[0]}")
    say(f"{case}, {kind}: ready")
    to = "PyTorch, graph" if "PyTorch, graph" in who else "PyTorch, eager"
    if kind == "f32" and batch == 1:
        same_tokens(who["attnkit"], who[to], prompts, tokens)

    def sample(one):
        reading = batch * prompt / one.read(prompts)
        made, seconds = one.write(tokens)
        speeds = [reading, sum(map(len, made)) / seconds]
        if isinstance(one, Graph):
            one.read(prompts)
            n, seconds = one.write_on(tokens)
            speeds.append(n / seconds)
        return speeds

    for one in who.values():  # the first time costs more
        sample(one)
    samples = in_turns(who, sample, rounds)
    at_the_end = {f"{name}, read at the end": [s[2] for s in of] for name, of in samples.items() if len(of[0]) > 2}
    for c, of in zip(cases, ({name: [s[1] for s in of] for name, of in samples.items()} | at_the_end, {name: [s[0] for s in of] for name, of in samples.items()})):
        lines.add(c, "tokens a second", to, of)
    for one in attnkits.values():
        one.end()


def main():
    options = options_of(__doc__, 5, shape="smollm2", type=["bf16", "f32"], case=["1x128", "1x1024", "16x128", "64x128"], tokens=128, seconds=45.0, compile=0,
                         device="cuda" if torch.cuda.is_available() else "cpu", mechanism=["softmax", "relu"])
    lines = Lines(options.results)
    logging.disable_progress_bar()
    print(f"{torch.cuda.get_device_name() if options.device == 'cuda' else 'CPU'}, PyTorch {torch.__version__}", flush=True)
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        folder, known = Path(name), {}
        on = "cuda" if options.device == "cuda" else "cpu"
        text = checkpoint(folder, options.shape, on)
        say("the checkpoint is made and imported")

        def models(kind):
            if kind not in known:
                attnkits = {"attnkit" if m == "softmax" else f"attnkit, {m}": Attnkit(text, folder, kind, m, options.device) for m in options.mechanism}
                say(f"attnkit has opened it in {kind}")
                known[kind] = attnkits, LlamaForCausalLM.from_pretrained(folder, dtype=TYPES[kind]).to(on).eval()
                say(f"PyTorch has opened it in {kind}")
            return known[kind]

        for case in options.case:
            for kind in options.type:
                if time.perf_counter() - START > options.seconds:
                    return say(f"{case}, {kind} and what follows are left out: --seconds {options.seconds}")
                measure(lines, kind, models, case, options.tokens, options.rounds, options.compile)


main()
