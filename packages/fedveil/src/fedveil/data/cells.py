"""What one cell of text means: decided by the cell and the schema, never by the cells around it.

A reader that guesses the type of a whole column would let one person's odd entry change how
everybody else's are read.
"""

from __future__ import annotations

from typing import Any

from fedveil.data.arrow import pa, pc

BETWEEN = "\x1f"  # the entries of a list that is read as one cell: people do not write it
NUMBER = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"
THOUSANDS = r"^[-+]?(0|[1-9]\d{0,2}(,\d{3})*)(\.\d+)?$"  # 1,234.5
COMMA = r"^[-+]?\d+(,\d+)?$"  # 1234,5
POINTS = r"^[-+]?(0|[1-9]\d{0,2}(\.\d{3})*),\d+$"  # 1.234,5
_MONEY = "[$€£]|EUR|USD|GBP|CHF"
_UNIT = "%|kg|mg|g|km|cm|mm"
_BLANK = r"\s\x{a0}\x{2009}\x{202f}"
_GAP = r"[ \x{a0}\x{2009}\x{202f}'’]"
_GROUPED = rf"^[-+]?[1-9]\d{{0,2}}({_GAP}\d{{3}})+([.,]\d+)?$"  # 1 234,5 or 1'234.5
MONTH = r"^(?:(?P<day>\d{1,2})[- ])?(?P<name>[A-Za-z]{3})[- ](?P<year>\d{4})$"  # 31-Dec-2015
_YEAR_FIRST = r"^(\d{4})/(\d{1,2})/(\d{1,2})([ T].*)?$"  # 2015/12/31
_POINTED = r"^(\d{1,2})\.(\d{1,2})\.(\d{4})([ T].*)?$"  # 31.12.2015
DATED = "|".join((MONTH, _YEAR_FIRST, _POINTED))
# 12/31/2015, 31-Dec-15 or 31.12.15: which is the day, and which century, only a person knows.
UNCLEAR_DATE = (
    r"^(\d{1,2}/\d{1,2}/(\d{2}|\d{4})|\d{1,2}\.\d{1,2}\.\d{2}|(\d{1,2}[- ])?[A-Za-z]{3}[- ]\d{2})"
    r"([ T].*)?$"
)
DATES_ARE = (
    "dates are read as 2015-12-31, 2015/12/31, 31.12.2015 or 31-Dec-2015; of 1/2/2015 a schema "
    'says whether order = "month/day" or "day/month"'
)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_SLASHED = r"^(\d{1,2})/(\d{1,2})/(\d{4})([ T].*)?$"  # 12/31/2015 or 31/12/2015
MONTH_FIRST, DAY_FIRST = "month/day", "day/month"
_DATE = (
    r"^(?P<month>\d{4}-\d{1,2})(?:-(?P<day>\d{1,2}))?"
    r"(?:[ T](?P<hours>[01]\d|2[0-3])(?::(?P<minutes>[0-5]\d)(?::(?P<seconds>[0-5]\d(?:\.\d+)?))?)?"
    r"(?:Z|(?P<sign>[-+])(?P<zone_hours>\d{2})(?::?(?P<zone_minutes>\d{2}))?)?)?$"
)


def undressed(text: Any) -> Any:
    """Text without a percent sign or a unit of weight or length behind a number, the sign of a
    currency before or behind, or blanks and apostrophes between its thousands."""
    if pc.any(pc.match_substring_regex(text, f"{_MONEY}|{_UNIT}")).as_py():
        text = pc.replace_substring_regex(text, rf"^([-+]?)(?:{_MONEY})[{_BLANK}]?([\d.])", r"\1\2")
        dressed = rf"^([-+]?[\d.,{_BLANK}'’]*[\d.])[{_BLANK}]?(?:{_MONEY}|{_UNIT})$"
        text = pc.replace_substring_regex(text, dressed, r"\1")
    if pc.any(pc.match_substring_regex(text, _GROUPED)).as_py():
        text = _where(text, _GROUPED, pc.replace_substring_regex(text, _GAP, ""))
    return text


def numbers(text: Any, decimal: str = ".") -> Any:
    """Numbers, null where there is none. In "1,234" the comma groups thousands unless `decimal` is
    a comma; "1,5" can only be one and a half. "13.5%" is 13.5, and "$5" is 5."""
    text = undressed(text)
    if pc.any(pc.match_substring(text, ",")).as_py():
        if decimal != ",":
            text = _where(text, THOUSANDS, pc.replace_substring(text, ",", ""))
        # What has points between thousands and then a comma can be read in one way only.
        text = _where(text, POINTS, pc.replace_substring(text, ".", ""))
        text = _where(text, COMMA, pc.replace_substring(text, ",", "."))
    return pc.if_else(pc.match_substring_regex(text, NUMBER), text, None).cast(pa.float64())


