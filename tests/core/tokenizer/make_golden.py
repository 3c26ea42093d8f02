"""Makes golden/: small tokenizers, and what the library `tokenizers` of Hugging Face makes of strings of all kinds.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 gguf==0.19.0
    python3 make_golden.py                            # writes golden/
    python3 make_golden.py --newer                    # prints the tables of core/tokenizer/unicode.cpp

The strings hold Unicode of every kind, emoji, combining marks, what bytes that are no UTF-8 become, and very long words.
"""
import argparse
import contextlib
import io
import json
import random
import string
import struct
import tempfile
import unicodedata
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

GOLDEN = Path(__file__).absolute().parent / "golden"
WORDS = ("the attention of each head sees what stands before it and some more unaffable tokens embeddings running quickly "
         "Straße naïve façade Ελλάς ΟΔΥΣΣΕΥΣ Привет мир שלום مرحبا नमस्ते สวัสดี 東京 你好世界 こんにちは 안녕하세요 İstanbul ﬁne ①②③ "
         "don't isn't e-mail 3.14 1,000 x² A/B C++ [MASK] [CLS] [SEP] <tag> ##ing").split()
MARKS = "\u0300\u0301\u0302\u0303\u0308\u0327\u0338\u0345\u05b0\u064b\u093c\u0e31\u20d0\u3099"
SPACES = " \t\u00a0\u1680\u2002\u2009\u200a\u202f\u205f\u3000\u2028\u2029\u0085\u000b\u000c"
CONTROLS = "\u0001\u0008\u001b\u007f\u0080\u009f\u00ad\u200b\u200d\u200e\u202e\u2060\ufeff\ue000\ufffd\u061c\U000e0001"
EMOJI = "😀👍🏽👩‍👩‍👧‍👦🏳️‍🌈🇩🇪☃️❤️🫠🧑🏿‍🚀#️⃣"
ASSIGNED = [chr(c) for c in range(0x20, 0x30000) if unicodedata.category(chr(c)) not in ("Cn", "Cs")]


def broken(pick):
    """Bytes that are no UTF-8, as replacing decodes them."""
    return bytes(pick.randrange(256) for _ in range(pick.randrange(1, 12))).decode("utf-8", "replace")


def strings(count, seed):
    pick = random.Random(seed)
    kinds = [lambda: " ".join(pick.choices(WORDS, k=pick.randrange(1, 12))),
             lambda: "".join(pick.choices(ASSIGNED, k=pick.randrange(1, 30))),
             lambda: "".join(pick.choices(string.printable[:95], k=pick.randrange(1, 60))),
             lambda: "".join(c + pick.choice(["", *MARKS]) for c in pick.choices("aeioucnszAEIOUабвगकอがπ", k=20)),
             lambda: "".join(pick.choices(EMOJI + " ab", k=pick.randrange(1, 20))),
             lambda: "".join(pick.choices(string.ascii_letters + SPACES + CONTROLS, k=pick.randrange(1, 40))),
             lambda: pick.choice(["a", "Ab", "é", "東", "😀", "x\u0301"]) * pick.randrange(90, 130),
             lambda: pick.choice(WORDS) + broken(pick) + pick.choice(WORDS),
             lambda: "".join(pick.choices([*string.punctuation, "—", "…", "«", "»", "、", "。", "a", "b", " "], k=25)),
             lambda: pick.choice(SPACES) * pick.randrange(3) + pick.choice(WORDS) + pick.choice(SPACES) * pick.randrange(3)]
    # A line of a file ends at LF, and no text of C holds NUL.
    return [pick.choice(kinds)().replace("\n", " ").replace("\r", " ").replace("\0", " ") for _ in range(count)]


def vocabulary():
    letters = string.ascii_letters + string.digits + "éßπабвгдежзийклмнопрстуфхцчшщъыьэюяלוםשمرحباनमसतक東京你好世界안녕がこんにちは"
    pieces = ["the", "at", "##ten", "##tion", "of", "un", "##aff", "##able", "run", "##ning", "##ly", "to", "##ken", "##s",
              "hello", "ab", "##ab", "##abab", "стр", "##ет", "при", "##в"]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.punctuation, "—", "…", "«", "»", "、", "。"]
    tokens += [mark + c for c in letters for mark in ("", "##")] + pieces
    return {token: i for i, token in enumerate(dict.fromkeys(tokens))}


