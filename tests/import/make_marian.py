"""Makes tiny random models in Marian's own files, and what Marian makes of them, and CTranslate2 by its own converter.

    pip install ctranslate2==4.8.5 sentencepiece==0.2.3 safetensors pyyaml pymarian==1.12.42
    python3 make_marian.py

Where positions are sines, CTranslate2 has other ones than Marian (its angles fall by 10000^(-2/d), Marian's by 10000^(-1/(d/2-1))), so it is
given Marian's as a table.
"""
import json
import re
import shutil
import tempfile
from pathlib import Path

import ctranslate2
import numpy as np
import pymarian
import sentencepiece
from arrays import write_json
from ctranslate2.converters import MarianConverter
from safetensors.numpy import load_file, save_file

HERE = Path(__file__).parent
OUT = HERE / "golden-marian"
# Marian writes more; these decide what the model is, and one of each kind of value.
SETTINGS = """dec-cell: gru
dec-depth: 2
dim-emb: 32
dim-vocabs:
  - {vocab}
  - {vocab}
enc-depth: 2
input-types:
  []
layer-normalization: false
lemma-dim-emb: 0
right-left: false
skip: false
tied-embeddings: {tied}
tied-embeddings-all: {tied}
tied-embeddings-src: false
transformer-decoder-autoreg: self-attention
transformer-dim-ffn: 40
transformer-ffn-activation: {activation}
transformer-ffn-depth: 2
transformer-guided-alignment-layer: last
transformer-heads: 4
transformer-no-projection: false
transformer-postprocess: {post}
transformer-postprocess-emb: d
transformer-postprocess-top: "{top}"
transformer-preprocess: "{pre}"
transformer-tied-layers:
  []
transformer-train-position-embeddings: false
type: transformer
ulr: false
version: v1.12.0 65bf82f 2023-02-21 09:56:29 -0800
"""
LAYER_NAMES = {"self_attn.q_proj": "self_{}q", "self_attn.k_proj": "self_{}k", "self_attn.v_proj": "self_{}v", "self_attn.out_proj": "self_{}o",
               "encoder_attn.q_proj": "context_{}q", "encoder_attn.k_proj": "context_{}k", "encoder_attn.v_proj": "context_{}v",
               "encoder_attn.out_proj": "context_{}o", "fc1": "ffn_{}1", "fc2": "ffn_{}2"}
NORMS = {"self_attn_layer_norm": "self_Wo", "encoder_attn_layer_norm": "context_Wo", "final_layer_norm": "ffn_ffn"}


def npz_of(settings, tensors):
    """As Marian's cnpy has it: settings as bytes that end in 0."""
    return {**tensors, "special:model.yml": np.frombuffer(settings.encode() + b"\0", dtype=np.int8)}


def of_transformers(model, vocab):
    """Tensors of transformers' tiny Marian, without the row of <pad>, which transformers added."""
    made = {"Wemb": model["model.shared.weight"][:vocab], "decoder_ff_logit_out_b": model["final_logits_bias"][:, :vocab]}
    for name, values in model.items():
        if not (match := re.fullmatch(r"model\.(encoder|decoder)\.layers\.(\d)\.(\w+(?:\.\w+_proj)?)\.(weight|bias)", name)):
            continue
        side, layer, part, kind = match.groups()
        stem = f"{side}_l{int(layer) + 1}_"
        if part in NORMS:
            made[f"{stem}{NORMS[part]}_ln_{'scale' if kind == 'weight' else 'bias'}"] = values[None]
        else:
            made[stem + LAYER_NAMES[part].format("W" if kind == "weight" else "b")] = values.T if kind == "weight" else values[None]
    return {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in made.items()}


def before_norm(tensors, vocab):
    """The shapes of a model that normalises before its layers, without ties."""
    made = {name + "_pre" if "_ln_" in name else name: values for name, values in tensors.items() if name != "Wemb"}
    for side in ("encoder", "decoder"):
        made[f"{side}_Wemb"] = np.zeros((vocab, 32))
        made.update({f"{side}_top_ln_{kind}": np.zeros((1, 32)) for kind in ("scale", "bias")})
    return {**made, "decoder_ff_logit_out_W": np.zeros((32, vocab)), "decoder_ff_logit_out_b": np.zeros((1, vocab))}


def sines(rows, width):
    half = width // 2
    angles = np.arange(rows)[:, None] * np.exp(-np.log(10000) / (half - 1) * np.arange(half))
    return np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)


