"""Makes gguf/: a tiny random GPT-2, quantised, with the vocabulary of tests/core/tokenizer, and what transformers computes with it; and
golden/llama3, qwen2 and qwen3 as llama.cpp would have them.

    pip install torch==2.15.0 transformers==5.23.0 gguf==0.19.0 sentencepiece==0.2.3
    python3 make_gguf.py
"""
import json
import math
from pathlib import Path

import gguf
import torch
from arrays import write_json
from make_golden import SEARCHES, until
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import GPT2Config, GPT2LMHeadModel

HERE = Path(__file__).parent
VOCABULARY = HERE.parent / "core" / "tokenizer" / "golden"
NAMES = {"wte": "token_embd", "wpe": "position_embd", "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
         "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "ln_f": "output_norm"}
TYPES = {"attn_qkv": "Q4_1", "ffn_up": "Q8_0", "ffn_down": "Q4_0", "token_embd": "Q8_0", "position_embd": "F16"}


def name_of(theirs):
    parts = theirs.removeprefix("transformer.").split(".")
    layer = f"blk.{parts[1]}." if parts[0] == "h" else ""
    return layer + NAMES[".".join(parts[2:-1] if layer else parts[:-1])] + "." + parts[-1]


def freqs(width, base, factor, low, high, length):
    """By what each pair turns slower: how llama.cpp's converter says rope_type "llama3"."""
    for i in range(width // 2):
        wave = 2 * math.pi * base ** (2 * i / width)
        smooth = min(1.0, max(0.0, (length / wave - low) / (high - low)))
        yield 1 / ((1 - smooth) / factor + smooth)


def as_gguf(name, architecture):
    """A tiny model of golden/ by the names and keys of llama.cpp."""
    folder = HERE / "golden" / name
    config = json.loads((folder / "config.json").read_text())
    document = json.loads((folder / "tokenizer.json").read_text())
    heads, rope = config["num_attention_heads"], config["rope_parameters"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    writer = gguf.GGUFWriter(HERE / "gguf" / f"{name}.gguf", architecture)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(width)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_rope_freq_base(rope["rope_theta"])
    if architecture == "llama":
        writer.add_rope_dimension_count(width)
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    tokens = sorted(document["model"]["vocab"], key=document["model"]["vocab"].get)
    tokens += [f"<|{i}|>" for i in range(len(tokens), config["vocab_size"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in document["model"]["merges"]])
    writer.add_eos_token_id(len(tokens) - 1)
    for theirs, tensor in load_file(folder / "model.safetensors").items():
        parts = theirs.removeprefix("model.").split(".")
        if parts[0] == "layers":
            ours = f"blk.{parts[1]}.{names['.'.join(parts[2:-1])]}.{parts[-1]}"
        else:
            ours = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}[parts[0]] + ".weight"
        if architecture == "llama" and ours.endswith(("attn_q.weight", "attn_k.weight")):  # neighbours turn together
            tensor = tensor.reshape(-1, 2, width // 2, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
        writer.add_tensor(ours, tensor.float().contiguous().numpy())
    if rope["rope_type"] == "llama3":
        slower = freqs(width, rope["rope_theta"], rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"])
        writer.add_tensor("rope_freqs.weight", torch.tensor(list(slower)).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    for name, architecture in (("llama3", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")):
        as_gguf(name, architecture)
    document = json.loads((VOCABULARY / "smollm.json").read_text())
    tokens = sorted(document["model"]["vocab"], key=document["model"]["vocab"].get)
    sizes = dict(vocab_size=len(tokens), n_positions=48, n_embd=32, n_layer=2, n_head=4, n_inner=64)
    end = tokens.index("<|end|>")
    model = GPT2LMHeadModel(GPT2Config(**sizes, layer_norm_epsilon=1e-3, attn_implementation="eager", bos_token_id=None, eos_token_id=end)).eval()
    (HERE / "gguf").mkdir(exist_ok=True)
    for seed in range(20):  # until what it writes depends on the text and on the number of beams
        torch.manual_seed(seed)
        tensors = quantised(model)
        if written(model, Tokenizer.from_file(str(VOCABULARY / "smollm.json")), end):
            break
    writer = gguf.GGUFWriter(HERE / "gguf" / "tiny.gguf", "gpt2")
    writer.add_embedding_length(32)
    writer.add_head_count(4)
    writer.add_feed_forward_length(64)
    writer.add_layer_norm_eps(1e-3)
    writer.add_context_length(48)
    writer.add_block_count(2)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in document["model"]["merges"]])
    writer.add_eos_token_id(end)
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    target = torch.randint(0, len(tokens), (2, 12), dtype=torch.int32)
    with torch.no_grad():
        out = model(input_ids=target.long(), output_hidden_states=True)
    golden = {"target": target, "target_len": torch.full((2,), 12, dtype=torch.int32), "decoder.ffn.1": out.hidden_states[1],
              "decoder": out.hidden_states[-1], "logits": out.logits}
    save_file(golden, HERE / "gguf" / "golden.safetensors")


def quantised(model):
    """Draws the numbers of a model, which keeps what their types leave of them; these by the names of GGUF."""
    tensors = {}
    for theirs, parameter in model.named_parameters():
        with torch.no_grad():  # larger than training starts with, so that every part of the model shows
            # The input shows in the output, not the token before alone.
            torch.nn.init.normal_(parameter, 0.5 if parameter.dim() == 1 and "bias" not in theirs else 0, 0.05 if "wte" in theirs else 0.3)
            ours, turned = name_of(theirs), ".c_" in theirs and parameter.dim() == 2
            kind = gguf.GGMLQuantizationType[TYPES.get(ours.split(".")[-2], "F32") if parameter.dim() == 2 else "F32"]
            data = gguf.quants.quantize((parameter.T if turned else parameter).contiguous().numpy(), kind)
            tensors[ours] = data, kind
            values = torch.from_numpy(gguf.quants.dequantize(data, kind).copy())
            parameter.copy_(values.T if turned else values)
    return tensors


def written(model, tokenizer, end):
    """texts.json: what it writes greedily and with four beams, by text.  False: the same."""
    texts = {}
    for text in ("the of", "each head of", "attention 12"):
        prompt = torch.tensor([tokenizer.encode(text).ids])
        for key, beams in SEARCHES.items():
            made = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False, pad_token_id=0, **beams)
            ids = until(made[0, prompt.shape[1]:].tolist(), [end])
            texts.setdefault(text, {})[key] = {"ids": ids, "text": tokenizer.decode(ids)}
    write_json(HERE / "gguf" / "texts.json", texts)
    return all(len(set(one["greedy"]["ids"])) > 2 for one in texts.values()) and any(one["greedy"] != one["beams"] for one in texts.values())


if __name__ == "__main__":
    main()
