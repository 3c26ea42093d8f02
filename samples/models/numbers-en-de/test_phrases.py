"""Inflection, templates, the split rule and the vocabulary; needs num2words and babel only."""
import itertools
import random
import unittest

import generate
import phrases
import vocabulary


class Inflection(unittest.TestCase):
    def test_eins(self):
        self.assertEqual(phrases.cardinal(1), ("one", "eins"))
        self.assertEqual(phrases.price(1), ("one euro", "ein Euro"))
        self.assertEqual(phrases.price(0, 1), ("one cent", "ein Cent"))
        self.assertEqual(phrases.clock(1, 0), ("one o'clock", "ein Uhr"))
        self.assertEqual(phrases.clock(1, 1), ("one oh one", "ein Uhr eins"))
        self.assertEqual(phrases.cardinal(1_000_000), ("one million", "eine Million"))
        self.assertEqual(phrases.cardinal(101)[1], "einhunderteins")
        self.assertEqual(phrases.price(101)[1], "einhundertein Euro")
        self.assertEqual(phrases.price(21)[1], "einundzwanzig Euro")
        self.assertEqual(phrases.cardinal(101_001)[1], "einhunderteintausendeins")

    def test_plurals(self):
        self.assertEqual(phrases.price(2), ("two euros", "zwei Euro"))
        self.assertEqual(phrases.price(2_000_000), ("two million euros", "zwei Millionen Euro"))
        self.assertEqual(phrases.price(3, 20), ("three euros and twenty cents", "drei Euro und zwanzig Cent"))

    def test_ordinals(self):
        german = {1: "erste", 2: "zweite", 3: "dritte", 7: "siebte", 8: "achte", 12: "zwölfte", 16: "sechzehnte",
                  17: "siebzehnte", 19: "neunzehnte", 20: "zwanzigste", 21: "einundzwanzigste", 31: "einunddreißigste"}
        for n, word in german.items():
            self.assertEqual(phrases.german_ordinal(n), word)
        self.assertEqual(phrases.ordinal(22), ("the twenty-second", "der zweiundzwanzigste"))


class Templates(unittest.TestCase):
    def test_numbers(self):
        self.assertEqual(phrases.price(241), ("two hundred and forty-one euros", "zweihunderteinundvierzig Euro"))
        self.assertEqual(phrases.cardinal(12_345), ("twelve thousand three hundred and forty-five",
                                                    "zwölftausenddreihundertfünfundvierzig"))
        self.assertEqual(phrases.cardinal(0), ("zero", "null"))

    def test_dates(self):
        self.assertEqual(phrases.date(3, 3), ("the third of march", "der dritte März"))
        self.assertEqual(phrases.date(3, 3, 2024), ("the third of march twenty twenty-four",
                                                    "der dritte März zweitausendvierundzwanzig"))

    def test_years(self):
        self.assertEqual(phrases.year(1999), ("nineteen ninety-nine", "neunzehnhundertneunundneunzig"))
        self.assertEqual(phrases.year(1905), ("nineteen oh five", "neunzehnhundertfünf"))
        self.assertEqual(phrases.year(1900), ("nineteen hundred", "neunzehnhundert"))
        self.assertEqual(phrases.year(2000), ("two thousand", "zweitausend"))
        self.assertEqual(phrases.year(2007), ("two thousand and seven", "zweitausendsieben"))
        self.assertEqual(phrases.year(2010), ("twenty ten", "zweitausendzehn"))

    def test_times(self):
        self.assertEqual(phrases.clock(3, 45), ("three forty-five", "drei Uhr fünfundvierzig"))
        self.assertEqual(phrases.clock(3, 5), ("three oh five", "drei Uhr fünf"))
        self.assertEqual(phrases.spoken_time(3, 30), ("half past three", "halb vier"))
        self.assertEqual(phrases.spoken_time(12, 30), ("half past twelve", "halb eins"))
        self.assertEqual(phrases.spoken_time(4, 45), ("quarter to five", "Viertel vor fünf"))
        self.assertEqual(phrases.spoken_time(12, 50), ("ten to one", "zehn vor eins"))
        self.assertEqual(phrases.spoken_time(5, 15), ("quarter past five", "Viertel nach fünf"))