def translated(npz, vocabularies, sources):
    """By CTranslate2: pieces, greedily and with four beams."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.npz"
        np.savez(path, **npz, Wpos=sines(512, 32))
        MarianConverter(str(path), [str(vocabulary) for vocabulary in vocabularies]).convert(f"{folder}/model")
        model = ctranslate2.Translator(f"{folder}/model", compute_type="float32", intra_threads=1)
        return {key: [one.hypotheses[0] for one in model.translate_batch(
            sources, beam_size=beams, patience=100, length_penalty=1, max_decoding_length=12, disable_unk=True)]
            for key, beams in (("greedy", 1), ("beams", 4))}


def spread(name):
    """So that places and sources show in what is written, not the token before alone."""
    return 0.05 if "Wemb" in name or "_ln_bias" in name or "logit_out_b" in name else 1.2 if name.endswith("_context_Wo") else 0.3


def write(folder, settings, tensors, vocabularies, source, ids, save):
    """Seeds are tried until what it writes depends on the source and on the number of beams."""
    texts = ["The attention", "of each head", "Unaffable tokens", "heads of a token"]
    for seed in range(30):
        random = np.random.default_rng(seed)
        npz = npz_of(settings, {name: (random.normal(0, spread(name), values.shape) + ("_ln_scale" in name)).astype(np.float32)
                                for name, values in tensors.items()})
        pieces = translated(npz, vocabularies, [source.encode(text, out_type=str) for text in texts])
        made = {text: {key: {"ids": [ids[piece] for piece in pieces[key][i]], "text": "".join(pieces[key][i]).replace("\u2581", " ").strip()}
                       for key in pieces} for i, text in enumerate(texts)}
        if len({piece for one in pieces["greedy"] for piece in one}) > 8 and any(one["greedy"] != one["beams"] for one in made.values()):
            break
    # Of a decoder that attends, and normalises before its layers, Marian leaves the norm out of the keys of what it has written.
    if "encoder_top_ln_scale" not in tensors:
        for key, beams in (("greedy", 1), ("beams", 4)):
            theirs = translated_by_marian(npz, ids, [source.encode(text, out_type=str) for text in texts], beams, 12)
            assert [one for one, _ in theirs] == [one[key]["ids"] for one in made.values()]
    save(folder / "model.npz", **npz)
    write_json(folder / "texts.json", made)


def opus():
    """OPUS-MT: a list of pieces, which source.spm and target.spm of golden/marian make."""
    folder, theirs = OUT / "opus", HERE / "golden" / "marian"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ids = {token: id for token, id in json.loads((theirs / "vocab.json").read_text()).items() if token != "<pad>"}
    (folder / "opus.vocab.yml").write_text("".join(f"{json.dumps(token, ensure_ascii=False)}: {id}\n" for token, id in ids.items()))
    (folder / "decoder.yml").write_text("relative-paths: true\nmodels:\n  - model.npz\nvocabs:\n  - opus.vocab.yml\n  - opus.vocab.yml\nbeam-size: 6\nnormalize: 1\n")
    write(folder, SETTINGS.format(vocab=len(ids), tied="true", activation="swish", post="dan", top="", pre=""),
          of_transformers(load_file(theirs / "model.safetensors"), len(ids)), [folder / "opus.vocab.yml"],
          sentencepiece.SentencePieceProcessor(model_file=str(theirs / "source.spm")), ids, np.savez)


def student():
    """SentencePiece's own ids for both sides, no decoder.yml, deflated."""
    folder = OUT / "student"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    lines = (HERE / "minilm.txt").read_text().splitlines()[:500]
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_prefix=str(folder / "vocab"), vocab_size=120, hard_vocab_limit=False,
                                             minloglevel=2, bos_id=-1, eos_id=0, unk_id=1, normalization_rule_name="identity")
    (folder / "vocab.vocab").unlink()
    (folder / "vocab.model").rename(folder / "vocab.spm")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "vocab.spm"))
    count = pieces.vocab_size()
    shapes = of_transformers(load_file(HERE / "golden" / "marian" / "model.safetensors"), count)
    with tempfile.TemporaryDirectory() as temporary:  # the list that CTranslate2 wants
        listed = Path(temporary) / "vocab.yml"
        listed.write_text("".join(f"{json.dumps(pieces.id_to_piece(i), ensure_ascii=False)}: {i}\n" for i in range(count)))
        write(folder, SETTINGS.format(vocab=count, tied="false", activation="relu", post="da", top="n", pre="n"),
              before_norm(shapes, count), [listed], pieces, {pieces.id_to_piece(i): i for i in range(count)}, np.savez_compressed)