def slashed_order(text: Any) -> str | None:
    """Return which part of `12/31/2015` is the month in a whole column, if that can be told."""
    if not pc.all(pc.match_substring_regex(text, _SLASHED)).as_py():
        return None
    fits = [order for order in (MONTH_FIRST, DAY_FIRST) if not days(text, order).null_count]
    return fits[0] if len(fits) == 1 else None


def with_digits(text: Any, order: str | None = None) -> Any:
    """`Dec-2015` as `2015-12-01`, `2015/12/31` and `31.12.2015` as `2015-12-31`, and everything
    else as it is; with an `order`, `12/31/2015` too."""
    if order is not None:
        swapped = r"\3-\1-\2\4" if order == MONTH_FIRST else r"\3-\2-\1\4"
        text = pc.replace_substring_regex(text, _SLASHED, swapped)
    text = pc.replace_substring_regex(text, _YEAR_FIRST, r"\1-\2-\3\4")
    text = pc.replace_substring_regex(text, _POINTED, r"\3-\2-\1\4")
    part = pc.extract_regex(text, MONTH)
    place = pc.index_in(pc.utf8_lower(pc.struct_field(part, "name")), pa.array(_MONTHS))
    month = pc.utf8_lpad(pc.add(place, 1).cast(pa.string()), 2, "0")
    day = pc.utf8_lpad(pc.struct_field(part, "day"), 2, "0")
    day = pc.if_else(pc.equal(day, "00"), "01", day)
    dated = pc.binary_join_element_wise(pc.struct_field(part, "year"), month, day, "-")
    return pc.coalesce(dated, text)


def days(text: Any, order: str | None = None) -> Any:
    """Days since 1970-01-01 of `2020-01-31`, `2020/01/31`, `31.01.2020` or `2020-01`, each with a
    time or without, and of `Jan-2020` or `31-Jan-2020`; null otherwise."""
    part = pc.extract_regex(with_digits(text, order), _DATE)

    def number(name: str) -> Any:
        digits = pc.struct_field(part, name)
        return pc.if_else(pc.not_equal(digits, ""), digits, None).cast(pa.float64())

    def seconds(hours: str, minutes: str) -> Any:
        return pc.add(_or_zero(number(hours), 3600), _or_zero(number(minutes), 60))

    month, day = pc.struct_field(part, "month"), pc.struct_field(part, "day")
    day = pc.if_else(pc.equal(day, ""), "1", day)
    dated = pc.binary_join_element_wise(month, day, "-")
    start = pc.strptime(dated, format="%Y-%m-%d", unit="s", error_is_null=True)
    west = pc.equal(pc.struct_field(part, "sign"), "-")
    zone = seconds("zone_hours", "zone_minutes")
    clock = pc.add(seconds("hours", "minutes"), _or_zero(number("seconds"), 1))
    clock = pc.add(clock, pc.if_else(west, zone, pc.negate(zone)))
    midnight = start.cast(pa.int64()).cast(pa.float64())
    return pc.divide(pc.add(midnight, clock), 86_400.0)


def truths(text: Any) -> Any:
    """1 for true, yes or 1, 0 for false, no or 0, null otherwise."""
    plain = pc.utf8_lower(canonical(text))
    false = pc.if_else(pc.is_in(plain, pa.array(["false", "no", "0"])), 0.0, None)
    return pc.if_else(pc.is_in(plain, pa.array(["true", "yes", "1"])), 1.0, false)


def canonical(text: Any) -> Any:
    """One spelling a value: "2.0" and "02" are "2", "True" is "true"."""
    number = pc.if_else(pc.match_substring_regex(text, NUMBER), text, None).cast(pa.float64())
    lower = pc.utf8_lower(text)
    word = pc.if_else(pc.is_in(lower, pa.array(["true", "false"])), lower, text)
    return pc.coalesce(number_text(number), word)


def number_text(values: Any) -> Any:
    """Floats as text, each by itself: whole ones without a decimal point."""
    whole = pc.equal(values, pc.round(values))
    whole = pc.fill_null(pc.and_(whole, pc.less(pc.abs(values), 2.0**53)), False)
    return pc.if_else(
        whole,
        pc.if_else(whole, values, 0.0).cast(pa.int64()).cast(pa.string()),
        values.cast(pa.string()),
    )


def _where(text: Any, pattern: str, instead: Any) -> Any:
    return pc.if_else(pc.fill_null(pc.match_substring_regex(text, pattern), False), instead, text)


def _or_zero(numbers: Any, factor: int) -> Any:
    return pc.multiply(pc.fill_null(numbers, 0.0), float(factor))
