"""Makes tiny random models with transformers, and what it computes with them; and of all-MiniLM-L6-v2 reference vectors.

    pip install torch==2.15.0 transformers==5.23.0 tokenizers==0.23.3
    python3 make_golden.py                    # golden/: folders as save_pretrained writes them, golden.safetensors in each
    python3 make_golden.py --minilm FOLDER    # minilm.npy, from the model's folder and minilm.txt
"""
import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import (AutoModel, AutoTokenizer, BertConfig, BertModel, DistilBertConfig, DistilBertModel, RobertaConfig,
                          RobertaModel)

HERE = Path(__file__).parent
TOKENIZERS = HERE.parent / "core" / "tokenizer" / "golden"
SENTENCES = ["The attention of each head.", "", "Unaffable tokens run: 3.14!", "naïve façade мир", "a " * 80]


def embed(model, ids, pool, normalise):
    """Rows of all layers and the vector of one text, without padding."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), output_hidden_states=True)
    rows = out.last_hidden_state[0]
    vector = rows.mean(0) if pool == "mean" else rows[0]
    return [h[0] for h in out.hidden_states], torch.nn.functional.normalize(vector, dim=0) if normalise else vector


def write_sentence_transformer(folder, pool, normalise, max_length):
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")] + ([("Normalize", "2_Normalize")] if normalise else [])
    (folder / "modules.json").write_text(json.dumps(
        [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
         for i, (kind, path) in enumerate(modules)], indent=2) + "\n")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(
        {"word_embedding_dimension": 32, "pooling_mode_cls_token": pool == "first",
         "pooling_mode_mean_tokens": pool == "mean", "pooling_mode_max_tokens": False}) + "\n")
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_length, "do_lower_case": False}) + "\n")


def make(name, model, pool, normalise, max_length, shard="1GB", vocab_only=False, tokenizer="uncased"):
    folder = HERE / "golden" / name
    shutil.rmtree(folder, ignore_errors=True)
    model = model.eval()
    with torch.no_grad():  # larger than training starts with, so that every part of the model shows
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, 0.5 if parameter.dim() == 1 else 0, 0.3)
    model.save_pretrained(folder, max_shard_size=shard)
    if vocab_only:
        shutil.copy(TOKENIZERS / "vocab.txt", folder)
    else:
        shutil.copy(TOKENIZERS / f"{tokenizer}.json", folder / "tokenizer.json")
    if pool:
        write_sentence_transformer(folder, pool, normalise, max_length)
    tokenizer = Tokenizer.from_file(str(TOKENIZERS / f"{tokenizer}.json"))
    tokenizer.enable_truncation(max_length)
    sources = [tokenizer.encode(text).ids for text in SENTENCES]
    golden = {"source": torch.zeros(len(sources), max_length, dtype=torch.int32),
              "source_len": torch.tensor([len(ids) for ids in sources], dtype=torch.int32)}
    vectors = []
    for b, ids in enumerate(sources):
        golden["source"][b, :len(ids)] = torch.tensor(ids)
        layers, vector = embed(model, ids, pool or "mean", normalise)
        vectors.append(vector)
        names = [f"encoder.ffn.{i}" for i in range(1, len(layers))] + ["encoder"]
        for layer, rows in zip(names, [*layers[1:], layers[-1]]):
            golden.setdefault(layer, torch.zeros(len(sources), max_length, rows.shape[1]))[b, :len(ids)] = rows
    golden["logits"] = torch.stack(vectors)
    save_file(golden, folder / "golden.safetensors")


def tiny_models():
    torch.manual_seed(1)
    vocab = Tokenizer.from_file(str(TOKENIZERS / "uncased.json")).get_vocab_size()
    sizes = dict(vocab_size=vocab + 3, max_position_embeddings=48)
    bert = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40, **sizes)
    make("bert", BertModel(BertConfig(**bert)), "mean", True, 32)
    # Without a pooler, in three files, with another activation, epsilon and pooling.
    make("bert-sharded", BertModel(BertConfig(**bert, hidden_act="gelu_new", layer_norm_eps=1e-3), add_pooling_layer=False),
         "first", False, 32, shard="50KB")
    make("distilbert", DistilBertModel(DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=40, **sizes)),
         None, False, 48, vocab_only=True)
    vocab = Tokenizer.from_file(str(TOKENIZERS / "bytes.json")).get_vocab_size()
    make("roberta", RobertaModel(RobertaConfig(**{**bert, "vocab_size": vocab, "max_position_embeddings": 50}, type_vocab_size=1)),
         "mean", True, 32, tokenizer="bytes")


def minilm(folder):
    """Vectors one by one, so without padding; the texts are those of minilm.txt, the last of them longer than 256 tokens.

    As float16, half the size: that moves a cosine by less than 1e-7.
    """
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, attn_implementation="eager")
    texts = (HERE / "minilm.txt").read_text().splitlines()
    vectors = [embed(model.eval(), tokenizer(text, truncation=True, max_length=256)["input_ids"], "mean", True)[1] for text in texts]
    np.save(HERE / "minilm.npy", torch.stack(vectors).numpy().astype(np.float16))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--minilm")
    arguments = parser.parse_args()
    if arguments.minilm:
        minilm(arguments.minilm)
    else:
        tiny_models()
