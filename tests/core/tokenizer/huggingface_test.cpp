// The error of a faulty tokenizer.json or vocab.txt is one line that names the file and the place in it.
#include "core/tokenizer/huggingface.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "core/base/error.hpp"
#include "core/base/text.hpp"
#include "core/tokenizer/pattern.hpp"
#include "core/tokenizer/unicode.hpp"
#include "tests/core/base/damaged_file.hpp"
#include "tests/core/base/temporary_file.hpp"

namespace attnkit::core {
namespace {

using nlohmann::json;

const std::string sample = ATTNKIT_SOURCE_DIR "/tests/core/tokenizer/golden/uncased.json";

json document() { return json::parse(std::ifstream(sample)); }

// The message without the file's path; empty when it was accepted.
std::string refusal(const std::string& bytes) {
  const TemporaryFile file(bytes);
  const auto open = [](auto, const std::string& path) { open_tokenizer_json(path, {.max_ids = 64}); };
  return refusal_by(open, bytes, file.path());
}

struct Edit {
  const char *pointer, *value;  // of JSON; value NULL: taken away
  const char* message;
};

TEST(HuggingFace, MistakesAreNamed) {
  for (const auto& [pointer, value, message] : {
           Edit{"/model", nullptr, "model must be an object, not absent"},
           Edit{"/model/type", "\"WordLevel\"",
                "model is \"WordLevel\", which is not supported; \"WordPiece\", \"BPE\""},
           Edit{"/model/vocab", "[]", "model.vocab must be an object of tokens and ids"},
           Edit{"/model/vocab", "{}", "model.vocab is empty"},
           Edit{"/model/vocab/the", "-1", "model.vocab has the token \"the\" with an id that is none"},
           Edit{"/model/vocab/the", "99999999999", "model.vocab has the token \"the\" with an id that is none"},
           Edit{"/model/vocab/the", "\"3\"", "model.vocab has the token \"the\" with an id that is none"},
           Edit{"/model/unk_token", "\"[NONE]\"", "model.unk_token is no token of the vocabulary"},
           Edit{"/model/unk_token", nullptr, "model.unk_token must be a string, not absent"},
           Edit{"/model/max_input_chars_per_word", "0", "model.max_input_chars_per_word must be 1 or more"},
           Edit{"/normalizer/type", "\"Precompiled\"", "normalizer.precompiled_charsmap must be a string, not absent"},
           Edit{"/normalizer/type", "\"Nmt\"", "normalizer is \"Nmt\", which is not supported; BertNormalizer, Lower"},
           Edit{"/normalizer/lowercase", "3", "normalizer.lowercase must be true or false, not an integer"},
           Edit{"/pre_tokenizer/type", "\"Whitespace\"", "pre_tokenizer is \"Whitespace\", which is not supported"},
           Edit{"/post_processor", nullptr,
                "names no token that ends a text: use another file, or end = false where sources of this model end"},
           Edit{"/post_processor/single", "[]", "post_processor.single has no place for a text"},
           Edit{"/post_processor", R"({"type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["[SEP]"]})",
                "post_processor.sep must be a token and its id"},
           Edit{"/post_processor/type", "\"Odd\"", "post_processor is \"Odd\", which is not supported; BertProcessing"},
           Edit{"/decoder/type", "\"CTC\"", "decoder is \"CTC\", which is not supported; ByteFallback"},
           Edit{"/post_processor/single/0/SpecialToken/id", "\"[X]\"", "post_processor.special_tokens.[X] must be an"},
           Edit{"/post_processor/special_tokens/[SEP]/ids", "[100000]", "post_processor has the id 100000, which no"},
           Edit{"/post_processor/special_tokens/[SEP]/ids", "[1, 2]", "is one more token behind the text"},
           Edit{"/added_tokens", "3", "added_tokens must be an array, not an integer"},
           Edit{"/added_tokens/0/id", "1.5", "added_tokens[0].id must be an integer, not a number"},
           Edit{"/added_tokens/0/content", "\"new\"", "added_tokens[0].id is 0, which is the id of \"[PAD]\" already"},
           Edit{"/added_tokens/1/id", "100", "added_tokens[1].id is 100, and \"[UNK]\" has the id 1 already"},
           Edit{"/added_tokens", R"([{"content": "one", "id": 900}, {"content": "two", "id": 900}])",
                "added_tokens[1].id is 900, which is the id of \"one\" already"},
           Edit{"/added_tokens/0/content", nullptr, "added_tokens[0].content must be a string, not absent"},
       }) {
    json edited = document();
    if (value)
      edited[json::json_pointer(pointer)] = json::parse(value);
    else
      edited[json::json_pointer(pointer).parent_pointer()].erase(json::json_pointer(pointer).back());
    EXPECT_NE(refusal(edited.dump()).find(message), std::string::npos) << pointer << ": " << refusal(edited.dump());
  }
}

