// Every problem a manifest can have, with its code and place; and what a sound manifest means.
#include "core/manifest.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "core/manifest_codes.hpp"
#include "core/manifest_parts.hpp"

namespace attnkit {
namespace {

const std::string data = ATTNKIT_SOURCE_DIR "/tests/core/data";

const Registry& registry() {
  static const Registry r({ATTNKIT_FAKE_PLUGINS});
  return r;
}

std::string read_text(const std::string& name) {
  std::ifstream in(data + "/" + name, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

struct Read {
  Manifest manifest;
  std::vector<Diagnostic> diagnostics;
};

Read read(const std::string& toml) {
  Diagnostics d;
  Manifest m = read_manifest(toml, data, registry(), 1, d);
  return {std::move(m), d.sorted()};
}

// "12:3 AK101 message", one line each.
std::string report(const std::vector<Diagnostic>& all, bool help = false) {
  std::string out;
  for (const Diagnostic& d : all) {
    out += fmt::format("{}:{} {} AK{} {}\n", d.place.line, d.place.column,
                       d.severity == ATTNKIT_ERROR ? "error" : "warning", d.code, d.message);
    if (help && !d.help.empty()) out += "  help: " + d.help + "\n";
  }
  return out;
}

// model.toml with one line (from 1) replaced; further lines go to the end.
std::string edited(int line, const std::string& text, const std::string& appended = "") {
  std::istringstream in(read_text("model.toml"));
  std::string out, row;
  for (int i = 1; std::getline(in, row); ++i) out += (i == line ? text : row) + "\n";
  return out + appended;
}

struct Case {
  const char* name;
  int line;
  const char* text;
  const char* appended;
  std::vector<const char*> expected;  // beginnings of the report's lines
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class Mistake : public testing::TestWithParam<Case> {};

TEST_P(Mistake, IsReportedWhereItStands) {
  const Case& c = GetParam();
  const auto found = read(edited(c.line, c.text, c.appended)).diagnostics;
  ASSERT_EQ(found.size(), c.expected.size()) << report(found, true);
  std::istringstream lines(report(found));
  std::string line;
  for (const char* expected : c.expected) {
    std::getline(lines, line);
    EXPECT_EQ(line.substr(0, std::string(expected).size()), expected) << report(found, true);
  }
}

const Case form[] = {
    {"Sound", 0, "", "", {}},
    {"Syntax", 5, "d_model = = 128", "", {"5:11 error AK100 not TOML: "}},
    {"DuplicateKey", 5, "heads = 4", "", {"6:9 error AK100 not TOML: "}},
    {"SyntaxAfterWideCharacters", 3, "name = \"\u00e4\u2581\" x", "", {"3:16 error AK100 not TOML: "}},
    {"ToolsAbort", 5, "a=[}", "", {"5:4 error AK100 not TOML: "}},
    {"UnknownKey",
     15,
     "max_lenght = 512",
     "",
     {"15:1 error AK101 unknown key \"max_lenght\"; did you mean \"max_length\"?"}},
    {"UnknownTable", 31, "[lengthh]", "", {"31:2 error AK101 unknown key \"lengthh\"; did you mean \"length\"?"}},
    {"KeyWithoutQuotes", 23, "encoder.self = \"fake_plain\"", "", {"23:1 error AK101 unknown key \"encoder\""}},
    {"UnknownKeyOfStack",
     17,
     "decoder = { layers = 3, vocab = \"vocab.txt\", casual = true }",
     "",
     {"17:46 error AK101 unknown key \"casual\""}},
    {"MisspeltRequiredKeyIsOneProblem",
     5,
     "d_modl = 128",
     "",
     {"5:1 error AK101 unknown key \"d_modl\"; did you mean \"d_model\"?"}},
    {"MissingKey", 5, "", "", {"2:1 error AK102 [model] needs \"d_model\", an integer from 1 to 65536"}},
    {"MissingKeyOfStack",
     17,
     "decoder = { vocab = \"vocab.txt\" }",
     "",
     {"17:11 error AK102 [model.decoder] needs \"layers\""}},
    {"WrongType", 6, "heads = \"4\"", "", {"6:9 error AK103 \"heads\" must be an integer from 1 to 1024, not text"}},
    {"FloatIsNoInteger", 6, "heads = 4.0", "", {"6:9 error AK103 \"heads\" must be an integer"}},
    {"DateIsNoText", 3, "name = 1979-05-27", "", {"3:8 error AK103 \"name\" must be text, not a date or time"}},
    {"TableIsNoText", 8, "norm = {}", "", {"8:8 error AK103 \"norm\" must be one of \"pre\", \"post\", not a table"}},
    {"OutOfRange", 6, "heads = 0", "", {"6:9 error AK104 \"heads\" is 0; it must be an integer from 1 to 1024"}},
    {"HugeInteger", 6, "heads = 9223372036854775807", "", {"6:9 error AK104 \"heads\" is 9223372036854775807;"}},
    {"NotANumber", 33, "alpha = nan", "", {"33:9 error AK104 \"alpha\" is nan; it must be a number"}},
    {"Choice",
     9,
     "activation = \"gleu\"",
     "",
     {"9:14 error AK104 \"activation\" cannot be \"gleu\"; did you mean \"gelu\"?"}},
    {"EmptyText", 3, "name = \"\"", "", {"3:8 error AK104 \"name\" must not be empty"}},
    {"ControlCharacters",
     19,
     "file = \"a\\u0000b\"",
     "",
     {"19:8 error AK104 \"file\" must not be empty or hold control"}},
    {"Utf8", 3, "name = \"\xff\"", "", {"3:9 error AK107 the manifest is not UTF-8 here"}},
    {"DeepArray",
     3,
     "name = [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]",
     "",
     {"3:24 error AK106 nested deeper than 16 levels"}},
    {"DeepKey", 3, "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q = 1", "", {"3:32 error AK106 nested deeper"}},
};
INSTANTIATE_TEST_SUITE_P(Form, Mistake, testing::ValuesIn(form), [](const auto& i) { return i.param.name; });

const Case model[] = {
    {"OtherSchemaStops",
     1,
     "schema = \"attnkit.model/2\"",
     "x = 1",
     {"1:10 error AK110 schema \"attnkit.model/2\" is not"}},
    {"MisspeltSchema", 1, "schema = \"attnkit.modle/1\"", "[x]", {"1:10 error AK110", "34:2 error AK101"}},
    {"NoSchema", 1, "", "", {"1:1 error AK102 the manifest needs \"schema\""}},
    {"Stream", 0, "", "[stream]\nk = 3", {"34:2 error AK111 [stream]"}},
    {"Search", 0, "", "[search]\nrank = \"rcp\"", {"34:2 warning AK112 [search]"}},
    {"PredictLater",
     32,
     "predict = \"lut\"",
     "",
     {
         "32:11 error AK111 predict = \"lut\" is not supported",
     }},
    {"PredictUnknown",
     32,
     "predict = \"ration\"",
     "",
     {"32:11 error AK104 \"predict\" cannot be \"ration\"; did you mean \"ratio\"?"}},
    {"AlphaMissing", 33, "", "", {"31:1 error AK102 predict = \"ratio\" needs \"alpha\""}},
    {"AlphaWithFixed",
     32,
     "predict = \"fixed\"",
     "length = 20",
     {"33:1 error AK113 \"alpha\" is for predict = \"ratio\" only"}},
    {"LengthMissing", 32, "predict = \"fixed\"", "", {"31:1 error AK102 predict = \"fixed\" needs \"length\"", "33:1"}},
    {"AlphaNotPositive", 33, "alpha = 0", "", {"33:9 error AK104 \"alpha\" is 0;"}},
    {"Beams",
     0,
     "",
     "[decode]\nbeams = 65\nlength_penalty = -1",
     {"35:9 error AK104 \"beams\" is 65;", "36:18 error AK104 \"length_penalty\" is -1;"}},
    {"HeadsDoNotDivide", 6, "heads = 3", "", {"6:9 error AK114 \"heads\" is 3, which does not divide d_model, 128"}},
    {"NoDecoder", 17, "", "", {"2:1 error AK102 a model of kind \"encoder-decoder\" needs \"decoder\""}},
    {"ClassifierWithDecoder",
     8,
     "head = { type = \"classifier\", classes = 3 }",
     "",
     {"8:17 error AK113 a classifier needs kind \"encoder\", not \"encoder-decoder\""}},
    {"ClassesOfLm",
     8,
     "head = { type = \"lm\", classes = 3 }",
     "",
     {"8:23 error AK113 \"classes\" is for a classifier only"}},
    {"Weights", 19, "file = \"nowhere.safetensors\"", "", {"19:8 error AK120 weights"}},
    {"WeightsAreAFolder", 19, "file = \".\"", "", {"19:8 error AK120 weights"}},
    {"Digest", 20, "sha256 = \"12g4\"", "", {"20:10 error AK104 \"sha256\" must be 64 hexadecimal digits"}},
    {"Vocabulary", 17, "decoder = { layers = 3, vocab = \"nowhere.txt\" }", "", {"17:33 error AK121 "}},
    {"VocabularyIsNone", 17, "decoder = { layers = 3, vocab = \"model.toml\" }", "", {"17:33 error AK121 "}},
};
INSTANTIATE_TEST_SUITE_P(Model, Mistake, testing::ValuesIn(model), [](const auto& i) { return i.param.name; });

const Case attention[] = {
    {"UnknownMechanism",
     22,
     "default = \"fake_plian\"",
     "",
     {"22:11 error AK201 no mechanism \"fake_plian\"; did you mean \"fake_plain\"?"}},
    {"UnknownMechanismTwice",
     23,
     "\"encoder.self\" = { use = \"x\" }",
     "[[attention.override]]\nblock = \"encoder.self\"\nlayers = 1\nuse = \"y\"",
     {"23:26 error AK201 no mechanism \"x\"", "37:7 error AK201 no mechanism \"y\""}},
    {"BrokenPlugin",
     24,
     "\"decoder.self\" = \"fake_broken\"",
     "",
     {"24:18 error AK202 mechanism \"fake_broken\" cannot be used: "}},
    {"NoUse", 24, "\"decoder.self\" = { size = 3 }", "", {"24:18 error AK102 \"decoder.self\" needs \"use\""}},
    {"UseIsNoName",
     24,
     "\"decoder.self\" = { use = 3 }",
     "",
     {"24:26 error AK103 \"use\" must be a mechanism's name, not an integer"}},
    {"SiteIsNoName",
     24,
     "\"decoder.self\" = 3",
     "",
     {"24:18 error AK103 \"decoder.self\" must be a mechanism's name or"}},
    {"OptionUnknown",
     25,
     "\"decoder.cross\" = { use = \"fake_picky\", siez = 8 }",
     "",
     {"25:41 error AK204 fake_picky has no option \"siez\"; did you mean \"size\"?"}},
    {"OptionType",
     25,
     "\"decoder.cross\" = { use = \"fake_picky\", size = 8.0 }",
     "",
     {"25:48 error AK205 fake_picky's option \"size\" must be an integer from 1 to 64, not a number"}},
    {"OptionBounds",
     25,
     "\"decoder.cross\" = { use = \"fake_picky\", size = 65 }",
     "",
     {"25:48 error AK206 fake_picky's option \"size\" is 65; it must be an integer from 1 to 64"}},
    {"OptionInfinite",
     25,
     "\"decoder.cross\" = { use = \"fake_picky\", any = inf }",
     "",
     {"25:47 error AK206 fake_picky's option \"any\" is inf; it must be a number"}},
    {"OptionChoice",
     26,
     "params.fake_picky = { mode = \"clmap\" }",
     "",
     {"26:30 error AK206 fake_picky's option \"mode\" is \"clmap\"; it must be one of \"none\", \"add\", \"clamp\"; "
      "did you mean \"clamp\"?"}},
    {"OptionsOfOneWithout",
     24,
     "\"decoder.self\" = { use = \"fake_plain\", size = 3 }",
     "",
     {"24:40 error AK204 fake_plain has no option \"size\""}},
    {"SeveralOptions",
     26,
     "params.fake_picky = { past = 1, label = 2, size = 0 }",
     "",
     {"26:30 error AK205", "26:41 error AK205", "26:51 error AK206"}},
    {"ParamsUnknown",
     26,
     "params.fake_piky = {}",
     "",
     {"26:8 error AK201 no mechanism \"fake_piky\"; did you mean \"fake_picky\"?"}},
    {"ParamsNoTable",
     26,
     "params.fake_picky = 3",
     "",
     {"26:21 error AK103 options of \"fake_picky\" must be a table, not an integer"}},
    {"ParamsUnused",
     0,
     "",
     "[attention.params.fake_thrower]\n",
     {"34:19 warning AK215 options of \"fake_thrower\", which no block uses"}},
    {"OptionTwice",
     30,
     "use = { use = \"fake_picky\", past = true }\nparams = { past = true, siez = 1 }",
     "",
     {"31:12 error AK207 option \"past\" is given by \"use\" already", "31:25 error AK204"}},
    {"Layers", 29, "layers = \"2..4\"", "", {"29:10 error AK211 decoder.self has the layers 1 to 3, not 4"}},
    {"LayersBackwards", 29, "layers = \"3..2\"", "", {"29:10 error AK211 layers \"3..2\" is no range of layers"}},
    {"LayersNonsense", 29, "layers = \"2..3x\"", "", {"29:10 error AK211 layers \"2..3x\" is no range"}},
    {"LayersHuge", 29, "layers = \"1..9223372036854775807\"", "", {"29:10 error AK211 layers"}},
    {"LayersZero", 29, "layers = 0", "", {"29:10 error AK211 decoder.self has the layers 1 to 3, not 0"}},
    {"LayersArray",
     29,
     "layers = [1, 7, \"2\"]",
     "",
     {"29:14 error AK211", "29:17 error AK211 a layer must be an integer, not text"}},
    {"LayersEmpty", 29, "layers = []", "", {"29:10 error AK211 \"layers\" is empty"}},
    {"LayersType", 29, "layers = 1.5", "", {"29:10 error AK103 \"layers\" must be an integer, \"first..last\""}},
    {"OverrideBlock",
     28,
     "block = \"decoder.slef\"",
     "",
     {"28:9 error AK104 \"block\" cannot be \"decoder.slef\"; did you mean \"decoder.self\"?"}},
    {"OverrideWithoutUse", 30, "", "", {"27:1 error AK102 [attention.override] needs \"use\""}},
    {"NeverMatches",
     0,
     "",
     "[[attention.override]]\nblock = \"decoder.self\"\nlayers = [3, 2]\nuse = \"fake_plain\"",
     {"27:1 error AK212 this override of decoder.self can never match"}},
    {"HiddenEntry",
     0,
     "",
     "[[attention.override]]\nblock = \"encoder.self\"\nuse = \"fake_plain\"",
     {"23:1 warning AK214 overrides hide this encoder.self in every layer"}},
    {"Refused",
     24,
     "\"decoder.self\" = \"fake_picky\"",
     "",
     {"24:18 error AK203 decoder.self (layer 1) cannot be \"fake_picky\": it has no causal form"}},
    {"RefusedOption",
     25,
     "\"decoder.cross\" = { use = \"fake_picky\", mode = \"none\", eps = 0.6 }",
     "",
     {"25:48 error AK203 decoder.cross cannot be \"fake_picky\": mode \"none\" needs an eps of at most 0.5"}},
    {"RefusedOptionOfParams",
     26,
     "params.fake_picky = { mode = \"none\", eps = 0.6 }",
     "",
     {"26:30 error AK203 encoder.self, decoder.self (layers 2, 3), decoder.cross cannot be \"fake_picky\""}},
    {"RefusedLength",
     26,
     "params.fake_picky = { longest = 511 }",
     "",
     {"23:18 error AK203 encoder.self cannot be \"fake_picky\": the model is longer than its longest", "25:27",
      "30:15"}},
    {"Thrower",
     24,
     "\"decoder.self\" = \"fake_thrower\"",
     "",
     {"24:18 error AK301 decoder.self (layer 1): plugin \"fake_thrower\" failed: "}},
};
INSTANTIATE_TEST_SUITE_P(Attention, Mistake, testing::ValuesIn(attention), [](const auto& i) { return i.param.name; });

TEST(Manifest, ReportsTenMistakesAtOnce) {
  std::string found = report(read(read_text("ten_mistakes.toml")).diagnostics, true);
  for (const auto& [folder, name] :
       {std::pair{data, "<data>"}, std::pair<std::string, const char*>{ATTNKIT_FAKE_PLUGINS, "<plugins>"}})
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
  EXPECT_TRUE(m.embed_scale && m.tie_embeddings && m.head_norm && m.adapters);
  EXPECT_EQ(m.encoder.layers, 3);
  EXPECT_EQ(m.encoder.vocab, data + "/vocab.txt");
  EXPECT_TRUE(m.encoder.lowercase);
  EXPECT_FALSE(m.decoder.lowercase);
  EXPECT_EQ(m.weights_file, data + "/weights.safetensors");
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
  const std::string text = read_text("model.toml"), alphabet = "\"'[]{}=.,#\n\\\xe2\xff 019aeu";
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
    read_options(*registry().find("fake_picky", 1), toml);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ATTN_INVALID);
    return e.what();
  }
  return "";
}

TEST(Options, AreReadFromAnInlineTable) {
  const Plugin& picky = *registry().find("fake_picky", 1);
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
}  // namespace attnkit
