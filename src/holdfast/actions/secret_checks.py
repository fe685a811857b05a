"""Looks once more at what an expression found: is it a secret, or a word or number that stands where one may?"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections import Counter
from itertools import pairwise

#: What stands in a secret's place already.
SAID = re.compile(rb"[\"'\\]*(?:<redacted|<left out>|\*{3,}|\$[{(A-Za-z_]|%\(|\{)")
_EMPTY = re.compile(
    rb"[\"'\\]*(?:none|null|nil|true|false|yes|no|set|unset|str|bytes|not|is|required|missing|)[\"'\\]*", re.IGNORECASE
)
_NUMBER = re.compile(rb"[-+]?[\d.,]+(?:e[-+]?\d+)?[a-z%/]{0,4}", re.IGNORECASE)
_UUID = re.compile(rb"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)


def has_digit(found: bytes) -> bool:
    """A token has digits; words joined by dashes (sk-learn-...) have none."""
    return any(48 <= byte <= 57 for byte in found)


def is_value(found: bytes) -> bool:
    """What stands beside the word password: anything but nothing."""
    return _EMPTY.fullmatch(found) is None


def is_no_number(found: bytes) -> bool:
    """As :func:`is_value`, beside words that also name times and results (forward_pass=0.12)."""
    return is_value(found) and _NUMBER.fullmatch(found) is None


def is_random(found: bytes) -> bool:
    """Drawn by lot and not thought up: letters, capitals and digits take turns inside of words, too."""
    if len(found) < 16 or not re.fullmatch(rb"[A-Za-z0-9+/_=~%-]+", found) or not has_digit(found):
        return False
    classes = [_class(byte) for byte in found]
    turns = sum(left != right for left, right in pairwise(classes) if left and right)
    return _entropy(found) >= 3.0 and turns >= 0.2 * len(found) and not _NUMBER.fullmatch(found)


def is_token(found: bytes) -> bool:
    """Beside the word token, letters with digits are enough, where no blank or bracket is between them."""
    return bool(
        len(found) >= 12
        and re.fullmatch(rb"[A-Za-z0-9+/_=.~%:-]+", found)
        and sum(48 <= byte <= 57 for byte in found) >= 2
        and sum(chr(byte).isalpha() for byte in found) >= 2
        and not _NUMBER.fullmatch(found)
    )


def is_option_token(found: bytes) -> bool:
    """Behind the option --token: eight characters and a digit (``--pad-token <pad>`` is another thing)."""
    return len(found) >= 8 and has_digit(found) and re.fullmatch(rb"[\w+/=.~%:-]+", found) is not None


def is_basic(found: bytes) -> bool:
    """Base64 of ``user:password``, not the second word of "basic configuration"."""
    try:
        return b":" in base64.b64decode(found + b"=" * (-len(found) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False


def is_password_in_address(found: bytes) -> bool:
    """The part between ``://`` and ``@``: with a colon, or long with digits (``git@`` and ``ubuntu@`` are names)."""
    return b":" in found or (len(found) >= 16 and has_digit(found))


def _class(byte: int) -> int:
    return 1 if 48 <= byte <= 57 else 2 if 65 <= byte <= 90 else 3 if 97 <= byte <= 122 else 0


def _entropy(found: bytes) -> float:
    """Shannon's, in bits a character."""
    size = len(found)
    return -sum(count / size * math.log2(count / size) for count in Counter(found).values())


#: Words that follow "the password is" and are none.
_NO_PASSWORD = frozenset(
    b"a an any as asked at blank broken correct different empty encrypted exactly expired fine for from given good here"
    b" hidden in incorrect invalid it just known long missing needed never no none not now null ok okay on only or"
    b" optional plain private public read redacted rejected required reset safe same secret sent set short shown stored"
    b" taken that the there this to too unchanged undefined unknown unset used valid very visible weak what where wrong"
    b" your".split()
)


def is_in_prose(found: bytes) -> bool:
    """Behind "the password is": anything that is no plain word, or in quotes."""
    return len(found) >= 4 and is_no_usual_word(found) and not (found.isalpha() and found[1:].islower())


def is_no_usual_word(found: bytes) -> bool:
    """At the end of "the password is …": anything but what is commonly said of passwords."""
    return found.strip(b"\"'`.,;:!?()").lower() not in _NO_PASSWORD


def is_identifier(found: bytes) -> bool:
    """A part of an address that opens a door: drawn by lot, or a UUID."""
    return is_random(found) or _UUID.search(found) is not None