const std::string bytes_sample = ATTNKIT_SOURCE_DIR "/tests/core/tokenizer/golden/bytes.json";

TEST(ByteBpe, MistakesAreNamed) {
  for (const auto& [pointer, value, message] : {
           Edit{"/model/dropout", "0.1", "model.dropout is given, which is not supported"},
           Edit{"/model/merges", "3", "model.merges must be an array, not an integer"},
           Edit{"/model/merges/0", "\"abc\"", "model.merges[0] must be two tokens"},
           Edit{"/model/merges/0", "[\"qqq\", \"zzz\"]", "model: the vocabulary lacks the token \"qqqzzz\""},
           Edit{"/model/vocab", "{\"a\": 1}", "model: the vocabulary lacks the token "},
           Edit{"/model/unk_token", "\"[NONE]\"", "model.unk_token is no token of the vocabulary"},
       }) {
    json edited = json::parse(std::ifstream(bytes_sample));
    edited[json::json_pointer(pointer)] = json::parse(value);
    EXPECT_NE(refusal(edited.dump()).find(message), std::string::npos) << pointer << ": " << refusal(edited.dump());
  }
}

TEST(Unigram, MistakesAreNamed) {
  const std::string unigram = ATTNKIT_SOURCE_DIR "/tests/core/tokenizer/golden/unigram.json";
  for (const auto& [pointer, value, message] : {
           Edit{"/model/vocab", "[]", "model.vocab is empty"},
           Edit{"/model/vocab", "{}", "model.vocab must be an array, not an object"},
           Edit{"/model/vocab/5", "[\"a\"]", "model.vocab[5] must be a token and its score"},
           Edit{"/model/vocab/5", "[\"a\", \"b\"]", "model.vocab[5] must be a token and its score"},
           Edit{"/model/unk_id", "100000", "model.unk_id is 100000, which no token has"},
           Edit{"/normalizer/normalizers/0/precompiled_charsmap", "\"%%%\"", "precompiled_charsmap is no base64"},
           Edit{"/normalizer/normalizers/0/precompiled_charsmap", "\"////fw==\"", "precompiled_charsmap is cut off"},
           Edit{"/normalizer/normalizers/0/precompiled_charsmap", "\"BAAAAAAAAAD/\"",
                "precompiled_charsmap has texts that are"},
           Edit{"/pre_tokenizer/pretokenizers/1/replacement", "\"ab\"", "replacement must be one character"},
           Edit{"/pre_tokenizer/pretokenizers/1/prepend_scheme", "\"some\"",
                "prepend_scheme is \"some\", which is not"},
       }) {
    json edited = json::parse(std::ifstream(unigram));
    edited[json::json_pointer(pointer)] = json::parse(value);
    EXPECT_NE(refusal(edited.dump()).find(message), std::string::npos) << pointer << ": " << refusal(edited.dump());
  }
}

// A trie whose every unit leads elsewhere, also beyond its end.
TEST(Charsmap, SurvivesDamage) {
  json edited = json::parse(std::ifstream(ATTNKIT_SOURCE_DIR "/tests/core/tokenizer/golden/unigram.json"));
  std::mt19937 random(1);
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string map = "AAEAAA";  // 256 bytes of trie
  while (map.size() < 352) map += digits[random() % digits.size()];
  map.replace(map.size() - 4, 4, "YWIA");
  int accepted = 0;
  for (int i = 0; i < 100; ++i) {
    for (size_t at = 6; at < 344; ++at) map[at] = digits[random() % digits.size()];
    map[6] = 'A';
    edited["normalizer"]["normalizers"][0]["precompiled_charsmap"] = map;
    const TemporaryFile file(edited.dump());
    try {
      open_tokenizer_json(file.path(), {})->tokenize("Some text, unaffable. \U0001F600 \u00e4");
      ++accepted;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("precompiled_charsmap"), std::string::npos) << e.what();
    }
  }
  EXPECT_GT(accepted, 0);
}