class RecordingSource(generate.PhraseSource):
    """Remembers the values of 1,000 and more that it drew."""

    def __init__(self, split):
        super().__init__(split, 7)
        self.drawn = set()

    def _value(self):
        value = super()._value()
        self.drawn |= {value} if value >= 1000 else set()
        return value


class Splits(unittest.TestCase):
    def test_no_large_value_is_shared(self):
        drawn = {}
        for split in ("train", "dev", "test"):
            source = RecordingSource(split)
            for _ in range(30_000):
                source.phrase()
            drawn[split] = source.drawn | set(source.years)
            self.assertGreater(len(drawn[split]), 300)
            self.assertEqual({generate.split_of(value) for value in drawn[split]}, {split})
        for one, other in itertools.combinations(drawn.values(), 2):
            self.assertFalse(one & other)

    def test_every_year_has_one_split(self):
        years = [set(generate.PhraseSource(split, 0).years) for split in ("train", "dev", "test")]
        self.assertEqual(set.union(*years), set(generate.YEARS))
        self.assertEqual(sum(map(len, years)), len(generate.YEARS))

    def test_sets_are_what_the_seed_gives(self):
        sets = {}
        for name in ("dev", "test"):
            sets[name] = generate.read_tsv(generate.HERE / f"{name}.tsv")
            self.assertEqual(sets[name], generate.held_out(name))
        self.assertFalse({en for en, _ in sets["dev"] if en.count(";") > 3} & {en for en, _ in sets["test"]})

    def test_buckets_are_equal_parts(self):
        for name in ("dev", "test"):
            lines = generate.read_tsv(generate.HERE / f"{name}.tsv")
            counts = [0] * len(generate.BUCKETS)
            for english, german in lines:
                self.assertEqual(english.count(";"), german.count(";"))
                counts[generate.bucket_of(english)] += 1
            self.assertEqual(counts, [generate.LISTS_PER_BUCKET] * len(generate.BUCKETS))


class Vocabulary(unittest.TestCase):
    def setUp(self):
        self.tokenizer = vocabulary.Tokenizer(vocabulary.load())

    def pieces(self, text):
        return " ".join(self.tokenizer.tokens[i] for i in self.tokenizer.encode(text)).replace(vocabulary.WORD, "_")

    def test_file_is_what_the_code_builds(self):
        self.assertEqual(vocabulary.load(), vocabulary.build())

    def test_segments_as_intended(self):
        for text, pieces in {
                "two hundred and forty-one euros": "_two _hundred _and _forty -one _euros",
                "the twenty-first": "_the _twenty -first",
                "zweihunderteinundvierzig Euro": "_zwei hundert ein und vierzig _Euro",
                "eins ; eintausendeins": "_eins _; _ein tausend eins",
                "der siebzehnte": "_der _sieb zehn te", "der achte": "_der _acht e", "der dritte": "_der _dritte",
                "sechzehn": "_sech zehn", "sechzig": "_sechzig", "sechsundsiebzig": "_sechs und siebzig",
                "einunddreißigste": "_ein und dreißig ste", "zwei Millionen": "_zwei _Millionen"}.items():
            self.assertEqual(self.pieces(text), pieces)

    def test_round_trip(self):
        lists = [pair for name in ("dev", "test") for pair in generate.read_tsv(generate.HERE / f"{name}.tsv")]
        source = generate.PhraseSource("train", 3)
        for pair in lists + [source.phrase() for _ in range(5000)]:
            for text in pair:
                self.assertEqual(self.tokenizer.decode(self.tokenizer.encode(text)), text)
                self.assertEqual(pair[0], pair[0].lower())

    def test_unknown_word(self):
        with self.assertRaisesRegex(ValueError, "seventeenish"):
            self.tokenizer.encode("two seventeenish")


class Seed(unittest.TestCase):
    def test_same_seed_same_phrases(self):
        first, second, other = (generate.PhraseSource("train", seed) for seed in (5, 5, 6))
        drawn = [[source.phrase() for _ in range(200)] for source in (first, second, other)]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0], drawn[2])

    def test_global_random_state_is_not_used(self):
        random.seed(1)
        first = generate.PhraseSource("dev", 5).phrase()
        random.seed(2)
        self.assertEqual(first, generate.PhraseSource("dev", 5).phrase())


if __name__ == "__main__":
    unittest.main()
