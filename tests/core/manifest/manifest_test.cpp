// The meaning of a sound manifest; no text whatever does worse than be refused.
#include "core/manifest/manifest.hpp"

#include <gtest/gtest.h>

#include "tests/core/manifest/manifest_support.hpp"

namespace attnkit::core {
namespace {

TEST(Manifest, ReportsTenMistakesAtOnce) {
  std::string found = report(read(read_text("ten_mistakes.toml")).diagnostics, true);
  for (const auto& [folder, name] :
       {std::pair{data_folder, "<data>"}, std::pair<std::string, const char*>{ATTNKIT_FAKE_PLUGINS, "<plugins>"}})
    for (size_t at = found.find(folder); at != std::string::npos; at = found.find(folder))
      found.replace(at, folder.size(), name);
  EXPECT_EQ(found, read_text("ten_mistakes.txt"));
}

TEST(Manifest, SaysWhatTheFileSays) {
  const Manifest m = read(read_text("model.toml")).manifest;
  EXPECT_EQ(m.name, "numbers-en-de");
  EXPECT_EQ(m.kind, ModelKind::encoder_decoder);
  EXPECT_EQ(m.d_model, 128);
  EXPECT_EQ(m.heads, 4);
  EXPECT_EQ(m.ffn, 256);
  EXPECT_EQ(m.max_length, 512);
  EXPECT_TRUE(m.embed_scale && m.head_norm && m.adapters);
  EXPECT_EQ(m.tied, (std::set<std::string>{"output", "target"}));
  EXPECT_EQ(m.encoder.layers, 3);
  EXPECT_EQ(m.encoder.vocab, data_folder + "/vocab.txt");
  EXPECT_TRUE(m.encoder.lowercase);
  EXPECT_FALSE(m.decoder.lowercase);
  EXPECT_EQ(m.weights_file, data_folder + "/weights.safetensors");
  EXPECT_EQ(m.weights_sha256, "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
  EXPECT_EQ(m.weights_place.line, 19);
  EXPECT_EQ(m.predict, Predict::ratio);
  EXPECT_EQ(m.alpha, 0.79);
  EXPECT_EQ(m.beams, 1);
}

TEST(Manifest, DecidesEveryBlockByTheMostSpecificEntry) {
  const Manifest m = read(read_text("model.toml")).manifest;
  std::string grid;
  for (const BlockChoice& b : m.blocks)
    grid += fmt::format("{} {} {}:{}\n", block_path(b.role, b.layer), b.mechanism, b.decided.line, b.decided.column);
  EXPECT_EQ(grid,
            "encoder.self.1 fake_picky 23:18\nencoder.self.2 fake_picky 23:18\nencoder.self.3 fake_picky 23:18\n"
            "decoder.self.1 fake_plain 24:18\ndecoder.cross.1 fake_picky 25:27\n"
            "decoder.self.2 fake_picky 30:15\ndecoder.cross.2 fake_picky 25:27\n"
            "decoder.self.3 fake_picky 30:15\ndecoder.cross.3 fake_picky 25:27\n");
}

TEST(Manifest, TakesOptionsFromTheCellThenParamsThenThePlugin) {
  const Manifest m = read(read_text("model.toml")).manifest;
  const std::vector<OptionValue>& cross = m.blocks[4].options;
  EXPECT_EQ(cross[0].i, 8);        // the cell's
  EXPECT_EQ(cross[1].f, 0.25);     // of params
  EXPECT_EQ(cross[3].s, "clamp");  // of params
  EXPECT_EQ(cross[6].f, 1.0);      // the plugin's
  EXPECT_EQ(m.blocks[0].options[0].i, 4);
  EXPECT_EQ(m.blocks[5].options[2].i, 1);
}

TEST(Manifest, LastOverrideWins) {
  const auto found =
      read(edited(0, "",
                  "[[attention.override]]\nblock = \"decoder.self\"\nlayers = [3]\nuse = \"fake_plain\"\n"
                  "[[attention.override]]\nblock = \"decoder.cross\"\nlayers = 1\nuse = \"fake_picky\"\n"
                  "params = { size = 1 }\n"));
  EXPECT_EQ(report(found.diagnostics), "");
  EXPECT_EQ(found.manifest.blocks[5].mechanism, "fake_picky");
  EXPECT_EQ(found.manifest.blocks[7].mechanism, "fake_plain");
  EXPECT_EQ(found.manifest.blocks[4].options[0].i, 1);
  EXPECT_EQ(found.manifest.blocks[6].options[0].i, 8);
}

TEST(Manifest, AnIntegerIsAFloat) {
  const auto found = read(edited(26, "params.fake_picky = { eps = 1, any = -3 }"));
  EXPECT_EQ(report(found.diagnostics), "");
  EXPECT_EQ(found.manifest.blocks[0].options[1].f, 1.0);
  EXPECT_EQ(found.manifest.blocks[0].options[6].f, -3.0);
}

TEST(Manifest, OnlyTheTotalsThatAreKnownAreClaimed) {
  Manifest m = read(read_text("model.toml")).manifest;
  const uint32_t both = ATTN_KNOWS_Q_TOTAL | ATTN_KNOWS_K_TOTAL;
  EXPECT_EQ(total_flags(m, m.blocks[0]), both);
  EXPECT_EQ(total_flags(m, m.blocks[3]), both);
  EXPECT_EQ(total_flags(m, m.blocks[4]), both);
  m.predict = Predict::none;
  EXPECT_EQ(total_flags(m, m.blocks[0]), both);
  EXPECT_EQ(total_flags(m, m.blocks[3]), 0u);
  EXPECT_EQ(total_flags(m, m.blocks[4]), ATTN_KNOWS_K_TOTAL);
}

TEST(Manifest, ARefusalForWantOfALengthSaysSo) {
  const std::string text = read_text("model.toml");
  const auto found = read(text.substr(0, text.find("[length]"))).diagnostics;
  EXPECT_EQ(report(found, true),
            "25:27 error AK203 decoder.cross cannot be \"fake_picky\": the target's length is unknown\n"
            "  help: say in [length] who tells the target's length, or use \"fake_plain\"\n"
            "30:15 error AK203 decoder.self (layers 2, 3) cannot be \"fake_picky\": the target's length is unknown\n"
            "  help: say in [length] who tells the target's length, or use \"fake_plain\"\n");
}

TEST(Manifest, DescribesBlocksForPlugins) {
  Manifest m = read(read_text("model.toml")).manifest;
  const attn_block self = block_of(m, m.blocks[3]);
  EXPECT_EQ(self.struct_size, sizeof self);
  EXPECT_EQ(self.role, ATTN_DECODER_SELF);
  EXPECT_EQ(self.causal, 1u);
  EXPECT_EQ(self.heads, 4u);
  EXPECT_EQ(self.head_width, 32);
  EXPECT_EQ(self.key_width, 32);
  EXPECT_EQ(self.kv_heads, 4u);
  EXPECT_EQ(block_of(m, m.blocks[0]).causal, 0u);
  EXPECT_EQ(block_of(m, m.blocks[4]).causal, 0u);
  m.encoder.causal = true;
  EXPECT_EQ(block_of(m, m.blocks[0]).causal, 1u);
}

// A model of one stack; stack and attention as given.
std::string one_stack(const std::string& kind, const std::string& stack, const std::string& rest) {
  return "schema = \"attnkit.model/1\"\nweights.file = \"weights.safetensors\"\n[model]\nname = \"x\"\nd_model = "
         "8\nheads = 2\n"
         "ffn = 8\nkind = \"" +
         kind + "\"\n" + stack + "\n" + rest;
}

TEST(Manifest, OneStackIsEnough) {
  const auto encoder = read(one_stack("encoder", "encoder = { layers = 2, vocab = \"vocab.txt\", causal = true }",
                                      "head = { type = \"classifier\", classes = 3, pool = \"first\" }\n"
                                      "[attention]\ndefault = \"fake_plain\""));
  EXPECT_EQ(report(encoder.diagnostics), "");
  EXPECT_EQ(encoder.manifest.blocks.size(), 2u);
  EXPECT_EQ(encoder.manifest.head, HeadType::classifier);
  EXPECT_EQ(encoder.manifest.classes, 3);
  EXPECT_EQ(encoder.manifest.pool, Pool::first);
  EXPECT_TRUE(encoder.manifest.encoder.causal);
  EXPECT_EQ(encoder.manifest.max_length, 512);
  const auto decoder =
      read(one_stack("decoder", "decoder = { layers = 2, vocab = \"vocab.txt\" }",
                     "[attention]\ndefault = \"fake_plain\"\n[length]\npredict = \"fixed\"\nlength = 20.5\n"
                     "[decode]\nbeams = 4\nlength_penalty = 0.6"));
  EXPECT_EQ(report(decoder.diagnostics), "");
  EXPECT_EQ(decoder.manifest.blocks.size(), 2u);
  EXPECT_EQ(decoder.manifest.blocks[1].role, ATTN_DECODER_SELF);
  EXPECT_EQ(decoder.manifest.fixed_length, 20.5);
  EXPECT_EQ(decoder.manifest.beams, 4);
  EXPECT_EQ(decoder.manifest.length_penalty, 0.6);
}

TEST(Manifest, SaysWhichLayersHaveABias) {
  const auto bias = [](const std::string& said) {
    const auto made = read(edited(9, said.c_str()));
    EXPECT_EQ(report(made.diagnostics), "") << said;
    return made.manifest.bias;
  };
  using Layers = std::set<std::string>;
  EXPECT_EQ(bias("bias = \"qkv\""), (Layers{"q", "k", "v"}));
  EXPECT_EQ(bias("bias = []"), bias("bias = \"none\""));
  EXPECT_EQ(bias("gated = true\nbias = [\"q\", \"gate\"]"), (Layers{"q", "gate"}));
  // A gate that is not there has what the layer beside it has, so that equal models say the same.
  EXPECT_EQ(bias("bias = [\"q\", \"k\", \"v\", \"o\", \"in\", \"out\"]"), bias("bias = \"all\""));
  EXPECT_EQ(bias_name({"q", "v", "o", "in", "gate", "out"}), "all_but_k");
  EXPECT_EQ(bias_name({"q"}), "");
}

TEST(Manifest, SaysWhichEmbeddingsAreOneTable) {
  const auto tied = [](const std::string& said, const std::string& expected = "") {
    const auto made = read(edited(12, said.c_str()));
    EXPECT_EQ(report(made.diagnostics), expected) << said;
    return made.manifest.tied;
  };
  using Tables = std::set<std::string>;
  EXPECT_EQ(tied("tie_embeddings = true"), (Tables{"target", "output"}));
  EXPECT_EQ(tied("tie_embeddings = false"), Tables{});
  EXPECT_EQ(tied("tie_embeddings = [\"source\", \"target\", \"output\"]"), (Tables{"source", "target", "output"}));
  std::string larger = edited(12, "tie_embeddings = [\"source\", \"target\"]");
  larger.replace(larger.find(" }", larger.find("decoder = {")), 2, ", vocab_size = 500 }");
  EXPECT_NE(report(read(larger).diagnostics).find("12:18 error AK104 \"tie_embeddings\" makes one table of "),
            std::string::npos);
  const std::string encoder = "encoder = { layers = 2, vocab = \"vocab.txt\" }\n",
                    attention = "[attention]\ndefault = \"fake_plain\"";
  const auto of_encoder = [&](const char* said) {
    return report(read(one_stack("encoder", encoder + said, attention)).diagnostics);
  };
  EXPECT_EQ(of_encoder("tie_embeddings = [\"source\", \"output\"]"), "");
  EXPECT_EQ(of_encoder("tie_embeddings = [\"source\", \"target\"]"),
            "10:18 error AK113 \"tie_embeddings\" has \"target\", and this model has no decoder\n");
  EXPECT_EQ(of_encoder("tie_embeddings = [\"source\", \"output\"]\nhead = { type = \"embedding\" }"),
            "10:18 error AK113 \"tie_embeddings\" has \"output\", and this model scores no tokens\n");
}

TEST(Manifest, KindAndStacksMustAgree) {
  const std::string vocab = "layers = 2, vocab = \"vocab.txt\" }\n";
  EXPECT_EQ(
      report(read(one_stack("encoder", "encoder = { " + vocab + "decoder = { " + vocab + "tie_embeddings = true",
                            "head = { type = \"classifier\" }\n[attention]\n\"decoder.self\" = \"fake_plain\"\n"
                            "[length]\npredict = \"reference\"\n[decode]"))
                 .diagnostics),
      "10:1 error AK113 a model of kind \"encoder\" has no decoder\n"
      "11:18 error AK113 \"tie_embeddings\" ties the output layer to the decoder's embedding; an encoder has none\n"
      "12:8 error AK102 a classifier needs \"classes\"\n"
      "13:1 error AK213 nothing in [attention] decides encoder.self\n"
      "14:1 error AK210 a model of kind \"encoder\" has no decoder.self\n"
      "15:1 error AK113 [length] is for models with a decoder\n"
      "17:1 error AK113 [decode] is for models with a decoder\n");
  EXPECT_EQ(
      report(
          read(one_stack("decoder", "encoder = { " + vocab,
                         "[attention]\ndefault = \"fake_plain\"\n[[attention.override]]\n"
                         "block = \"decoder.cross\"\nuse = \"fake_plain\"\n[length]\npredict = \"ratio\"\nalpha = 1"))
              .diagnostics),
      "3:1 error AK102 a model of kind \"decoder\" needs \"decoder\"\n"
      "9:1 error AK113 a model of kind \"decoder\" has no encoder\n"
      "14:9 error AK210 a model of kind \"decoder\" has no decoder.cross\n"
      "17:11 error AK113 predict = \"ratio\" multiplies the source's length; a decoder alone has no source\n");
}

TEST(Manifest, EmptyTextMissesWhatIsRequired) {
  EXPECT_EQ(report(read("").diagnostics),
            "1:1 error AK102 the manifest needs \"schema\", text\n1:1 error AK102 the manifest needs [model]\n"
            "1:1 error AK102 the manifest needs [weights]\n1:1 error AK102 the manifest needs [attention]\n");
}

TEST(Manifest, TooLargeIsRefusedBeforeItIsParsed) {
  EXPECT_EQ(report(read(std::string(65537, ' ')).diagnostics),
            "1:1 error AK105 the manifest has 65537 bytes; at most 65536 are allowed\n");
}

TEST(Manifest, NoNestingOverflowsTheStack) {
  for (const std::string piece : {"a.", "[", "{a=", "[[a.", "a={b.", "\"a\".", "[a.b]\n", "'", "\"\"\"", "#["}) {
    std::string text;
    while (text.size() + piece.size() < 65536) text += piece;
    const auto found = read(text).diagnostics;
    ASSERT_FALSE(found.empty()) << piece;
  }
}

TEST(Manifest, ByteOrderMarkAndWindowsLineEndsAreNoProblem) {
  std::string text = "\ufeff";
  for (const char c : read_text("model.toml")) text += c == '\n' ? std::string("\r\n") : std::string(1, c);
  EXPECT_EQ(report(read(text).diagnostics), "");
}

TEST(Manifest, SurvivesEveryTruncation) {
  const std::string text = read_text("model.toml");
  for (size_t n = 0; n < text.size(); ++n) read(text.substr(0, n));
}

TEST(Manifest, SurvivesMutations) {
  const std::string text =
                        read_text("model.toml") +
                        "[search]\nspace = { \"encoder.self\" = [\"fake_plain\", { use = \"fake_picky\", eps = 1 }] }\n"
                        "lengths = [64, 8]\nlimits = { max_state = \"64KiB\", max_latency = \"1.5ms\" }\n",
                    alphabet = "\"'[]{}=.,#\n\\\xe2\xff 019aeu";
  uint64_t state = 88172645463325252u;
  const auto next = [&](size_t n) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return static_cast<size_t>(state % n);
  };
  for (int i = 0; i < 5000; ++i) {
    std::string mutant = text;
    for (size_t edits = next(4) + 1; edits > 0; --edits) {
      const size_t at = next(mutant.size());
      if (next(3) == 0)
        mutant.erase(at, next(8) + 1);
      else
        mutant.insert(at, 1, alphabet[next(alphabet.size())]);
    }
    const auto found = read(mutant);
    for (const Diagnostic& d : found.diagnostics) {
      EXPECT_GE(d.place.line, 1) << mutant;
      EXPECT_GE(d.place.column, 1) << mutant;
      EXPECT_EQ(d.message.find('\n'), std::string::npos) << d.message;
    }
  }
}

std::string options_error(const char* toml) {
  try {
    read_options(*fake_registry().find("fake_picky", 1), toml);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ATTN_INVALID);
    return e.what();
  }
  return "";
}

TEST(Options, AreReadFromAnInlineTable) {
  const Plugin& picky = *fake_registry().find("fake_picky", 1);
  const auto given = read_options(picky, "mode = 'clamp', eps = 1e-3, size = 7");
  EXPECT_EQ(given[0].i, 7);
  EXPECT_EQ(given[1].f, 1e-3);
  const std::vector<attn_value> values = to_values(given);
  ASSERT_EQ(values.size(), 7u);
  EXPECT_EQ(values[3].type, ATTN_TEXT);
  EXPECT_STREQ(values[3].s, "clamp");
  EXPECT_STREQ(values[4].s, "");
  EXPECT_EQ(read_options(picky, nullptr)[0].i, 4);
  EXPECT_EQ(read_options(picky, "")[0].i, 4);
}

// Sessions that were saved before a mechanism got an option go on: it is as if it had its default.
TEST(Manifest, UsesAreWrittenAsEarlierTextsKnowThem) {
  const Plugin& picky = *fake_registry().find("fake_picky", 1);
  const auto defaults = read_options(picky, nullptr), given = read_options(picky, "size = 7");
  const std::string whole = use_text(picky, defaults), none = "\"fake_picky\"",
                    size = "{ use = \"fake_picky\", size = 7 }";
  EXPECT_NE(whole, none);
  EXPECT_EQ(use_text(picky, defaults, &whole), whole);
  EXPECT_EQ(use_text(picky, defaults, &none), none);
  EXPECT_EQ(use_text(picky, given, &none), size) << "what was set differs from what was saved";
  EXPECT_EQ(use_text(picky, given, &size), size);
}

TEST(Options, ThatAreWrongSayWhy) {
  EXPECT_EQ(options_error("siez = 3"),
            "options \"siez = 3\": fake_picky has no option \"siez\"; did you mean \"size\"?");
  EXPECT_NE(options_error("size = "), "");
  EXPECT_NE(options_error("size = 1}\nb = {"), "");
  EXPECT_NE(options_error("} [x"), "");
  EXPECT_NE(options_error("size = 1, size = 2"), "");
}

TEST(Roles, HaveNames) {
  EXPECT_STREQ(role_name(ATTN_DECODER_CROSS), "decoder.cross");
  EXPECT_EQ(block_path(ATTN_ENCODER_SELF, 2), "encoder.self.2");
}

}  // namespace
}  // namespace attnkit::core