def uncased():
    made = Tokenizer(models.WordPiece(vocabulary(), unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", made.token_to_id("[CLS]")), ("[SEP]", made.token_to_id("[SEP]"))])
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return made


def cased():
    """The other switches, and added tokens of every kind."""
    made = Tokenizer(models.WordPiece(vocabulary(), unk_token="[UNK]", max_input_chars_per_word=20))
    made.normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", made.token_to_id("[SEP]")), ("[CLS]", made.token_to_id("[CLS]")))
    made.decoder = decoders.WordPiece(cleanup=False)
    made.add_special_tokens([AddedToken("[CLS]"), AddedToken("[SEP]"), AddedToken("[MASK]", lstrip=True, rstrip=True)])
    made.add_tokens([AddedToken("mir", single_word=True), AddedToken("naïve", normalized=True), AddedToken("東京", normalized=False)])
    return made


def bytes_bpe():
    """RoBERTa's: merges of the words above, trained anew."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.train_from_iterator([" ".join(WORDS)] * 3 + strings(300, 3), trainers.BpeTrainer(
        vocab_size=500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"]))
    made.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    made.post_processor = processors.RobertaProcessing(("</s>", made.token_to_id("</s>")), ("<s>", made.token_to_id("<s>")),
                                                       add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def trained(model, specials, initial, pre=None, normalizer=None):
    made = Tokenizer(model)
    if pre:
        made.pre_tokenizer = pre
    if normalizer:
        made.normalizer = normalizer
    made.train_from_iterator([" ".join(WORDS)] * 3 + (strings(300, 3) if initial else []), trainers.BpeTrainer(
        vocab_size=700, show_progress=False, initial_alphabet=initial, special_tokens=specials))
    return made


def split_bytes(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def llama3():
    """Llama 3's: words by a pattern, whole words first, a token before every text."""
    made = trained(models.BPE(ignore_merges=True), ["<|begin|>", "<|end|>"], pre_tokenizers.ByteLevel.alphabet(), split_bytes(LLAMA3))
    made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])])
    made.decoder = decoders.ByteLevel()
    return made


def qwen2():
    """Qwen2's: NFC, numbers digit by digit; merges as texts."""
    made = trained(models.BPE(), ["<|end|>"], pre_tokenizers.ByteLevel.alphabet(), split_bytes(LLAMA3.replace("{1,3}", "")), normalizers.NFC())
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    made.decoder = decoders.ByteLevel()
    return made


def smollm():
    """SmolLM2's: digits alone, then GPT-2's words; a byte that was never seen has no token."""
    alphabet = [letter for letter in pre_tokenizers.ByteLevel.alphabet() if letter != "ø"]
    made = trained(models.BPE(), ["<|end|>"], alphabet, pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]))
    made.decoder = decoders.ByteLevel()
    return made


def llama2():
    """Llama 2's: no words, bytes for what has no token."""
    specials = ["<unk>", "<s>", "</s>"]
    made = trained(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"), specials + [f"<0x{b:02X}>" for b in range(256)], [],
                   normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]))
    document = json.loads(made.to_str())
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] in specials]  # bytes are tokens like others
    made = Tokenizer.from_str(json.dumps(document))
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return made


def mistral():
    """The same with the space put in front by the pre-tokenizer."""
    made = llama2()
    made.normalizer = None
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return made


# A few rules of NFKC: what each sequence of code points becomes.
RULES = "FF21\t41\nFF41\t61\nFB01\t66 69\n2460\t31\nB2\t32\n3000\t20\nA0\t20\n2026\t2E 2E 2E\n61 308\tE4\n6E 303\tF1\n9\t20\n200B\t\n"


def sentencepiece_model(**options):
    import sentencepiece
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(" ".join(random.Random(i).sample(WORDS, 12)) for i in range(400)), model_writer=model, character_coverage=1.0,
        num_threads=1, minloglevel=2, **options)
    return model.getvalue()


def sentences_model():
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # the model holds the path
        Path("rules.tsv").write_text(RULES)
        return sentencepiece_model(normalization_rule_tsv="rules.tsv", vocab_size=400, hard_vocab_limit=False)


def unigram():
    """XLM-R's: SentencePiece's normalisation and scores."""
    top = list(fields(sentences_model()))
    pieces = [dict(fields(value)) for key, value in top if key == 1]
    charsmap = dict(fields(next(value for key, value in top if key == 3)))[2]
    made = Tokenizer(models.Unigram([(piece[1].decode(), piece.get(2, 0.0)) for piece in pieces], 0, False))
    made.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Replace(Regex(" {2,}"), " ")])
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(["<unk>", "<s>", "</s>", AddedToken("<mask>", lstrip=True)])
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return made


def t5():
    """T5's: the same scores, white space kept as it is but for its ends and rows."""
    made = unigram()
    made.normalizer = normalizers.Sequence([made.normalizer[0], normalizers.Strip(left=False, right=True),
                                            normalizers.Replace(Regex(" {2,}"), "▁")])
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return made