def layer_norm(npz, name, x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * npz[name.format("scale")] + npz[name.format("bias")]


def around(npz, pre, name, after, x, made):
    """One layer with its norm, before it or behind: made(x) is what it adds to x.  Behind it has the name `after`."""
    if pre:
        return x + made(layer_norm(npz, f"{name}_ln_{{}}_pre", x))
    return layer_norm(npz, f"{after}_ln_{{}}", x + made(x))


def attended(npz, pre, name, x, keys=None):
    """Of all keys: encoders and cross attention."""
    def made(rows):
        def heads(rows, part):
            return (rows @ npz[f"{name}_W{part}"] + npz[f"{name}_b{part}"]).reshape(len(rows), 4, -1).transpose(1, 0, 2)
        q, k, v = heads(rows, "q"), *(heads(rows if keys is None else keys, part) for part in "kv")
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weights / weights.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(len(rows), -1)
        return mixed @ npz[f"{name}_Wo"] + npz[f"{name}_bo"]
    return around(npz, pre, f"{name}_Wo", f"{name}_Wo", x, made)


def fed_forward(npz, pre, name, x):
    def made(rows):
        return np.maximum(rows @ npz[f"{name}_W1"] + npz[f"{name}_b1"], 0) @ npz[f"{name}_W2"] + npz[f"{name}_b2"]
    return around(npz, pre, f"{name}_ffn", f"{name}_ffn", x, made)


def recurred(npz, pre, name, x):
    """The paper's SSRU."""
    def made(rows):
        c, out = np.zeros(rows.shape[1]), []
        for row in rows:
            f = 1 / (1 + np.exp(-(row @ npz[f"{name}_Wf"] + npz[f"{name}_bf"][0])))
            c = f * c + (1 - f) * (row @ npz[f"{name}_W"])
            out.append(np.maximum(c, 0))
        return np.array(out)
    return around(npz, pre, name, f"{name}_ffn", x, made)


def scored(npz, pre, source, target):
    """In float64: what each layer makes of a source and of a target, whose first token stands for nothing."""
    npz = {name: values.astype(np.float64) for name, values in npz.items()}
    words = [npz.get("Wemb", npz.get(f"{side}_Wemb")) for side in ("encoder", "decoder")]
    places = sines(128, words[0].shape[1]).astype(np.float64)
    def topped(side, x):
        return layer_norm(npz, side + "_top_ln_{}", x) if pre else x
    x, layers = words[0][source] * np.sqrt(32) + places[:len(source)], {}
    for layer in (1, 2):
        x = fed_forward(npz, pre, f"encoder_l{layer}_ffn", attended(npz, pre, f"encoder_l{layer}_self", x))
        layers[f"encoder.ffn.{layer}"] = x
    x = topped("encoder", x)
    y = words[1][target] * np.sqrt(32)
    y[0] = 0
    y += places[:len(target)]
    for layer in (1, 2):
        y = attended(npz, pre, f"decoder_l{layer}_context", recurred(npz, pre, f"decoder_l{layer}_rnn", y), x)
        y = fed_forward(npz, pre, f"decoder_l{layer}_ffn", y)
        layers[f"decoder.ffn.{layer}"] = y
    head = npz.get("decoder_ff_logit_out_W", words[1].T)
    layers["logits"] = topped("decoder", y) @ head + npz["decoder_ff_logit_out_b"][0]
    if pre:  # what leaves a stack, in place of its last layer
        layers = {{"encoder.ffn.2": "encoder", "decoder.ffn.2": "decoder"}.get(name, name): values for name, values in layers.items()}
        layers["encoder"], layers["decoder"] = x, topped("decoder", y)
    return layers


def log_probabilities(npz, pre, source, target):
    """Of every next token behind a target."""
    scores = scored(npz, pre, source, target)["logits"]
    return scores - scores.max(-1, keepdims=True) - np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1, keepdims=True))


def searched(npz, pre, source, beams, most):
    """The ids of the best text of a beam search that goes on until none can be better; none has <unk>, which is 1, and 0 ends it."""
    alive, done = [([0], 0.0)], []
    for _ in range(most):
        more = []
        for target, before in alive:
            log = log_probabilities(npz, pre, source, target)[-1]
            more += [([*target, id], before + log[id]) for id in range(len(log)) if id != 1]
        more = sorted(more, key=lambda one: -one[1])[:2 * beams]
        done += [one for one in more[:beams] if one[0][-1] == 0]
        alive = [one for one in more if one[0][-1] != 0][:beams]
    ids, _ = max(done + alive, key=lambda one: one[1] / (len(one[0]) - 1))
    return ids[1:-1] if ids[-1] == 0 else ids[1:]


def translated_by_marian(npz, ids, sources, beams, limit=None):
    """Ids and their log probability with that of the end, of each source."""
    made = []
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/model.npz", **npz)
        Path(folder, "vocab.yml").write_text("".join(f"{json.dumps(piece, ensure_ascii=False)}: {id}\n" for piece, id in ids.items()))
        for source in sources:
            most = f"--max-length-factor {(limit - 0.5) / (len(source) + 1)} " if limit else ""
            marian = pymarian.Translator(f"--models {folder}/model.npz --vocabs {folder}/vocab.yml {folder}/vocab.yml --cpu-threads 1 {most}"
                                         f"--beam-size {beams} --normalize 1 --n-best --workspace 64 --mini-batch 1 --quiet")
            _, text, score, _ = marian.translate(" ".join(source)).split("\n")[0].split(" ||| ")
            made.append(([ids[piece] for piece in text.split()], float(score.split()[-1])))
    return made