// A mark goes before what a text begins with, not before what is left of it where its beginning was stripped.
TEST(HuggingFace, WhatIsStrippedIsTheBeginning) {
  json edited = json::parse(std::ifstream(ATTNKIT_SOURCE_DIR "/tests/core/tokenizer/golden/mistral.json"));
  edited["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  const TemporaryFile file(edited.dump());
  const auto tokenizer = open_tokenizer_json(file.path(), {.target = true, .end = "</s>"});
  const auto first = [&](const char* text) { return tokenizer->token(tokenizer->tokenize(text).front()); };
  EXPECT_TRUE(first("the").starts_with("\u2581"));
  EXPECT_TRUE(first("the ").starts_with("\u2581"));
  EXPECT_FALSE(first("\tthe").starts_with("\u2581"));
}

// Not so where a Precompiled leaves the beginning out: Hugging Face does not count that.
TEST(HuggingFace, WhatAPrecompiledLeavesOutIsNotTheBeginning) {
  json edited = json::parse(std::ifstream(ATTNKIT_SOURCE_DIR "/tests/core/tokenizer/golden/t5.json"));
  edited["pre_tokenizer"]["prepend_scheme"] = "first";
  const TemporaryFile file(edited.dump());
  const auto tokenizer = open_tokenizer_json(file.path(), {});
  EXPECT_EQ(tokenizer->tokenize("\u200bthe"), tokenizer->tokenize("the"));
  edited["normalizer"]["normalizers"].push_back({{"type", "Strip"}, {"strip_left", true}, {"strip_right", false}});
  const TemporaryFile stripping(edited.dump());
  const auto other = open_tokenizer_json(stripping.path(), {});
  EXPECT_EQ(other->tokenize("\u200bthe"), other->tokenize("the"));
  EXPECT_NE(other->tokenize("\tthe"), other->tokenize("the"));
}

TEST(Unicode, ManyMarksTakeLittleTime) {
  for (const std::u32string_view marks : {U"\u0301\u0316", U"\u0f73\u0f73"}) {
    std::u32string text = U"a";
    for (int i = 0; i < 200000; ++i) text += marks;
    const std::u32string once = normal_form(text, NormalForm::nfd);
    EXPECT_EQ(once, normal_form(once, NormalForm::nfd));
    EXPECT_EQ(normal_form(text, NormalForm::nfc), normal_form(once, NormalForm::nfc));
  }
  EXPECT_EQ(normal_form(U"a\u0301\u0316\u0300\u0315b\u0301\u0316", NormalForm::nfc),
            U"\u00e1\u0316\u0300\u0315b\u0316\u0301");
}

TEST(Unicode, CharactersOfWordsAreThoseOfAPattern) {
  for (const char32_t c : {U'a', U'_', U'7', U'\u0301', U'\u2160', U'\u200d', U'\u24b6', U'\U0001f170'})
    EXPECT_TRUE(is_word(c)) << std::hex << static_cast<uint32_t>(c);
  for (const char32_t c : {U' ', U'-', U'\u2460', U'\u24ea', U'\u200b', U'\U0001f14a'})
    EXPECT_FALSE(is_word(c)) << std::hex << static_cast<uint32_t>(c);
}

TEST(Pattern, WhatTwoLibrariesReadDifferentlyIsRefused) {
  const auto message_of = [](const std::string& pattern) {
    json edited = json::parse(std::ifstream(bytes_sample));
    edited["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}};
    const std::string message = refusal(edited.dump());
    const std::string place = "pre_tokenizer.pattern cannot be used: the pattern " + quote(pattern) + " ";
    EXPECT_EQ(message.rfind(place, 0), 0u) << message;
    return message.substr(std::min(message.size(), place.size()));
  };
  for (const auto& [pattern, part] : {std::pair{"\\w+", "\\w"},
                                      {"[^\\S]", "\\S"},
                                      {"a{1,3}+", "}+"},
                                      {"^a", "^"},
                                      {"a$", "$"},
                                      {"\\h", "\\h"},
                                      {"(?m:a)", "(?m:"},
                                      {"(?<x>a)", "(?<x"},
                                      {"(*FAIL)", "(*FA"},
                                      {"[[:alpha:]]", "[:"},
                                      {"[a&&b]", "&&"},
                                      {"\\", "\\"},
                                      {"\\pL", "\\pL"},
                                      {"a{2}?b", "{2}?"},
                                      {"(?i:\u00df)", "\u00df"},
                                      {"(?i:mass)", "ss"},
                                      {"(?i:[\u00c0-\u00ff])", "-"},
                                      {"[a", ""}})
    EXPECT_EQ(message_of(pattern), "has " + quote(part) + ", which is not supported");
  EXPECT_EQ(message_of("a*"), "also matches no character at all, which is not supported");
  EXPECT_EQ(message_of("(a"), "cannot be used: missing closing parenthesis");
  EXPECT_EQ(message_of("\\p{Nothing}"), "cannot be used: unknown property after \\P or \\p");
}

// As Oniguruma finds it: a script is that of a character alone, and {,2} is at most twice.
TEST(Pattern, WhatIsWrittenDifferentlyIsTheSame) {
  const auto found = [](const char* pattern, std::u32string_view text) {
    std::string places;
    for (const auto& [from, to] : Pattern(pattern).matches(text)) places += fmt::format("{}-{} ", from, to);
    return places;
  };
  EXPECT_EQ(found("\\p{Hiragana}+", U"\u3042\u30fc\u3042"), "0-1 2-3 ");  // the sign between is of no script
  EXPECT_EQ(found("\\p{^Hiragana}+", U"\u3042\u30fc\u3042"), "1-2 ");
  EXPECT_EQ(found("\\p{Lu}", U"aB"), "1-2 ");
  EXPECT_EQ(found("a{,2}b", U"aaab b a{,2}b"), "1-4 5-6 12-13 ");
  EXPECT_EQ(found("x{,}", U"x{,}"), "0-4 ");
  EXPECT_EQ(found("(?i:b(?:s|t))s|S", U"BSs S s"), "0-3 4-5 ");
}

TEST(Pattern, ATextThatTakesTooManyStepsIsRefused) {
  json edited = json::parse(std::ifstream(bytes_sample));
  edited["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(?:a+)+c"}}}, {"behavior", "Isolated"}};
  const TemporaryFile file(edited.dump());
  const auto tokenizer = open_tokenizer_json(file.path(), {});
  try {
    tokenizer->tokenize(std::string(64, 'a') + "bc");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "the text cannot be split by the pattern \"(?:a+)+c\": match limit exceeded");
  }
}