def write_gguf(name, model, tokens, types, ids, merges=(), scores=(), pre=None, begins=None, charsmap=None):
    """A GGUF file of a vocabulary alone."""
    import gguf
    writer = gguf.GGUFWriter(GOLDEN / f"{name}.gguf", "none")
    writer.add_tokenizer_model(model)
    if pre:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if scores:
        writer.add_token_scores(scores)
    if merges:
        writer.add_token_merges([" ".join(pair) for pair in merges])
    for key, value in ids.items():
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", value)
    if begins is not None:
        writer.add_add_bos_token(begins)
    if charsmap:  # of Unigram, as llama.cpp's converter writes it of T5's and XLM-R's
        writer.add_add_space_prefix(True)
        writer.add_remove_extra_whitespaces(True)
        writer.add_precompiled_charsmap(charsmap)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_gguf_of(name, tokenizer, pre):
    document = json.loads(tokenizer.to_str())
    tokens = sorted(document["model"]["vocab"], key=document["model"]["vocab"].get)
    added = {token["content"] for token in document["added_tokens"]}
    end = tokenizer.token_to_id("<|end|>")
    write_gguf(name, "gpt2", tokens, [3 if token in added else 1 for token in tokens], {"bos": 0, "eos": end},
               merges=document["model"]["merges"], pre=pre, begins=name == "llama3")


def write_kept():
    """Pieces of all types: some that users defined, some that are not used, bytes; and what SentencePiece makes of texts of them."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    drawn = random.Random(8)
    parts = [*WORDS[:12], "foo", "foo bar", "<sep>", "the", "\u2581the", " ", " ", "  ", "\u00e9", "e\u0301", "\uff21", "\u2460", "\u6771", "\U0001f600", "<0x41>", "ed", "s", "a", "x", "\t"]
    texts = ["".join(drawn.choice(parts) for _ in range(drawn.randint(1, 8))) for _ in range(300)]
    for name, options in (("kept_pairs", {"model_type": "bpe", "normalization_rule_name": "identity", "remove_extra_whitespaces": False}),
                          ("kept_sentences", {"normalization_rule_tsv": "rules.tsv", "hard_vocab_limit": False})):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            Path("rules.tsv").write_text(RULES)
            model = sentencepiece_model(vocab_size=480, byte_fallback=True, user_defined_symbols=["<sep>", "foo", "foo bar", "\u2581the", "\u00e9", "\uff21"],
                                        control_symbols=["<ctl>"], **options)
        proto = sentencepiece_model_pb2.ModelProto.FromString(model)
        for piece in proto.pieces:
            if piece.type == 1 and (piece.piece in ("s", "ed", "\u2581a") or drawn.random() < 0.1):
                piece.type = 5
        (GOLDEN / f"{name}.model").write_bytes(proto.SerializeToString())
        made = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
        write_lines(name, [(text, ids, made.decode([i for i in ids if i != 0])) for text in texts for ids in [made.encode(text)]])


def write_sentencepiece(texts):
    """Llama 2's pairs and a unigram model, as files of their own and in GGUF; and what SentencePiece makes of the texts."""
    import sentencepiece
    pairs = sentencepiece_model(model_type="bpe", vocab_size=700, byte_fallback=True, normalization_rule_name="identity",
                                remove_extra_whitespaces=False)
    # Words in angle brackets are tokens for Hugging Face, text for SentencePiece.
    texts = [text for text in texts if "<" not in text] + ["a b\u2581", "\u2581", "\u2581a \u2581 \u2581 ", "a\u2581 b\u2581\u3000"]
    for name, kind, model in (("pairs", "llama", pairs), ("sentences", "t5", sentences_model())):
        (GOLDEN / f"{name}.model").write_bytes(model)
        made = sentencepiece.SentencePieceProcessor(model_proto=model)
        # It writes " ⁇ " for the unknown token, Hugging Face nothing.
        write_lines(name, [(text, ids, made.decode([i for i in ids if i != 0])) for text in texts for ids in [made.encode(text)]])
        pieces = [dict(fields(value)) for key, value in fields(model) if key == 1]
        normalizer = dict(fields(next(value for key, value in fields(model) if key == 3)))
        write_gguf(name, kind, [piece[1].decode() for piece in pieces], [piece.get(3, 1) for piece in pieces],
                   {"bos": 1, "eos": 2, "unknown": 0}, scores=[piece.get(2, 0.0) for piece in pieces], charsmap=normalizer.get(2))


