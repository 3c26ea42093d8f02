"""Makes tiny random models with transformers, and what it computes with them; and of all-MiniLM-L6-v2 reference vectors.

Every model is drawn from a seed of its own, so that it does not matter which others are made; what is computed with it may differ in the last
bits from one processor to another.

    pip install torch==2.15.0 transformers==5.23.0 tokenizers==0.23.3 sentencepiece==0.2.3 ctranslate2==4.8.5
    python3 make_golden.py                    # golden/: folders as save_pretrained writes them, golden.safetensors in each
    python3 make_golden.py --minilm FOLDER    # minilm.npy, from the model's folder and minilm.txt
    python3 make_golden.py --smollm2 FILE     # smollm2.json, from the GGUF file (needs gguf, accelerate and xllamacpp==2026.10.11549 too)
    python3 make_golden.py --whisper FOLDER   # whisper*.json, from CTranslate2's folder (needs ctranslate2==4.8.5, espeak-ng and apt too)
"""
import argparse
import json
import re
import shutil
import tempfile
import wave
from functools import partial
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from arrays import write_json
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, pre_tokenizers
from transformers import (AutoModel, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, BartConfig, BartForConditionalGeneration, BertConfig, BertModel,
                          DistilBertConfig, DistilBertModel, GemmaConfig, GemmaForCausalLM, GenerationConfig, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, M2M100Config,
                          M2M100ForConditionalGeneration, M2M100Tokenizer, MarianConfig, MarianMTModel, MarianTokenizer, MistralConfig,
                          MistralForCausalLM, MT5Config, MT5ForConditionalGeneration, NllbTokenizer, Phi3Config, Phi3ForCausalLM,
                          Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, RobertaConfig, RobertaModel,
                          T5Config, T5ForConditionalGeneration, WhisperConfig, WhisperFeatureExtractor,
                          WhisperForConditionalGeneration, XLMRobertaConfig, XLMRobertaModel, XLMRobertaTokenizer)
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES as NLLB_LANGUAGES

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


def make(name, kind, config, seed, pool, normalise, max_length, shard="1GB", vocab_only=False, tokenizer="uncased"):
    folder = HERE / "golden" / name
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(seed)
    model = kind(config).eval()
    with torch.no_grad():  # larger than training starts with, so that every part of the model shows
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, 0.5 if parameter.dim() == 1 else 0, 0.3)
    model.save_pretrained(folder, max_shard_size=shard)
    if vocab_only:
        shutil.copy(TOKENIZERS / "vocab.txt", folder)
    elif callable(tokenizer):
        tokenizer(folder)
    else:
        shutil.copy(TOKENIZERS / f"{tokenizer}.json", folder / "tokenizer.json")
    if pool:
        write_sentence_transformer(folder, pool, normalise, max_length)
    tokenizer = Tokenizer.from_file(str(TOKENIZERS / f"{tokenizer}.json" if vocab_only else folder / "tokenizer.json"))
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


SEARCHES = {"greedy": {"num_beams": 1}, "beams": {"num_beams": 4, "early_stopping": "never", "length_penalty": 1.0}}


def until(ids, ends):
    """Without the token that ends them, and what fills a row behind it."""
    return ids[:next((i for i, id in enumerate(ids) if id in ends), len(ids))]


