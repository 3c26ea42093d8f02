"""Makes tiny random models in Marian's own files, and what CTranslate2 makes of them by its own converter.

    pip install ctranslate2==4.8.5 sentencepiece==0.2.3 safetensors pyyaml
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


def layer_norm(x, npz, name):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * npz[f"{name}_ln_scale"] + npz[f"{name}_ln_bias"]


def attended(npz, name, x, keys):
    """Of all keys: encoders and cross attention."""
    def heads(rows, part):
        return (rows @ npz[f"{name}_W{part}"] + npz[f"{name}_b{part}"]).reshape(len(rows), 4, -1).transpose(1, 0, 2)
    q, k, v = heads(x, "q"), heads(keys, "k"), heads(keys, "v")
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (weights / weights.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(len(x), -1)
    return layer_norm(x + mixed @ npz[f"{name}_Wo"] + npz[f"{name}_bo"], npz, f"{name}_Wo")


def fed_forward(npz, name, x):
    inner = np.maximum(x @ npz[f"{name}_W1"] + npz[f"{name}_b1"], 0)
    return layer_norm(x + inner @ npz[f"{name}_W2"] + npz[f"{name}_b2"], npz, f"{name}_ffn")


def recurred(npz, name, x):
    """The paper's SSRU."""
    c, made = np.zeros(x.shape[1]), []
    for row in x:
        f = 1 / (1 + np.exp(-(row @ npz[f"{name}_Wf"] + npz[f"{name}_bf"][0])))
        c = f * c + (1 - f) * (row @ npz[f"{name}_W"])
        made.append(np.maximum(c, 0))
    return layer_norm(x + np.array(made), npz, f"{name}_ffn")


def scored(npz, source, target):
    """In float64: what each layer makes of a source and of a target, whose first token stands for nothing."""
    npz = {name: values.astype(np.float64) for name, values in npz.items()}
    places = sines(64, npz["Wemb"].shape[1]).astype(np.float64)
    x = npz["Wemb"][source] * np.sqrt(32) + places[:len(source)]
    layers = {}
    for layer in (1, 2):
        x = fed_forward(npz, f"encoder_l{layer}_ffn", attended(npz, f"encoder_l{layer}_self", x, x))
        layers[f"encoder.ffn.{layer}"] = x
    y = npz["Wemb"][target] * np.sqrt(32)
    y[0] = 0
    y += places[:len(target)]
    for layer in (1, 2):
        y = attended(npz, f"decoder_l{layer}_context", recurred(npz, f"decoder_l{layer}_rnn", y), x)
        y = fed_forward(npz, f"decoder_l{layer}_ffn", y)
        layers[f"decoder.ffn.{layer}"] = y
    return {**layers, "logits": y @ npz["Wemb"].T + npz["decoder_ff_logit_out_b"][0]}


def searched(npz, source, beams, most=12):
    """The ids of the best text of a beam search that goes on until none can be better; none has <unk>, which is 1, and 0 ends it."""
    alive, done = [([0], 0.0)], []
    for _ in range(most):
        more = []
        for target, before in alive:
            scores = scored(npz, source, target)["logits"][-1]
            log = scores - np.log(np.exp(scores - scores.max()).sum()) - scores.max()
            more += [([*target, id], before + log[id]) for id in range(len(log)) if id != 1]
        more = sorted(more, key=lambda one: -one[1])[:2 * beams]
        done += [one for one in more[:beams] if one[0][-1] == 0]
        alive = [one for one in more if one[0][-1] != 0][:beams]
    ids, _ = max(done + alive, key=lambda one: one[1] / (len(one[0]) - 1))
    return ids[1:-1] if ids[-1] == 0 else ids[1:]


def ssru():
    """A decoder of SSRU, which CTranslate2 refuses, against the float64 form above."""
    folder, vocabulary = OUT / "ssru", OUT / "student" / "vocab.spm"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(vocabulary, folder)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary))
    count = pieces.vocab_size()
    settings = SETTINGS.format(vocab=count, tied="true", activation="relu", post="dan", top="", pre="")
    settings = settings.replace("autoreg: self-attention", "autoreg: rnn").replace("dec-cell: gru", "dec-cell: ssru")
    shapes = {}
    for name, values in of_transformers(load_file(HERE / "golden" / "marian" / "model.safetensors"), count).items():
        if not (match := re.fullmatch(r"(decoder_l\d)_self_(.*)", name)):
            shapes[name] = values
        elif new := {"Wq": "W", "Wk": "Wf", "bk": "bf", "Wo_ln_scale": "ffn_ln_scale", "Wo_ln_bias": "ffn_ln_bias"}.get(match[2]):
            shapes[f"{match[1]}_rnn_{new}"] = values
    texts = ("The attention", "of each head", "Unaffable tokens")
    sources = [[*pieces.encode(text), 0] for text in texts]
    for seed in range(1, 100):  # until four beams find something else
        random = np.random.default_rng(seed)
        npz = {name: (random.normal(0, spread(name), values.shape) + ("_ln_scale" in name)).astype(np.float32) for name, values in shapes.items()}
        made = {text: {key: searched(npz, source, beams) for key, beams in (("greedy", 1), ("beams", 4))} for text, source in zip(texts, sources)}
        if any(one["greedy"] != one["beams"] for one in made.values()):
            break
    np.savez(folder / "model.npz", **npz_of(settings, npz))
    write_json(folder / "texts.json", made)
    golden = {}
    for b, source in enumerate(sources):
        target = [0, *source[-2::-1]]
        made = {"source": np.array(source, np.int32), "target": np.array(target, np.int32), **scored(npz, source, target)}
        for name, values in made.items():
            whole = golden.setdefault(name, np.zeros((len(sources), 24, *values.shape[1:]), np.int32 if values.dtype == np.int32 else np.float32))
            whole[b, :len(values)] = values
    golden.update({f"{side}_len": np.array([len(source) for source in sources], np.int32) for side in ("source", "target")})
    save_file(golden, folder / "golden.safetensors")


if __name__ == "__main__":
    opus()
    student()
    ssru()