TEST(Sources, HaveWhatBeginsATextAndTargetsDoNot) {
  const auto source = open_tokenizer_json(bytes_sample, {}),
             target = open_tokenizer_json(bytes_sample, {.target = true});
  std::vector<int32_t> ids = target->tokenize("the head");
  EXPECT_NE(ids.front(), target->begin_id());
  ids.insert(ids.begin(), target->begin_id());
  EXPECT_EQ(source->tokenize("the head"), ids);
}

TEST(Sources, NeedNoEndWhereTheyHaveNone) {
  json edited = json::parse(std::ifstream(bytes_sample));
  edited["post_processor"] = nullptr;
  const TemporaryFile file(edited.dump());
  const auto tokenizer = open_tokenizer_json(file.path(), {.ends = false});
  EXPECT_EQ(tokenizer->end_id(), -1);
  EXPECT_EQ(tokenizer->tokenize("the head"), open_tokenizer_json(bytes_sample, {.target = true})->tokenize("the head"));
}

TEST(Targets, BeginAndEndAsTheManifestSays) {
  TokenizerUse use;
  use.target = true;
  const auto message_of = [&](const std::string& text) -> std::string {
    const TemporaryFile file(text);
    try {
      open_tokenizer_json(file.path(), use);
    } catch (const Error& e) {
      return std::string(e.what()).substr(file.path().size() + 2);
    }
    return "";
  };
  json edited = json::parse(std::ifstream(bytes_sample));
  EXPECT_EQ(message_of(edited.dump()), "");
  edited["post_processor"] = nullptr;
  EXPECT_EQ(message_of(edited.dump()), "names no token that ends a text; the manifest's \"end\" says which");
  use.end = "<none>";
  EXPECT_EQ(message_of(edited.dump()), "has no token \"<none>\", which end names");
  use.end = "</s>";
  EXPECT_EQ(message_of(edited.dump()), "");
  use.begin = "<mask>";
  use.size = 1000;
  const TemporaryFile file(edited.dump());
  const auto tokenizer = open_tokenizer_json(file.path(), use);
  EXPECT_EQ(tokenizer->token(tokenizer->begin_id()), "<mask>");
  EXPECT_EQ(tokenizer->size(), 1000);
  const std::vector<int32_t> ids = {999, tokenizer->tokenize("the").front(), tokenizer->end_id(), 998};
  EXPECT_EQ(tokenizer->detokenize(ids.data(), ids.size()), tokenizer->detokenize(&ids[1], 1));
}

