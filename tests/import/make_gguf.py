"""Makes gguf/: a tiny random GPT-2, quantised, with the vocabulary of tests/core/tokenizer, and what transformers computes with it.

    pip install torch==2.15.0 transformers==5.23.0 gguf==0.19.0
    python3 make_gguf.py
"""
import json
from pathlib import Path

import gguf
import torch
from safetensors.torch import save_file
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


def main():
    torch.manual_seed(1)
    document = json.loads((VOCABULARY / "smollm.json").read_text())
    tokens = sorted(document["model"]["vocab"], key=document["model"]["vocab"].get)
    sizes = dict(vocab_size=len(tokens), n_positions=48, n_embd=32, n_layer=2, n_head=4, n_inner=64)
    model = GPT2LMHeadModel(GPT2Config(**sizes, layer_norm_epsilon=1e-3, attn_implementation="eager")).eval()
    (HERE / "gguf").mkdir(exist_ok=True)
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
    writer.add_eos_token_id(tokens.index("<|end|>"))
    for theirs, parameter in model.named_parameters():
        with torch.no_grad():  # larger than training starts with, so that every part of the model shows
            torch.nn.init.normal_(parameter, 0.5 if parameter.dim() == 1 else 0, 0.3)
            ours, turned = name_of(theirs), ".c_" in theirs and parameter.dim() == 2
            kind = gguf.GGMLQuantizationType[TYPES.get(ours.split(".")[-2], "F32") if parameter.dim() == 2 else "F32"]
            data = gguf.quants.quantize((parameter.T if turned else parameter).contiguous().numpy(), kind)
            writer.add_tensor(ours, data, raw_dtype=kind)
            values = torch.from_numpy(gguf.quants.dequantize(data, kind).copy())
            parameter.copy_(values.T if turned else values)
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
    prompt = torch.tensor([[tokens.index("the"), tokens.index("Ġof")]])
    made = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=False, eos_token_id=tokens.index("<|end|>"), pad_token_id=0)
    print("the of:", made[0].tolist())


if __name__ == "__main__":
    main()
