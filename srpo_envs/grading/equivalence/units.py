"""Units of measure as exact factors over base units, and the nouns that may follow a number."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

Unit = tuple[tuple[tuple[str, int], ...], Fraction]
"""Sorted (base unit, exponent) pairs, and the factor that converts to them."""

PERCENT: Unit = ((("%", 1),), Fraction(1))
DEGREE: Unit = ((("deg", 1),), Fraction(1))
RADIAN: Unit = ((("rad", 1),), Fraction(1))
DOLLAR: Unit = ((("dollar", 1),), Fraction(1))
CURRENCIES: Mapping[str, Unit] = {
    "$": DOLLAR,
    "€": ((("euro", 1),), Fraction(1)),
    "£": ((("pound sterling", 1),), Fraction(1)),
    "¥": ((("yuan", 1),), Fraction(1)),
}

_TABLE = """
m meter metre meters metres 米 = m 1
cm centimeter centimetre centimeters centimetres 厘米 = m 1/100
mm millimeter millimetre millimeters millimetres 毫米 = m 1/1000
km kilometer kilometre kilometers kilometres 千米 公里 = m 1000
dm decimeter decimeters 分米 = m 1/10
nm nanometer nanometers = m 1/1000000000
in inch inches = m 254/10000
ft foot feet = m 3048/10000
yd yard yards = m 9144/10000
mi mile miles = m 1609344/1000
g gram grams 克 = g 1
kg kilogram kilograms 千克 公斤 = g 1000
mg milligram milligrams 毫克 = g 1/1000
lb lbs pound pounds = g 45359237/100000
oz ounce ounces = g 45359237/1600000
s sec secs second seconds 秒 = s 1
ms millisecond milliseconds = s 1/1000
min mins minute minutes 分钟 = s 60
h hr hrs hour hours 小时 = s 3600
day days 天 = s 86400
week weeks = s 604800
month months = month 1
yr yrs year years 年 = month 12
L l liter liters litre litres 升 = m^3 1/1000
mL ml milliliter milliliters millilitre millilitres 毫升 = m^3 1/1000000
gal gallon gallons = gallon 1
dollar dollars usd = dollar 1
cent cents = dollar 1/100
euro euros = euro 1
yuan rmb 元 = yuan 1
yen = yen 1
deg degree degrees 度 = deg 1
rad radian radians = rad 1
percent percents pct = % 1
N newton newtons = N 1
J joule joules = J 1
kJ kilojoule kilojoules = J 1000
W watt watts = W 1
kW kilowatt kilowatts = W 1000
Pa pascal pascals = Pa 1
Hz hertz = Hz 1
V volt volts = V 1
A ampere amperes amp amps = A 1
K kelvin = K 1
mol mole moles = mol 1
eV = eV 1
cal calorie calories = cal 1
kcal = cal 1000
mph = m/s 44704/100000
kph kmh = m/s 5/18
"""


def _read_table() -> dict[str, Unit]:
    table: dict[str, Unit] = {}
    for line in _TABLE.strip().splitlines():
        names, definition = line.split(" = ")
        base, factor = definition.split()
        dimensions = {"m^3": (("m", 3),), "m/s": (("m", 1), ("s", -1))}.get(base, ((base, 1),))
        for name in names.split():
            table[name] = (dimensions, Fraction(factor))
    areas = {"平方": 2, "立方": 3}
    for prefix, exponent in areas.items():
        for name in ("米", "厘米", "毫米", "千米", "分米"):
            table[prefix + name] = power(table[name], exponent)
    return table


def power(unit: Unit, exponent: int) -> Unit:
    """Return a unit raised to an integer power."""
    dimensions, factor = unit
    return tuple((name, count * exponent) for name, count in dimensions), factor**exponent


def product(left: Unit, right: Unit) -> Unit:
    """Return the product of two units."""
    counts = dict(left[0])
    for name, count in right[0]:
        counts[name] = counts.get(name, 0) + count
    return tuple(sorted((name, count) for name, count in counts.items() if count)), left[1] * right[1]


UNITS: Mapping[str, Unit] = _read_table()


def find_unit(word: str) -> Unit | None:
    """Return the unit of a word; full names may be in any case, symbols may not."""
    return UNITS.get(word) or (UNITS.get(word.lower()) if len(word) > 2 else None)


def is_unit(word: str) -> bool:
    """Whether a word names a unit of the table."""
    return find_unit(word) is not None


def noun(word: str) -> Unit:
    """Return the unit that counts things: 'apples' and 'apple' are the same one."""
    name = word.casefold()
    for plural, singular in (("ies", "y"), ("sses", "ss"), ("xes", "x"), ("ches", "ch"), ("shes", "sh"), ("s", "")):
        if name.endswith(plural) and len(name) > len(plural) + 1 and not name.endswith("ss"):
            name = name.removesuffix(plural) + singular
            break
    return ((name, 1),), Fraction(1)
