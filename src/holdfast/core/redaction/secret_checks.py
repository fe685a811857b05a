"""Check what an expression matched: a secret, or an ordinary word or number in its place."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections import Counter
from itertools import pairwise

#: A placeholder instead of a secret.
PLACEHOLDER = re.compile(rb"[\"'\\]*(?:<redacted|<left out>|\*{3,}|\$[{(A-Za-z_]|%\(|\{)")
_EMPTY = re.compile(
    rb"[\"'\\]*(?:none|null|nil|true|false|yes|no|set|unset|str|bytes|not|is|required|missing|)"
    rb"[\"'\\]*",
    re.IGNORECASE,
)
_NUMBER = re.compile(rb"[-+]?[\d.,]+(?:e[-+]?\d+)?[a-z%/]{0,4}", re.IGNORECASE)
_UUID = re.compile(rb"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)


def has_digit(found: bytes) -> bool:
    """Return whether there is a digit; words joined by dashes (sk-learn-...) have none."""
    return any(48 <= byte <= 57 for byte in found)


def is_value(found: bytes) -> bool:
    """Return whether the value of a password is set."""
    return _EMPTY.fullmatch(found) is None


def is_non_number(found: bytes) -> bool:
    """Return whether a value is set and not a number (as in ``forward_pass=0.12``)."""
    return is_value(found) and _NUMBER.fullmatch(found) is None


def is_random(found: bytes) -> bool:
    """Return whether a value looks random: case and digits alternate, also within words."""
    if len(found) < 16 or not re.fullmatch(rb"[A-Za-z0-9+/_=~%-]+", found) or not has_digit(found):
        return False
    classes = [_character_class(byte) for byte in found]
    turns = sum(left != right for left, right in pairwise(classes) if left and right)
    return _entropy(found) >= 3.0 and turns >= 0.2 * len(found) and not _NUMBER.fullmatch(found)


def is_token(found: bytes) -> bool:
    """Return whether the value of a token has letters and digits, without blanks or brackets."""
    return bool(
        len(found) >= 12
        and re.fullmatch(rb"[A-Za-z0-9+/_=.~%:-]+", found)
        and sum(48 <= byte <= 57 for byte in found) >= 2
        and sum(chr(byte).isalpha() for byte in found) >= 2
        and not _NUMBER.fullmatch(found)
    )


def is_option_token(found: bytes) -> bool:
    """Return whether an argument of ``--token`` has 8 characters and a digit (not ``<pad>``)."""
    return (
        len(found) >= 8 and has_digit(found) and re.fullmatch(rb"[\w+/=.~%:-]+", found) is not None
    )


def is_basic(found: bytes) -> bool:
    """Return whether it is base64 of ``user:password``, not a word as in "basic configuration"."""
    try:
        return b":" in base64.b64decode(found + b"=" * (-len(found) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False


def is_password_in_address(found: bytes) -> bool:
    """Return whether the part between ``://`` and ``@`` has a colon, or is long with digits.

    ``git@`` and ``ubuntu@`` are user names.
    """
    return b":" in found or (len(found) >= 16 and has_digit(found))


def _character_class(byte: int) -> int:
    return 1 if 48 <= byte <= 57 else 2 if 65 <= byte <= 90 else 3 if 97 <= byte <= 122 else 0


def _entropy(found: bytes) -> float:
    """Return the Shannon entropy in bits per character."""
    size = len(found)
    return -sum(count / size * math.log2(count / size) for count in Counter(found).values())


#: Words after "the password is" that are not passwords.
_COMMON_WORDS = frozenset(
    b"a an any as asked at blank broken correct different empty encrypted exactly expired fine for"
    b" from given good here hidden in incorrect invalid it just known long missing needed never no"
    b" none not now null ok okay on only or optional plain private public read redacted rejected"
    b" required reset safe same secret sent set short shown stored taken that the there this to too"
    b" unchanged undefined unknown unset used valid very visible weak what where wrong your".split()
)


def is_in_prose(found: bytes) -> bool:
    """Return whether the text after "the password is" is in quotes or not a plain word."""
    return (
        len(found) >= 4
        and is_uncommon_word(found)
        and not (found.isalpha() and found[1:].islower())
    )


def is_uncommon_word(found: bytes) -> bool:
    """Return whether the text after "the password is" is not a common word like "wrong"."""
    return found.strip(b"\"'`.,;:!?()").lower() not in _COMMON_WORDS


def is_identifier(found: bytes) -> bool:
    """Return whether a part of an address grants access: it looks random, or is a UUID."""
    return is_random(found) or _UUID.search(found) is not None