def drawn(random, shapes):
    """Four channels hold the place alone, by which the end becomes likely."""
    npz = {}
    for name, values in shapes.items():
        npz[name] = (random.normal(0, 0.15 if "Wemb" in name or name.endswith("out_W") else 0.6 if "_rnn_W" in name else 0.25, values.shape)
                     + ("_ln_scale" in name)).astype(np.float32)
        if "Wemb" in name:
            npz[name][:, 3:7] = 0
    output = npz["Wemb"].T if "Wemb" in npz else npz["decoder_ff_logit_out_W"]
    output[3:7, 0] = 2
    npz["decoder_ff_logit_out_b"][0, 0] += random.uniform(-3, 1)
    return npz


def ssru(name, pre):
    """A decoder of SSRU, which CTranslate2 refuses, against Marian itself and the float64 form above."""
    folder, vocabulary = OUT / name, OUT / "student" / "vocab.spm"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary))
    count = pieces.vocab_size()
    ids = {pieces.id_to_piece(i): i for i in range(count)}
    settings = SETTINGS.format(vocab=count, tied="false" if pre else "true", activation="relu", post="da" if pre else "dan",
                               top="n" if pre else "", pre="n" if pre else "")
    settings = settings.replace("autoreg: self-attention", "autoreg: rnn").replace("dec-cell: gru", "dec-cell: ssru")
    (folder / "decoder.yml").write_text("models: [model.npz]\nvocabs: [vocab.spm, vocab.spm]\nbeam-size: 4\nnormalize: 1\n")
    shapes = of_transformers(load_file(HERE / "golden" / "marian" / "model.safetensors"), count)
    if pre:
        shapes = before_norm(shapes, count)
    norm = ("ln_scale_pre", "ln_bias_pre") if pre else ("ffn_ln_scale", "ffn_ln_bias")
    renamed = {"Wq": "W", "Wk": "Wf", "bk": "bf", **{f"Wo_{one.removeprefix('ffn_')}": one for one in norm}}
    for key in [key for key in shapes if re.match(r"decoder_l\d_self_", key)]:
        values, (layer, part) = shapes.pop(key), key.split("_self_")
        if part in renamed:
            shapes[f"{layer}_rnn_{renamed[part]}"] = values
    texts = ("The attention", "of each head", "Unaffable tokens", "heads of a token", "a", "read it once")
    sources = [pieces.encode(text, out_type=str) for text in texts]
    numbers = [[*(ids[piece] for piece in source), 0] for source in sources]
    limits = [3 * len(source) for source in numbers]  # Marian's own
    for seed in range(1000):  # until some end, they differ, and a search that gives no row away finds another text
        npz = drawn(np.random.default_rng(seed), shapes)
        quick = [searched(npz, pre, source, 1, limit) for source, limit in zip(numbers, limits)]
        if len({*map(tuple, quick)}) < 4 or sum(2 < len(text) < limit for text, limit in zip(quick, limits)) < 2:
            continue
        made = {beams: translated_by_marian(npz_of(settings, npz), ids, sources, beams) for beams in (1, 4)}
        if any(searched(npz, pre, source, 4, limit) != text for source, limit, (text, _) in zip(numbers, limits, made[4])):
            break
    for searches in made.values():
        for source, limit, (text, score) in zip(numbers, limits, searches):
            log = log_probabilities(npz, pre, source, [0, *text])
            own = sum(log[i][id] for i, id in enumerate([*text, *[0] * (len(text) < limit)]))
            assert abs(own / score - 1) < 1e-5, (seed, text, own, score)  # it prints six digits
    np.savez(folder / "model.npz", **npz_of(settings, npz))
    write_json(folder / "texts.json", {text: {"limit": limits[i], "greedy": made[1][i][0], "beams": made[4][i][0]} for i, text in enumerate(texts)})
    golden = {}
    for b, source in enumerate(numbers):
        target = [0, *source[-2::-1]]
        made = {"source": np.array(source, np.int32), "target": np.array(target, np.int32), **scored(npz, pre, source, target)}
        for key, values in made.items():
            whole = golden.setdefault(key, np.zeros((len(numbers), 40, *values.shape[1:]), np.int32 if values.dtype == np.int32 else np.float32))
            whole[b, :len(values)] = values
    golden.update({f"{side}_len": np.array([len(source) for source in numbers], np.int32) for side in ("source", "target")})
    save_file(golden, folder / "golden.safetensors")
    print(name, "seed", seed)


if __name__ == "__main__":
    opus()
    student()
    ssru("ssru", pre=False)
    ssru("ssru-pre", pre=True)