TEST(ByteBpe, PutsASpaceInFrontWhereItIsTold) {
  json edited = json::parse(std::ifstream(bytes_sample));
  edited["pre_tokenizer"]["add_prefix_space"] = true;
  const TemporaryFile file(edited.dump());
  const auto with = open_tokenizer_json(file.path(), {.max_ids = 64}),
             without = open_tokenizer_json(bytes_sample, {.max_ids = 64});
  EXPECT_EQ(with->tokenize("the head"), without->tokenize(" the head"));
  EXPECT_EQ(with->tokenize(" the head"), without->tokenize(" the head"));
  EXPECT_NE(without->tokenize("the head"), without->tokenize(" the head"));
}

TEST(ByteBpe, LongWordsTakeLittleTime) {
  const auto tokenizer = open_tokenizer_json(bytes_sample, {});
  EXPECT_GT(tokenizer->tokenize(std::string(300000, 'a')).size(), 1000u);
}

TEST(HuggingFace, ListsInListsAreRefused) {
  for (const auto& [part, list, message] : {std::tuple{"normalizer", "normalizers", "normalizer.normalizers[0]"},
                                            {"pre_tokenizer", "pretokenizers", "pre_tokenizer.pretokenizers[0]"},
                                            {"decoder", "decoders", "decoder.decoders[0]"},
                                            {"post_processor", "processors", "post_processor.processors[0]"}}) {
    const std::string inner = fmt::format("{{\"type\": \"Sequence\", \"{}\": [", list);
    std::string text = R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, ")" + std::string(part) + "\": ";
    for (int i = 0; i < 20; ++i) text += inner;
    for (int i = 0; i < 20; ++i) text += "]}";
    const std::string said = refusal(text + "}");
    EXPECT_EQ(said.rfind(message, 0), 0u) << said;
    EXPECT_NE(said.find("is a list in a list, 8 deep"), std::string::npos) << said;
  }
}

TEST(HuggingFace, FilesThatAreNoJson) {
  const std::string text = document().dump();
  EXPECT_EQ(refusal(text.substr(0, text.size() / 2)).find("is no JSON at byte "), 0u);
  EXPECT_EQ(refusal("").find("is no JSON at byte "), 0u);
  EXPECT_EQ(refusal("[]"), "the document must be an object, not an array");
  EXPECT_EQ(refusal(std::string(200000, '[')).find("is nested deeper than 64 levels"), 0u);
  EXPECT_EQ(refusal(R"({"model": 1e999})"), "holds a number that is too large");
}

// Bytes changed at random are a tokenizer or one error, and never a crash.
TEST(HuggingFace, SurvivesDamage) {
  const std::string text = document().dump();
  std::mt19937 random(1);
  int accepted = 0;
  for (int i = 0; i < 400; ++i) {
    std::string damaged = text;
    for (int n = 0; n < 1 + i % 4; ++n) damaged[random() % damaged.size()] = static_cast<char>(random());
    const TemporaryFile file(damaged);
    try {
      open_tokenizer_json(file.path(), {.max_ids = 64})->tokenize("Some text, unaffable.");
      ++accepted;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(HuggingFace, TextsMustBeUtf8) {
  const auto tokenizer = open_tokenizer_json(sample, {.max_ids = 64});
  for (const char* text : {"ab\xff", "ab\xc0\x80", "ab\xed\xa0\x80", "ab\xf4\x90\x80\x80", "ab\xe2\x82"}) try {
      tokenizer->tokenize(text);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_STREQ(e.what(), "the text is not UTF-8 at byte column 3");
    }
}

TEST(HuggingFace, NeedsRoomForAToken) {
  try {
    open_tokenizer_json(sample, {.max_ids = 2});
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("texts begin and end with 2 tokens, and at most 2 are wanted"),
              std::string::npos)
        << e.what();
  }
}

TEST(WordPiece, VocabularyMustHaveTheTokensOfBert) {
  const auto message_of = [](const std::string& text) -> std::string {
    const TemporaryFile file(text);
    try {
      open_wordpiece(file.path(), true, {.max_ids = 64});
    } catch (const Error& e) {
      return std::string(e.what()).substr(file.path().size());
    }
    return "";
  };
  EXPECT_EQ(message_of("[UNK]\n[CLS]\n[SEP]\na\n"), "");
  EXPECT_EQ(message_of("[UNK]\n[CLS]\na\n"), ": has no line [SEP], which BERT's vocabularies have");
  EXPECT_EQ(message_of("[UNK]\n[CLS]\n[SEP]\n\xff\n"), ":4:1: is not UTF-8");
}

}  // namespace
}  // namespace attnkit::core