def write_texts(folder, model, tokenizer, prompts=("The attention", "of each head", "Unaffable", "tokens")):
    """texts.json: what it writes greedily and with four beams, by prompt."""
    ends = model.generation_config.eos_token_id
    texts = {}
    for prompt in prompts:
        given = torch.tensor([tokenizer.encode(prompt).ids[:-1]])
        for key, beams in SEARCHES.items():
            made = model.generate(given, max_new_tokens=12, do_sample=False, pad_token_id=1, **beams)[0, given.shape[1]:]
            ids = until(made.tolist(), ends if isinstance(ends, list) else [ends])
            texts.setdefault(prompt, {})[key] = {"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=True)}
    write_json(folder / "texts.json", texts)
    return any(one["greedy"] != one["beams"] for one in texts.values())


def make_decoder(name, kind, config, seed):
    """A language model: rows of all layers, the scores of every token, and what it writes."""
    folder = HERE / "golden" / name
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(seed)
    model = kind(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            torch.nn.init.normal_(parameter, 0.5 if parameter.dim() == 1 and "bias" not in key else 0, 0.3)
            if name == "gemma":  # whose norms add 1 to their weights
                parameter *= 0.6 if "_proj" in key else 0.2 if "embed" in key else 1
    model.save_pretrained(folder)
    shutil.copy(TOKENIZERS / "bytes.json", folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(str(TOKENIZERS / "bytes.json"))
    length = 24
    targets = [tokenizer.encode(text).ids[:-1][:length] for text in SENTENCES[2:]]
    golden = {"target": torch.zeros(len(targets), length, dtype=torch.int32),
              "target_len": torch.tensor([len(ids) for ids in targets], dtype=torch.int32)}
    for b, ids in enumerate(targets):
        golden["target"][b, :len(ids)] = torch.tensor(ids)
        with torch.no_grad():
            out = model(input_ids=torch.tensor([ids]), output_hidden_states=True)
        layers = [h[0] for h in out.hidden_states]  # the last of them behind the last norm
        names = [f"decoder.ffn.{i}" for i in range(1, len(layers) - 1)] + ["decoder", "logits"]
        for layer, rows in zip(names, [*layers[1:], out.logits[0]]):
            golden.setdefault(layer, torch.zeros(len(targets), length, rows.shape[1]))[b, :len(ids)] = rows
    save_file(golden, folder / "golden.safetensors")
    assert write_texts(folder, model, tokenizer), f"{name}: four beams find nothing else"


def write_translations(folder, model, encode, decode, texts):
    """texts.json: what it makes of each text greedily, and with four beams.  False: the same of all."""
    setting = model.generation_config
    first = 1 + (setting.forced_bos_token_id is not None)

    def written(text, **beams):
        made = model.generate(torch.tensor([encode(text)]), max_new_tokens=12, do_sample=False, forced_eos_token_id=None, **beams)[0].tolist()
        ids = until(made[first:], [setting.eos_token_id])
        return {"ids": ids, "text": decode(ids)}

    made = {text: {key: written(text, **beams) for key, beams in SEARCHES.items()} for text in texts}
    if len({tuple(one["greedy"]["ids"]) for one in made.values()}) < len(texts):
        return False
    write_json(folder / "texts.json", made)
    return any(one["greedy"] != one["beams"] for one in made.values())


def randomise(model, seed):
    """Larger than training starts with, so that every part of the model shows, and what is read as much as what is written."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "embed_positions" in key and not parameter.requires_grad:
                continue
            embeds = "shared" in key or "embed_tokens" in key
            spread = 0.05 if embeds else 0.15 if model.config.model_type in ("t5", "mt5") else 0.3
            torch.nn.init.normal_(parameter, 1 if parameter.dim() == 1 and "bias" not in key else 0, spread)
            if "Attention.q" in key:  # scores are not divided by the root of the width
                parameter *= 2 * model.config.d_kv**-0.5
            if "encoder_attn.out_proj.weight" in key:
                parameter *= 4
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(0, 0.1)


def make_translator(name, model, save, layers=("ffn.1", "ffn.2"), texts=("The attention", "of each head", "Unaffable")):
    """A model with an encoder and a decoder: rows of all layers, the scores of every token, and what it writes.

    save(folder) writes the tokenizer's files and returns what encodes and decodes.  Where the last norm follows the last layer, what
    transformers shows of that layer is behind it.
    """
    folder = HERE / "golden" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    model = model.eval()
    encode, decode = save(folder)
    for seed in range(100):  # until what it writes depends on the source and on the number of beams
        randomise(model, seed)
        if write_translations(folder, model, encode, decode, texts):
            break
    model.save_pretrained(folder)
    length = 24
    sources = [encode(text)[:length] for text in SENTENCES[2:]]
    targets = [[model.config.decoder_start_token_id, *source[-2:0:-1]] for source in sources]
    golden = {}
    for side, rows in (("source", sources), ("target", targets)):
        golden[side] = torch.zeros(len(rows), length, dtype=torch.int32)
        golden[f"{side}_len"] = torch.tensor([len(ids) for ids in rows], dtype=torch.int32)
        for b, ids in enumerate(rows):
            golden[side][b, :len(ids)] = torch.tensor(ids)
    for b, (source, target) in enumerate(zip(sources, targets)):
        with torch.no_grad():
            out = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([target]), output_hidden_states=True)
        made = {"logits": out.logits[0]}
        for stack, states in (("encoder", out.encoder_hidden_states), ("decoder", out.decoder_hidden_states)):
            made.update({f"{stack}.{layer}".rstrip("."): states[i][0] for i, layer in enumerate(layers, 1)})
        for layer, rows in made.items():
            golden.setdefault(layer, torch.zeros(len(sources), length, rows.shape[1]))[b, :len(rows)] = rows
    save_file(golden, folder / "golden.safetensors")


def tokenizer_json(name):
    def save(folder):
        shutil.copy(TOKENIZERS / f"{name}.json", folder / "tokenizer.json")
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        return lambda text: tokenizer.encode(text).ids, lambda ids: tokenizer.decode(ids, skip_special_tokens=True)
    return save


def spm(path, **more):
    """A SentencePiece file with other pieces than sentences.model."""
    lines = (HERE / "minilm.txt").read_text().splitlines()[:500]
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_prefix=str(path), minloglevel=2, num_threads=1,
                                             **{"vocab_size": 120, "hard_vocab_limit": False, **more})
    Path(f"{path}.vocab").unlink()
    Path(f"{path}.model").rename(path)


def marian_files(folder):
    shutil.copy(TOKENIZERS / "sentences.model", folder / "source.spm")
    spm(folder / "target.spm")
    (folder / "vocab.json").write_text(json.dumps(marian_vocabulary(folder), ensure_ascii=False) + "\n")
    tokenizer = MarianTokenizer(str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json"))
    return lambda text: tokenizer(text).input_ids, lambda ids: tokenizer.decode(ids, skip_special_tokens=True)


def marian_vocabulary(folder):
    """Both sides' pieces in an order of their own, as Marian's vocabularies have them; <pad> is what transformers added."""
    pieces = set()
    for file in ("source.spm", "target.spm"):
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / file))
        pieces |= {model.id_to_piece(i) for i in range(model.vocab_size())}
    pieces = sorted(pieces - {"<unk>", "<s>", "</s>"}, key=lambda piece: (len(piece), piece))
    return {token: i for i, token in enumerate(["</s>", "<unk>", *pieces, ">>de<<", "<pad>"])}


def m2m_files(folder):
    shutil.copy(TOKENIZERS / "sentences.model", folder / "sentencepiece.bpe.model")
    (folder / "vocab.json").write_text(json.dumps(m2m_vocabulary(), ensure_ascii=False) + "\n")
    tokenizer = M2M100Tokenizer(str(folder / "vocab.json"), str(folder / "sentencepiece.bpe.model"), src_lang="en", tgt_lang="de")
    # Without the languages' tokens, which transformers shows.
    return (lambda text: tokenizer(text).input_ids,
            lambda ids: re.sub("__[a-z]+__", "", tokenizer.decode(ids, skip_special_tokens=True)).strip())


def m2m_vocabulary():
    model = sentencepiece.SentencePieceProcessor(model_file=str(TOKENIZERS / "sentences.model"))
    pieces = [model.id_to_piece(i) for i in range(3, model.vocab_size())]
    return {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces])}


def xlm_roberta_files(folder):
    """SentencePiece's file, and the tokenizer.json that transformers makes of it."""
    shutil.copy(TOKENIZERS / "sentences.model", folder / "sentencepiece.bpe.model")
    tokenizer = XLMRobertaTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    return len(tokenizer)


def nllb_files(folder):
    """SentencePiece's file, of pairs as NLLB's is, and the tokenizer.json that transformers makes of it."""
    spm(folder / "sentencepiece.bpe.model", model_type="bpe", vocab_size=200, hard_vocab_limit=True, normalization_rule_name="identity")
    tokenizer = NllbTokenizer.from_pretrained(folder, src_lang="eng_Latn", tgt_lang="deu_Latn", extra_special_tokens=NLLB_LANGUAGES,
                                              mask_token=AddedToken("<unk>", normalized=False, special=True))
    tokenizer.add_special_tokens({"mask_token": "<mask>"})  # behind the languages, as in the files of NLLB
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    return lambda text: tokenizer(text).input_ids, lambda ids: tokenizer.decode(ids, skip_special_tokens=True)


def make_nllb(**sizes):
    with tempfile.TemporaryDirectory() as folder:
        nllb_files(Path(folder))
        vocabulary = Tokenizer.from_file(f"{folder}/tokenizer.json").get_vocab(with_added_tokens=True)
    model = M2M100ForConditionalGeneration(M2M100Config(vocab_size=len(vocabulary) + 2, **sizes))
    model.generation_config.bad_words_ids = [[1]]  # <pad>, as above
    model.generation_config.forced_bos_token_id = vocabulary["deu_Latn"]
    make_translator("nllb", model, nllb_files, layers=("ffn.1", ""))


def write_recordings(folder):
    """Two short sounds by rule: a gliding tone with its octave, and one that swells, with noise; as numbers within [-1, 1]."""
    t = np.arange(12800) / 16000
    random = np.random.default_rng(4)
    sounds = [9000 * np.sin(2 * np.pi * (150 + 600 * t) * t) + 3000 * np.sin(2 * np.pi * (300 + 1200 * t) * t) * (t > 0.3),
              12000 * t * np.sin(2 * np.pi * 700 * t) + random.normal(0, 900, len(t)) * (t < 0.5)]
    made = []
    for i, sound in enumerate(sounds, 1):
        whole = np.round(sound[:12800 if i == 1 else 8000]).astype("<i2")
        with wave.open(str(folder / f"{i}.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(whole.tobytes())
        made.append(whole / np.float32(32768))
    return made


def make_whisper(name):
    """Speech of up to 1 s to text: rows of all layers, scores, and what it writes in two languages."""
    torch.manual_seed(3)
    folder = HERE / "golden" / name
    shutil.rmtree(folder, ignore_errors=True)
    tokens = json.loads((TOKENIZERS / "bytes.json").read_text())
    first = max(one["id"] for one in tokens["added_tokens"]) + 1
    more = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>", "<|notimestamps|>"]
    ids = {token: first + i for i, token in enumerate(more)}
    tokens["added_tokens"] += [{"id": id, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                                "normalized": False, "special": True} for token, id in ids.items()]
    model = WhisperForConditionalGeneration(WhisperConfig(
        vocab_size=first + len(more) + 3, num_mel_bins=80, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=40, decoder_ffn_dim=40, max_source_positions=50, max_target_positions=40,
        decoder_start_token_id=ids["<|startoftranscript|>"], eos_token_id=ids["<|endoftext|>"], bos_token_id=ids["<|endoftext|>"],
        pad_token_id=ids["<|endoftext|>"], suppress_tokens=None, begin_suppress_tokens=None)).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "encoder.embed_positions" not in key:
                torch.nn.init.normal_(parameter, 0.5 if parameter.dim() == 1 and "bias" not in key else 0, 0.3)
        for layer in (*model.model.encoder.layers, *model.model.decoder.layers):  # of numbers as a trained model has them
            layer.fc2.weight.mul_(0.5)
        # So that places and sounds show in what is written, not the token before alone.
        model.model.decoder.embed_tokens.weight.mul_(0.5)
        model.model.decoder.embed_positions.weight.mul_(4)
        model.model.decoder.layer_norm.weight.fill_(2)
        model.model.decoder.layer_norm.bias.zero_()
    setting = model.generation_config
    setting.suppress_tokens, setting.begin_suppress_tokens = [0, 1, 2, 3, 44, 60, 77, first - 1], [5, 6, ids["<|endoftext|>"]]
    setting.is_multilingual, setting.no_timestamps_token_id = True, ids["<|notimestamps|>"]
    setting.lang_to_id = {token: ids[token] for token in ("<|en|>", "<|de|>")}
    setting.task_to_id = {task: ids[f"<|{task}|>"] for task in ("translate", "transcribe")}
    extractor = WhisperFeatureExtractor(feature_size=80, chunk_length=1)
    model.save_pretrained(folder)
    extractor.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokens, ensure_ascii=False) + "\n")
    frames = torch.tensor(np.stack([extractor._np_extract_fbank_features(np.pad(sound, (0, 16000 - len(sound)))[None].astype(float), "cpu")[0]
                                    for sound in write_recordings(folder)]), dtype=torch.float32)
    target = [ids["<|startoftranscript|>"], ids["<|en|>"], ids["<|transcribe|>"], ids["<|notimestamps|>"], *range(100, 120)]
    with torch.no_grad():
        out = model(input_features=frames, decoder_input_ids=torch.tensor([target] * 2), output_hidden_states=True)
    golden = {"source": frames.transpose(1, 2).contiguous(), "source_len": torch.tensor([100, 100], dtype=torch.int32),
              "target": torch.tensor([target] * 2, dtype=torch.int32), "target_len": torch.tensor([len(target)] * 2, dtype=torch.int32),
              "logits": out.logits}
    for stack, states in (("encoder", out.encoder_hidden_states), ("decoder", out.decoder_hidden_states)):
        golden.update({f"{stack}.ffn.{i}": states[i] for i in range(1, len(states) - 1)})
        golden[stack] = states[-1]
    save_file({key: value.contiguous() for key, value in golden.items()}, folder / "golden.safetensors")
    texts = {language: {key: [model.generate(one[None], language=language, task="transcribe", max_new_tokens=16, do_sample=False, **beams)[0].tolist()
                              for one in frames] for key, beams in SEARCHES.items()} for language in setting.lang_to_id}
    assert any(one["greedy"] != one["beams"] for one in texts.values())
    write_json(folder / "texts.json", texts)


def tiny_decoders():
    vocab = Tokenizer.from_file(str(TOKENIZERS / "bytes.json")).get_vocab_size()
    sizes = dict(vocab_size=vocab + 3, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40,
                 max_position_embeddings=64)
    make_decoder("llama", LlamaForCausalLM, LlamaConfig(**sizes, num_key_value_heads=2), seed=2)
    # Turns as Llama 3.1 scales them, so short a training that all its cases occur; one head of keys, tied, wider heads.
    scaled = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 32}
    make_decoder("llama3", LlamaForCausalLM, LlamaConfig(
        **sizes, num_key_value_heads=1, head_dim=12, rope_parameters=scaled, tie_word_embeddings=True, rms_norm_eps=1e-3), seed=7)
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    make_decoder("qwen2", Qwen2ForCausalLM, Qwen2Config(**sizes, num_key_value_heads=2, rope_parameters=linear), seed=8)
    make_decoder("qwen3", Qwen3ForCausalLM, Qwen3Config(**sizes, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True), seed=9)
    make_decoder("gemma", GemmaForCausalLM, GemmaConfig(**sizes, num_key_value_heads=1, head_dim=12, eos_token_id=[2, 5]), seed=10)
    make_decoder("gpt2", GPT2LMHeadModel, GPT2Config(vocab_size=vocab, n_embd=32, n_layer=2, n_head=4, n_positions=64,
                                                     bos_token_id=0, eos_token_id=2), seed=22)
    make_decoder("mistral", MistralForCausalLM, MistralConfig(**sizes, num_key_value_heads=2, sliding_window=5), seed=12)
    # Some of the texts are longer than those of its training, and some that it writes become so.
    each = {"rope_type": "longrope", "rope_theta": 100.0, "original_max_position_embeddings": 16, "short_factor": [1.0, 1.1, 1.5, 2.0],
            "long_factor": [1.0, 2.0, 6.0, 15.0]}
    make_decoder("llama-longrope", LlamaForCausalLM, LlamaConfig(**sizes, num_key_value_heads=2, rope_parameters=each), seed=5)
    small = {**sizes, "hidden_size": 16, "intermediate_size": 24, "num_key_value_heads": 2}
    # Biases around attention alone, and of the feed-forward layers alone.
    make_decoder("llama-attention-bias", LlamaForCausalLM, LlamaConfig(**small, attention_bias=True), seed=6)
    make_decoder("llama-mlp-bias", LlamaForCausalLM, LlamaConfig(**small, mlp_bias=True), seed=13)
    # A layer that sees a window, and one that sees all.
    make_decoder("qwen2-window", Qwen2ForCausalLM, Qwen2Config(
        **small, use_sliding_window=True, sliding_window=5, layer_types=["sliding_attention", "full_attention"]), seed=14)
    long = {"rope_type": "longrope", "rope_theta": 100.0, "short_factor": [1.0, 1.5], "long_factor": [1.0, 6.0]}
    make_decoder("phi3", Phi3ForCausalLM, Phi3Config(
        **{**small, "num_key_value_heads": 1}, bos_token_id=1, eos_token_id=2, pad_token_id=1, sliding_window=7, rope_parameters=long,
        original_max_position_embeddings=20), seed=15)


def tiny_translators():
    vocab = Tokenizer.from_file(str(TOKENIZERS / "bytes.json")).get_vocab_size()
    sizes = dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=40,
                 decoder_ffn_dim=40, max_position_embeddings=48)
    make_translator("bart", BartForConditionalGeneration(BartConfig(vocab_size=vocab, scale_embedding=True, **sizes)), tokenizer_json("bytes"))
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(TOKENIZERS / "sentences.model", Path(folder) / "source.spm")
        spm(Path(folder) / "target.spm")
        pieces = len(marian_vocabulary(Path(folder)))
    ids = dict(pad_token_id=pieces - 1, decoder_start_token_id=pieces - 1, eos_token_id=0, forced_eos_token_id=0)
    marian = MarianMTModel(MarianConfig(vocab_size=pieces, scale_embedding=True, activation_function="swish", **ids, **sizes))
    marian.generation_config.bad_words_ids = [[pieces - 1]]
    make_translator("marian", marian, marian_files, texts=("The attention", ">>de<<of each head", "Unaffable tokens"))
    pieces = len(m2m_vocabulary())
    # The languages' tokens follow the others in the order in which transformers lists them, then eight that are not used.
    m2m = M2M100ForConditionalGeneration(M2M100Config(vocab_size=pieces + 108, **sizes))
    m2m.generation_config.bad_words_ids = [[1]]  # <pad>, which has no position in transformers
    m2m.generation_config.forced_bos_token_id = pieces + FAIRSEQ_LANGUAGE_CODES["m2m100"].index("de")
    make_translator("m2m100", m2m, m2m_files, layers=("ffn.1", ""))
    make_nllb(**sizes)
    vocab = Tokenizer.from_file(str(TOKENIZERS / "t5.json")).get_vocab_size()
    sizes = dict(vocab_size=vocab + 5, d_model=32, d_kv=12, d_ff=40, num_layers=2, num_heads=4, relative_attention_num_buckets=8,
                 relative_attention_max_distance=12, pad_token_id=1, decoder_start_token_id=1, eos_token_id=2)
    make_translator("t5", T5ForConditionalGeneration(T5Config(**sizes)), tokenizer_json("t5"), layers=("ffn.1", ""))
    make_translator("t5-gated", T5ForConditionalGeneration(T5Config(**sizes, feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
                    tokenizer_json("t5"), layers=("ffn.1", ""))
    # As Google's files have it: with a head of its own, which transformers says of a model that it has read alone.
    mt5 = MT5ForConditionalGeneration(MT5Config(**sizes))
    mt5.lm_head.weight, mt5.config.tie_word_embeddings = torch.nn.Parameter(torch.zeros(sizes["vocab_size"], 32)), False
    make_translator("mt5", mt5, tokenizer_json("t5"), layers=("ffn.1", ""))


def several_ends(name, texts):
    """ends.json: what a language model that is there already writes where a token that it likes to write ends a text as well."""
    folder = HERE / "golden" / name
    tokenizer, model = Tokenizer.from_file(str(folder / "tokenizer.json")), AutoModelForCausalLM.from_pretrained(folder).eval()
    end = model.generation_config.eos_token_id

    def written(text, ends, **beams):
        given = torch.tensor([tokenizer.encode(text).ids[:-1]])
        return model.generate(given, max_new_tokens=12, do_sample=False, pad_token_id=1, eos_token_id=ends, **beams)[0, given.shape[1]:].tolist()

    ends = [end, next(id for id in written(texts[0], end)[2:] if id != end)]
    made = {}
    for text in texts:
        for key, beams in SEARCHES.items():
            made.setdefault(text, {})[key] = until(written(text, ends, **beams), ends)
    write_json(folder / "ends.json", {"eos_token_id": ends, "ids": made})


def searched(name, texts, settings):
    """decode.json: what a model that is there already writes where nobody but its generation_config.json says how."""
    folder = HERE / "golden" / name
    kind = AutoModelForCausalLM if texts is None else AutoModelForSeq2SeqLM
    tokenizer, made = Tokenizer.from_file(str(folder / "tokenizer.json")), []
    for setting in settings:
        model = kind.from_pretrained(folder).eval()
        own = {**json.loads((folder / "generation_config.json").read_text()), **setting}
        model.generation_config = GenerationConfig.from_dict(own)
        written = {}
        for text in texts or ("The attention", "of each head", "Unaffable"):
            given = torch.tensor([tokenizer.encode(text).ids[:None if texts else -1]])
            ids = model.generate(given, **({} if texts else {"pad_token_id": 1}))[0].tolist()
            ends = own["eos_token_id"]
            written[text] = until(ids[1 if texts else given.shape[1]:], ends if isinstance(ends, list) else [ends])
        made.append({"generation_config": setting, "ids": written})
    write_json(folder / "decode.json", made)


def searches():
    texts, ends = ("The attention", "of each head", "Unaffable", "heads of tokens"), [2, 414]  # the second is one that it likes to write
    searched("bart", texts, [
        *({"num_beams": 4, "max_length": 21, "early_stopping": stop, "eos_token_id": ends} for stop in (False, True, "never")),
        {"num_beams": 4, "max_length": 14},
        {"num_beams": 4, "length_penalty": 2.0, "max_length": 16, "min_length": 9, "no_repeat_ngram_size": 2, "early_stopping": True,
         "forced_eos_token_id": ends[0]},
        {"num_beams": 3, "max_length": 12, "min_length": 8, "eos_token_id": ends, "forced_eos_token_id": ends[0]},
        {"num_beams": 2, "early_stopping": "never", "length_penalty": 0.5, "repetition_penalty": 1.5, "max_new_tokens": 12},
        {"repetition_penalty": 1.3, "max_new_tokens": 10}, {"no_repeat_ngram_size": 1, "min_length": 12, "max_length": 12}])
    searched("llama", None, [
        {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "min_length": 14, "max_length": 20},
        {"num_beams": 3, "max_new_tokens": 9, "early_stopping": True}])


def pooled(name):
    """pooler.json: what a model that is there already makes of its first rows."""
    folder = HERE / "golden" / name
    tokenizer, model = Tokenizer.from_file(str(folder / "tokenizer.json")), BertModel.from_pretrained(folder).eval()
    tokenizer.enable_truncation(32)
    with torch.no_grad():
        vectors = [model(input_ids=torch.tensor([tokenizer.encode(text).ids])).pooler_output[0].tolist() for text in SENTENCES]
    (folder / "pooler.json").write_text(json.dumps(vectors) + "\n")


def tiny_models():
    vocab = Tokenizer.from_file(str(TOKENIZERS / "uncased.json")).get_vocab_size()
    sizes = dict(vocab_size=vocab + 3, max_position_embeddings=48)
    bert = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40, **sizes)
    make("bert", BertModel, BertConfig(**bert), 1, "mean", True, 32)
    # Without a pooler, in three files, with another activation, epsilon and pooling.
    make("bert-sharded", partial(BertModel, add_pooling_layer=False), BertConfig(**bert, hidden_act="gelu_new", layer_norm_eps=1e-3), 16,
         "first", False, 32, shard="50KB")
    make("distilbert", DistilBertModel, DistilBertConfig(dim=32, n_layers=2, n_heads=4, hidden_dim=40, **sizes), 17,
         None, False, 48, vocab_only=True)
    vocab = Tokenizer.from_file(str(TOKENIZERS / "bytes.json")).get_vocab_size()
    make("roberta", RobertaModel, RobertaConfig(**{**bert, "vocab_size": vocab, "max_position_embeddings": 50}, type_vocab_size=1), 18,
         "mean", True, 32, tokenizer="bytes")
    with tempfile.TemporaryDirectory() as folder:
        vocab = xlm_roberta_files(Path(folder)) + 3
    make("xlm-roberta", XLMRobertaModel, XLMRobertaConfig(**{**bert, "vocab_size": vocab, "max_position_embeddings": 50}, type_vocab_size=1), 1,
         "first", True, 32, tokenizer=xlm_roberta_files)


def minilm(folder):
    """Vectors one by one, so without padding; the texts are those of minilm.txt, the last of them longer than 256 tokens.

    As float16, half the size: that moves a cosine by less than 1e-7.
    """
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, attn_implementation="eager")
    texts = (HERE / "minilm.txt").read_text().splitlines()
    vectors = [embed(model.eval(), tokenizer(text, truncation=True, max_length=256)["input_ids"], "mean", True)[1] for text in texts]
    np.save(HERE / "minilm.npy", torch.stack(vectors).numpy().astype(np.float16))


def opened_smollm2(path):
    """Tokenizer and model of the numbers that the file has when dequantised."""
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # The tokenizer that transformers makes of the file splits words as GPT-2 does; SmolLM2's own tokenizer takes digits apart before.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    return tokenizer, AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


def continued(tokenizer, model):
    """The greedy continuations of 50 prompts, ids and text, without the token that ends them."""
    heads = ["The capital of", "Once upon a time", "In the year 2050", "A recipe for", "The meaning of", "def sort(", "The history of",
             "Water boils at", "My favourite book is", "To be or not to"]
    tails = ["", " a small village", " the north", " people who", " old machines"]
    made = []
    for prompt in (head + tail for tail in tails for head in heads):
        ids = tokenizer(prompt, return_tensors="pt")
        out = model.generate(**ids, max_new_tokens=64, do_sample=False, pad_token_id=0)[0, ids.input_ids.shape[1]:]
        made.append({"prompt": prompt, "ids": until(out.tolist(), [tokenizer.eos_token_id]), "text": tokenizer.decode(out, skip_special_tokens=True)})
    return made


def smollm2(file):
    """smollm2.json: greedy texts, and the perplexity of lines after the word "The"."""
    path = Path(file)
    tokenizer, model = opened_smollm2(path)
    golden = {"texts": continued(tokenizer, model)}

    def surprise(line):
        before, wanted = tokenizer("The").input_ids, [*tokenizer(line).input_ids, tokenizer.eos_token_id]
        with torch.no_grad():
            scores = torch.log_softmax(model(torch.tensor([before + wanted])).logits[0].double(), -1)
        return -sum(scores[len(before) - 1 + i, id].item() for i, id in enumerate(wanted)), len(wanted)

    paragraphs = (HERE / "paragraphs.txt").read_text().splitlines()
    golden["lines"] = [line for line in (HERE / "minilm.txt").read_text().splitlines() if 3 < len(line.split()) < 80][:200]
    golden["perplexity"], golden["tokens"] = perplexities(surprise, golden["lines"], (20, 200))
    of_paragraphs = perplexities(surprise, paragraphs, (len(paragraphs),))
    of_llama, version = llama(path, tokenizer)
    golden["llama.cpp"] = {"version": version, "perplexity": perplexities(of_llama, golden["lines"], (20, 200))[0]}
    golden["paragraphs"] = {"perplexity": of_paragraphs[0][len(paragraphs)], "tokens": of_paragraphs[1][len(paragraphs)],
                            "llama.cpp": perplexities(of_llama, paragraphs, (len(paragraphs),))[0][len(paragraphs)]}
    write_json(HERE / "smollm2.json", golden)


def perplexities(surprise, lines, at):
    """Of so many lines from the first on, and their tokens.  surprise(line): its -ln p, and its tokens."""
    nll, tokens, perplexity, counts = 0, 0, {}, {}
    for n, (of_line, count) in enumerate(map(surprise, lines), 1):
        nll, tokens = nll + of_line, tokens + count
        if n in at:
            perplexity[n], counts[n] = float(np.exp(nll / tokens)), tokens
    return perplexity, counts


def llama(path, tokenizer):
    """The same surprise by llama.cpp, which multiplies the file's 4 bits as they are and rounds activations to 8; and its version."""
    import xllamacpp
    options = xllamacpp.CommonParams()
    options.model.path, options.n_ctx, options.n_parallel, options.verbosity = str(path), 512, 1, -1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(options)

    def surprise(line):
        nll, text, expected = 0, tokenizer("The").input_ids, [*tokenizer(line).input_ids, tokenizer.eos_token_id]
        for wanted in expected:
            # The bias has it choose that token; the score is that of the token without the bias.
            answer = server.handle_completions({"prompt": text, "max_tokens": 1, "temperature": 0, "logprobs": 1, "logit_bias": [[wanted, 1e4]]})
            chosen = answer["choices"][0]["logprobs"]["content"][0]
            assert chosen["id"] == wanted
            nll -= chosen["logprob"]
            text.append(wanted)
        return nll, len(expected)
    return surprise, f"xllamacpp {xllamacpp.__version__}"


def transcribed(model, frames, prompt, most=448, beams=1):
    """The tokens that CTranslate2 writes in f32, without those that begin and end a text."""
    from ctranslate2 import StorageView
    features = StorageView.from_array(np.ascontiguousarray(frames[None], dtype=np.float32))
    return model.generate(features, [prompt], beam_size=beams, patience=100, max_length=most)[0].sequences_ids[0]


def windows(samples, longest=480000, rate=16000):
    """Begin and end of the windows: cut in the middle of the quietest tenth of a second of the last sixth, the last of equals."""
    begin = 0
    while len(samples) - begin > longest:
        starts = range(begin + longest - longest // 6, begin + longest - rate // 10 + 1, rate // 100)
        quietest = min(reversed(starts), key=lambda at: float((samples[at:at + rate // 10] ** 2).sum()))
        yield begin, quietest + rate // 20
        begin = quietest + rate // 20
    yield begin, len(samples)


SPEECH = """agent-alreadyon conf-usermenu vm-newuser demo-moreinfo tt-allbusy demo-abouttotry demo-enterkeywords demo-nogo demo-thanks dir-instr dir-intro
confbridge-mute-extended queue-periodic-announce ss-noservice pbx-invalidpark vm-instructions vm-msginstruct vm-options screen-callee-options
basic-pbx-ivr-main"""  # of Asterisk's recordings, each of 5 to 26 s


def whisper(folder):
    from ctranslate2.models import Whisper
    from speak import joined, recorded, sentences, speak
    from whisper_test import speech
    model, tokenizer = Whisper(folder, device="cpu", compute_type="float32"), Tokenizer.from_file(f"{folder}/tokenizer.json")
    prompt = [tokenizer.token_to_id(token) for token in ("<|startoftranscript|>", "<|notimestamps|>")]
    extractor, golden = WhisperFeatureExtractor(feature_size=80), []

    def read(path):
        with wave.open(str(path)) as file:
            return np.frombuffer(file.readframes(file.getnframes()), dtype="<i2") / 32768

    def heard(samples):
        frames = extractor._np_extract_fbank_features(np.pad(samples, (0, 480000 - len(samples)))[None], "cpu")[0]
        return transcribed(model, frames, prompt)

    with tempfile.TemporaryDirectory() as temporary:
        paths = [Path(temporary) / f"{i}.wav" for i in range(len(sentences()))]
        for path, (voice, sentence) in zip(paths, sentences()):
            digest, ids = speak(voice, sentence, path), heard(read(path))
            golden.append({"sha256": digest, "ids": ids, "text": tokenizer.decode(ids)})
            print(sentence, golden[-1]["text"])
        joined(paths[:10] * 2, Path(temporary) / "long.wav")
        long = read(Path(temporary) / "long.wav")
        if reason := speech(Path(temporary) / "person"):
            raise SystemExit(reason)
        said = []
        for name in SPEECH.split():
            digest = recorded(name, Path(temporary) / "person", paths[0])
            ids = heard(read(paths[0]))
            said.append({"recording": name, "sha256": digest, "ids": ids, "text": tokenizer.decode(ids)})
            print(name, said[-1]["text"])
    (HERE / "whisper-speech.json").write_text("[\n" + ",\n".join(json.dumps(one) for one in said) + "\n]\n")
    (HERE / "whisper.json").write_text("[\n" + ",\n".join(json.dumps(one) for one in golden) + "\n]\n")
    parts = [{"begin": begin, "end": end, "ids": heard(long[begin:end])} for begin, end in windows(long)]
    (HERE / "whisper-long.json").write_text("[\n" + ",\n".join(json.dumps(one) for one in parts) + "\n]\n")


def make_ctranslate2(name):
    """The tiny Whisper as CTranslate2's converter writes it, in 8 bits, and what CTranslate2 makes of it in f32."""
    from ctranslate2.converters import TransformersConverter
    from ctranslate2.models import Whisper
    folder, whole = HERE / "golden-ctranslate2" / name, HERE / "golden" / name
    TransformersConverter(str(whole)).convert(str(folder), quantization="int8", force=True)
    shutil.copy(whole / "tokenizer.json", folder)
    model, tokenizer = Whisper(str(folder), compute_type="float32"), Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompt = [tokenizer.token_to_id(token) for token in ("<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")]
    frames = load_file(whole / "golden.safetensors")["source"].numpy()
    write_json(folder / "ids.json", {key: [transcribed(model, one.T, prompt, 32, beams) for one in frames]
                                     for key, beams in (("greedy", 1), ("beams", 4))})


def translate(folder, sources, first=None):
    """The ids that CTranslate2 writes in f32, greedily and with four beams: sources are tokens with those that end them, first what every
    text is forced to begin with, which is not among its ids."""
    from ctranslate2 import Translator
    model, forced = Translator(str(folder), compute_type="float32", intra_threads=1), [first] * bool(first)
    vocabulary = json.loads((folder / "shared_vocabulary.json").read_text())

    def written(beams):
        made = model.translate_batch(sources, [forced] * len(sources), beam_size=beams, patience=100, length_penalty=1, max_decoding_length=12)
        return [[vocabulary.index(token) for token in one.hypotheses[0][len(forced):]] for one in made]
    return {key: written(beams) for key, beams in (("greedy", 1), ("beams", 4))}


# Settings that the converter asks for and transformers 5 does not write.
CONVERTED = {"marian": {}, "m2m100": {"tokenizer_class": "M2M100Tokenizer", "src_lang": "en", "tgt_lang": "de"},
             "bart": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}}
CONVERTED["nllb"] = {**CONVERTED["bart"], "src_lang": "eng_Latn", "tgt_lang": "deu_Latn"}


def make_ctranslate2_translators(texts=("The attention", "of each head", "Unaffable tokens", "heads of a token")):
    """The tiny Marian, BART, M2M100 and NLLB as CTranslate2's converter writes them, and the ids that CTranslate2 writes of texts."""
    from ctranslate2.converters import TransformersConverter
    from ctranslate2.converters.transformers import M2M100Loader
    # The converter looks for the languages where transformers 5 does not have them.
    def vocabulary_of(self, model, tokenizer):
        tokens = tokenizer.convert_ids_to_tokens(range(model.config.vocab_size))
        return [f"madeupword{i}" if token in (None, "<unk>") and i != 3 else token for i, token in enumerate(tokens)]
    M2M100Loader.get_vocabulary = vocabulary_of
    for name, settings in CONVERTED.items():
        folder, whole = HERE / "golden-ctranslate2" / name, HERE / "golden" / name
        with tempfile.TemporaryDirectory() as temporary:
            copy = shutil.copytree(whole, Path(temporary) / name)
            if settings:
                (copy / "tokenizer_config.json").write_text(json.dumps(settings))
            if name == "bart":
                config = json.loads((copy / "config.json").read_text())
                (copy / "config.json").write_text(json.dumps({**config, "normalize_before": False, "normalize_embedding": True}))
            TransformersConverter(str(copy)).convert(str(folder), quantization="float16" if name == "bart" else None, force=True)
        first = None
        if name in ("bart", "nllb"):
            if name == "bart":
                shutil.copy(whole / "tokenizer.json", folder)
            tokenizer = Tokenizer.from_file(str(whole / "tokenizer.json"))
            sources, first = [tokenizer.encode(text).tokens for text in texts], {"nllb": "deu_Latn"}.get(name)
        else:
            spm = "source.spm" if name == "marian" else "sentencepiece.bpe.model"
            pieces = sentencepiece.SentencePieceProcessor(model_file=str(whole / spm))
            sources = [[*pieces.encode(text, out_type=str), "</s>"] for text in texts]
            if name == "m2m100":
                sources, first = [["__en__", *source] for source in sources], "__de__"
        made = translate(folder, sources, first)
        write_json(folder / "texts.json", {text: {key: made[key][i] for key in made} for i, text in enumerate(texts)})


def make_ctranslate2_opennmt(texts=("The attention", "of each head", "Unaffable tokens", "heads of a token")):
    """The ids that CTranslate2 writes with the tiny M2M100 where config.json is as of OpenNMT: whether a token begins sources and whether one
    ends them stands there, and <s> begins targets."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(HERE / "golden/m2m100/sentencepiece.bpe.model"))
    sources, made = [pieces.encode(text, out_type=str) for text in texts], []
    with tempfile.TemporaryDirectory() as temporary:
        folder = shutil.copytree(HERE / "golden-ctranslate2/m2m100", Path(temporary) / "opennmt")
        for begins, ends in ((False, False), (False, True), (True, False)):
            config = {**json.loads((folder / "config.json").read_text()), "add_source_bos": begins, "add_source_eos": ends, "decoder_start_token": "<s>"}
            write_json(folder / "config.json", config)
            written = translate(folder, sources)
            made.append({"config": config, "texts": {text: {key: written[key][i] for key in written} for i, text in enumerate(texts)}})
    write_json(HERE / "golden-ctranslate2/opennmt.json", made)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--minilm")
    parser.add_argument("--smollm2")
    parser.add_argument("--whisper")
    arguments = parser.parse_args()
    if arguments.minilm:
        minilm(arguments.minilm)
    elif arguments.smollm2:
        smollm2(arguments.smollm2)
    elif arguments.whisper:
        whisper(arguments.whisper)
    else:
        tiny_models()
        tiny_decoders()
        tiny_translators()
        several_ends("llama", ["The attention", "of each head", "Unaffable", "head"])
        searches()
        pooled("bert")
        make_whisper("whisper")
        make_ctranslate2("whisper")
        make_ctranslate2_translators()
        make_ctranslate2_opennmt()
