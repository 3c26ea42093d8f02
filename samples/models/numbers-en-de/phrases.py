"""English number, ordinal, date, time and price phrases and their German translations.

Every maker takes numbers and returns (english, german). Number words are num2words', month names and
plural rules Babel's; templates and the inflection of "eins" are here.
"""
from functools import lru_cache

from babel import Locale
from num2words import num2words

EN, DE = Locale("en"), Locale("de")
MONTHS = [(EN.months["format"]["wide"][m].lower(), DE.months["format"]["wide"][m]) for m in range(1, 13)]
MILLION = {"one": "Million", "other": "Millionen"}
EURO = {"one": "euro", "other": "euros"}
CENT = {"one": "cent", "other": "cents"}


@lru_cache(maxsize=None)
def english(n):
    """241 -> two hundred and forty-one. num2words groups thousands with a comma, speech does not."""
    return num2words(n, lang="en").replace(",", "")


@lru_cache(maxsize=None)
def german(n):
    """The counting form: 1 -> eins, 101 -> einhunderteins, 1,000,000 -> eine Million."""
    millions, rest = divmod(n, 1_000_000)
    if not millions:
        # num2words keeps the final "eins" of 101,000's thousands.
        return num2words(rest, lang="de").replace("einstausend", "eintausend")
    # "Million" is a feminine noun: it takes "eine" and a plural, where num2words versions differ.
    head = "eine" if millions == 1 else german_before_noun(millions)
    head += " " + MILLION[DE.plural_form(millions)]
    return head + " " + german(rest) if rest else head


def german_before_noun(n):
    """The form before Euro, Cent, Uhr and Millionen: 1 -> ein, 101 -> einhundertein."""
    words = german(n)
    return words[:-1] if words.endswith("eins") else words


def german_ordinal(n):
    """Nominative after "der", for 1 to 31: third -> dritte. Written out: num2words versions differ here."""
    irregular = {1: "erste", 3: "dritte", 7: "siebte", 8: "achte"}
    return irregular.get(n) or german(n) + ("te" if n < 20 else "ste")


def cardinal(n):
    return english(n), german(n)


def ordinal(n):
    return "the " + num2words(n, lang="en", to="ordinal"), "der " + german_ordinal(n)


def year(n):
    """1905 -> nineteen oh five, neunzehnhundertfünf; 2024 -> twenty twenty-four, zweitausendvierundzwanzig."""
    century, rest = divmod(n, 100)
    if n // 10 == 200:
        en = english(n)
    elif rest == 0:
        en = english(century) + " hundred"
    else:
        en = english(century) + (" oh " if rest < 10 else " ") + english(rest)
    if 1100 <= n < 2000:
        return en, german(century) + "hundert" + (german(rest) if rest else "")
    return en, german(n)


def date(day, month, in_year=None):
    en_month, de_month = MONTHS[month - 1]
    en_day, de_day = ordinal(day)
    en, de = f"{en_day} of {en_month}", f"{de_day} {de_month}"
    if in_year is None:
        return en, de
    en_year, de_year = year(in_year)
    return f"{en} {en_year}", f"{de} {de_year}"


def clock(hour, minute):
    """As read from a display: three forty-five -> drei Uhr fünfundvierzig."""
    en, de = english(hour), german_before_noun(hour) + " Uhr"
    if minute == 0:
        return en + " o'clock", de
    return en + (" oh " if minute < 10 else " ") + english(minute), de + " " + german(minute)


def spoken_time(hour, minute):
    """As said, minutes before or after the hour; German names the coming hour for a half."""
    coming = hour % 12 + 1
    if minute == 30:
        return f"half past {english(hour)}", f"halb {german(coming)}"
    past = minute < 30
    distance = minute if past else 60 - minute
    en = "quarter" if distance == 15 else english(distance)
    de = "Viertel" if distance == 15 else german(distance)
    if past:
        return f"{en} past {english(hour)}", f"{de} nach {german(hour)}"
    return f"{en} to {english(coming)}", f"{de} vor {german(coming)}"


def _amount(n, unit, german_unit):
    return f"{english(n)} {unit[EN.plural_form(n)]}", f"{german_before_noun(n)} {german_unit}"


def price(euros, cents=0):
    """At least one of the two is positive. Euro and Cent stay singular in German after a number."""
    parts = []
    if euros:
        parts.append(_amount(euros, EURO, "Euro"))
    if cents:
        parts.append(_amount(cents, CENT, "Cent"))
    return " and ".join(p[0] for p in parts), " und ".join(p[1] for p in parts)