def write_lines(name, lines):
    (GOLDEN / f"{name}.jsonl").write_text("".join(
        json.dumps({"text": text, "ids": ids, "back": back}, ensure_ascii=False) + "\n" for text, ids, back in lines))


def fields(data):
    """Of a message of protocol buffers: numbers and values."""
    at = 0

    def number():
        nonlocal at
        made = shift = 0
        while True:
            byte = data[at]
            at += 1
            made |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return made
    while at < len(data):
        key = number()
        if key & 7 == 0:
            value = number()
        else:
            size = number() if key & 7 == 2 else 4
            value = data[at:at + size]
            at += size
            if key & 7 == 5:
                value, = struct.unpack("<f", value)
        yield key >> 3, value


def lines_of(text):
    """Line ends, which no text of a file of lines holds."""
    return text.replace(" ", "\n", 1).replace("  ", "\r\n").replace("a ", "a \t")


def write_golden():
    GOLDEN.mkdir(exist_ok=True)
    texts = strings(700, 1) + ["", " ", "a" * 100, "a" * 101, "[CLS]", "mir mire, mir", "hello [MASK] x", "naïve nai\u0308ve",
                               "İIıi", "ΟΔΟΣ Σ", "\u1734\u166d\U000111c9", "  a  b   ", "it's we'll THEY'RE x'd", "a <mask> b"]
    few = texts[:150] + texts[700:] + [lines_of(text) for text in texts[150:300]]
    for name, tokenizer, texts in (("uncased", uncased(), texts), ("cased", cased(), texts), ("bytes", bytes_bpe(), texts),
                                   ("llama3", llama3(), few), ("qwen2", qwen2(), few), ("smollm", smollm(), few), ("llama2", llama2(), few),
                                   ("mistral", mistral(), few), ("unigram", unigram(), few), ("t5", t5(), few)):
        document = json.loads(tokenizer.to_str())
        if name == "qwen2":
            document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
        (GOLDEN / f"{name}.json").write_text(json.dumps(document, ensure_ascii=False) + "\n")
        write_lines(name, [(text, ids, tokenizer.decode(ids)) for text in texts for ids in [tokenizer.encode(text).ids]])
    for name, tokenizer, pre in (("llama3", llama3(), "llama-bpe"), ("qwen2", qwen2(), "qwen2"), ("smollm", smollm(), "smollm")):
        write_gguf_of(name, tokenizer, pre)
    write_sentencepiece(few)
    write_kept()
    (GOLDEN / "vocab.txt").write_text("".join(token + "\n" for token in vocabulary()))


def print_newer():
    """Characters of utf8proc's categories that the library does not take for such."""
    def kept(normalizer, c):
        return c in normalizer.normalize_str(f"a{c}b")
    clean = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    strip = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
    parts = pre_tokenizers.BertPreTokenizer()
    newer = []
    for code in range(0x80, 0x110000):
        c, kind = chr(code), category(code)
        if kind in ("Cc", "Cf", "Co") and kept(clean, c) or kind == "Mn" and kept(strip, c) or \
                kind[0] == "P" and len(parts.pre_tokenize_str(f"a{c}b")) == 1:
            newer.append(code)
    for code in newer:
        if code - 1 not in newer:
            last = code
            while last + 1 in newer:
                last += 1
            print(f"{{0x{code:X}, 0x{last:X}}},", end=" ")
    print()


def print_newer_forms():
    """Marks, and characters with a compatible form, that the library's normal forms leave alone."""
    import ctypes
    library = ctypes.CDLL("libutf8proc.so.2")
    library.utf8proc_NFKD.restype = ctypes.c_void_p
    strip, form = normalizers.StripAccents(), normalizers.NFKD()
    last = first = None
    for code in range(0x80, 0x110000):
        if 0xd800 <= code < 0xe000:
            continue
        c = chr(code)
        ours = ctypes.string_at(library.utf8proc_NFKD(c.encode())).decode()
        if category(code)[0] == "M" and strip.normalize_str("a" + c) != "a" or ours != form.normalize_str(c):
            if last != code - 1:
                if last:
                    print(f"{{0x{first:X}, 0x{last:X}}},", end=" ")
                first = code
            last = code
    print(f"{{0x{first:X}, 0x{last:X}}}")


def category(code):
    import ctypes
    library = ctypes.CDLL("libutf8proc.so.2")
    library.utf8proc_category_string.restype = ctypes.c_char_p
    return library.utf8proc_category_string(ctypes.c_int32(code)).decode()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--newer", action="store_true")
    arguments = parser.parse_args()
    if arguments.newer:
        print_newer()
        print_newer_forms()
    else:
        write_golden()
