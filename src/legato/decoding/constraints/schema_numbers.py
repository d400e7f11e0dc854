"""Numbers in a JSON schema: bounds that `llguidance` compares exactly, and digits that make a number fit.

`llguidance` reads numbers as doubles, and one of more than 15 digits with an error in its last bit. A bound with more
is rounded inwards, so that what fits it fits the schema's own; a `const` or `enum` with more is refused, since no
other value stands for it. Multiples are counted digit by digit, exactly, with a step of 32 bits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, Final

from legato.decoding.constraints.schema_sizes import PARTS
from legato.errors import ConfigError, brief

MAX_DIGITS: Final = 15  # that any double tells apart
MAX_PLACES: Final = 22  # behind the point, with which a literal is read without rounding
MAX_INTEGER: Final = 1 << 53  # up to which each integer is a double
MAX_STEP: Final = (1 << 32) - 1  # of multiples, in units of the last place
ROUNDING: Final = {
    "minimum": ROUND_CEILING,
    "exclusiveMinimum": ROUND_CEILING,
    "maximum": ROUND_FLOOR,
    "exclusiveMaximum": ROUND_FLOOR,
}
VALUES: Final = ("const", "enum")  # keys of values, which are no schemas
MERGING: Final = ("allOf", "anyOf", "oneOf", "$ref", "patternProperties")  # in which steps become a common multiple
NUMBER_END: Final = re.compile(r"(\d*)(\.?)(\d*)\Z")


def exact_bounds(schema: Any) -> Any:
    """A schema whose numbers are all compared exactly; what fits it fits the one that is given.

    >>> exact_bounds({"minimum": 0.5, "maximum": 9007199254740995, "exclusiveMinimum": 2**60})
    {'minimum': 1152921504606850000, 'maximum': 9007199254740990}
    """
    if isinstance(schema, list):
        return [exact_bounds(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    for key in VALUES:
        _check_values(key, schema.get(key))
    exact = {key: _exact_part(key, part) for key, part in schema.items()}
    for key, rounding in ROUNDING.items():
        if _is_number(schema.get(key)):
            _round_bound(exact, key, rounding)
    return exact


def _exact_part(key: str, part: Any) -> Any:
    if key in VALUES:
        return part
    if key in PARTS and isinstance(part, Mapping):
        return {name: exact_bounds(schema) for name, schema in part.items()}
    return exact_bounds(part)


def _round_bound(part: dict[str, Any], key: str, rounding: str) -> None:
    bound, is_lower = Decimal(str(part.pop(key))), rounding == ROUND_CEILING
    inclusive = "minimum" if is_lower else "maximum"
    if key != inclusive and abs(bound) < MAX_INTEGER and _is_exact(bound):
        part[key] = _json_number(bound)
        return
    if key != inclusive and abs(bound) >= MAX_INTEGER:  # where doubles have no room for what is next to it
        bound = Decimal(int(bound) + (1 if is_lower else -1))
    if not _is_exact(bound):
        bound = Context(prec=MAX_DIGITS, rounding=rounding).plus(bound)
        if _places(bound) > MAX_PLACES:
            bound = bound.quantize(Decimal(1).scaleb(-MAX_PLACES), rounding=rounding)
    other = part.get(inclusive)
    if _is_number(other):
        bound = (max if is_lower else min)(bound, Decimal(str(other)))
    part[inclusive] = _json_number(bound)


def steps(schema: Any) -> list[Decimal]:
    """The steps that a schema's numbers go by (`multipleOf`), and the one that all of them share.

    >>> steps({"allOf": [{"multipleOf": 0.5}, {"multipleOf": 3}]})
    [Decimal('0.5'), Decimal('3'), Decimal('3.0')]
    """
    keys: set[str] = set()
    found = list(dict.fromkeys(_steps(schema, keys)))
    if not found:
        return []
    scale = 10 ** max(map(_places, found))
    counts = [int(step * scale) for step in found]
    common = math.lcm(*counts)
    groups = [counts] if not keys.isdisjoint(MERGING) else [[count] for count in counts]
    if any(math.lcm(scale, *group) > MAX_STEP for group in groups):
        listed = brief(", ".join(map(str, found)), 100)
        raise ConfigError(f"the JSON schema cannot be used: 'multipleOf' of {listed} makes too large a step")
    return [*found, Decimal(common).scaleb(-max(map(_places, found)))] if len(found) > 1 else found


def _steps(part: Any, keys: set[str]) -> Iterator[Decimal]:
    if isinstance(part, list):
        for other in part:
            yield from _steps(other, keys)
    elif isinstance(part, Mapping):
        keys.update(part)
        step = part.get("multipleOf")
        if _is_number(step) and step != 0:
            yield abs(Decimal(str(step)))
        for key, other in part.items():
            if key not in VALUES:
                named = key in PARTS and isinstance(other, Mapping)
                yield from _steps(list(other.values()) if named else other, keys)


def completions(text: str, of_steps: Sequence[Decimal]) -> Iterator[str]:
    """Digits that may make a value of the number that a text ends with: a multiple of a step, or none that is zero.

    >>> next(completions('{"n": -12', [Decimal(7919)])), next(completions("0.2", [Decimal("0.05")]))
    ('6704', '0')
    """
    match = NUMBER_END.search(text)
    assert match is not None
    whole, point, fraction = match.groups()
    number = int(whole + fraction or "0")
    for step in of_steps:
        places = _places(step)
        units = int(step.scaleb(places))
        if point:
            counts = range(places - len(fraction), places - len(fraction) + 1)
        else:
            units //= math.gcd(units, 10**places)
            counts = range(1, len(str(units)) + 1)
        for count in counts:
            if count > 0 and (rest := -number * 10**count % units) < 10**count:
                yield f"{rest:0{count}}"
    yield from "123456789"


def _check_values(key: str, value: Any) -> None:
    """Refuse a number among values that is not compared exactly."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            _check_values(key, part)
    elif _is_number(value) and not _is_exact(Decimal(str(value))):
        raise ConfigError(
            f"the JSON schema cannot be used: {brief(value)} in '{key}' has more digits than are compared exactly "
            f"({MAX_DIGITS}, and integers up to 2^53); write it as a string"
        )


def _is_number(value: Any) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, float) and math.isfinite(value)
    )


def _is_exact(number: Decimal) -> bool:
    if number == number.to_integral_value() and abs(number) <= MAX_INTEGER:
        return True
    digits = "".join(map(str, number.as_tuple().digits)).strip("0")
    return len(digits) <= MAX_DIGITS and _places(number) <= MAX_PLACES


def _places(number: Decimal) -> int:
    """Digits behind the point, the last of them no zero."""
    if number == number.to_integral_value():
        return 0
    digits, exponent = number.as_tuple().digits, number.as_tuple().exponent
    assert isinstance(exponent, int)
    return -exponent - next(place for place, digit in enumerate(reversed(digits)) if digit)


def _json_number(number: Decimal) -> int | float:
    return int(number) if number == number.to_integral_value() else float(number)
