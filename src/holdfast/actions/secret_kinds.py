r"""What secrets look like in text, one row a kind: tokens that say what they are, addresses, headers, assignments.

The forms are those that the services document for their own keys. A row's ``needs`` are texts of which one must occur
(in lower case) before its expression is tried at all, because searching for a fixed text is a hundred times faster.
What is replaced is the group ``secret``, or the whole match where there is none; ``check`` looks at it once more.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

#: Where a token may begin: after anything but a letter or digit, after a colour code, an escape (\n) or one of %2F.
_BEGIN = rb"(?:(?<![A-Za-z0-9])|(?<=[0-9;\[]m)|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2}))"
_SAID = re.compile(rb"[\"'\\]*(?:<redacted|<left out>|\*{3,}|\$[{(A-Za-z_]|%\(|\{)")
_EMPTY = re.compile(
    rb"[\"'\\]*(?:none|null|nil|true|false|yes|no|set|unset|str|bytes|not|is|required|missing|)[\"'\\]*", re.IGNORECASE
)
_NUMBER = re.compile(rb"[-+]?[\d.,]+(?:e[-+]?\d+)?[a-z%/]{0,4}", re.IGNORECASE)
#: A value: in quotes to their end (escaped quotes are part of it), else to the next blank, quote or ampersand.
_VALUE = (
    rb"(?:\"(?P<double>(?:[^\"\\\r\n]|\\[^\r\n])+)|'(?P<single>(?:[^'\\\r\n]|\\[^\r\n])+)"
    rb"|\\+\"(?P<nested>(?:(?!\\+\")[^\r\n])+)|\\+'(?P<inner>(?:(?!\\+')[^\r\n])+)"
    rb"|(?P<bare>(?:[^\s\"'&\\]|\\(?![\"'nrt])|(?<=\w)\\*[\"'](?=\w)|&(?![\w.-]+=))+))"
)
#: Between a name and its value: `=`, `: `, `"] = `, `: str = `, `', '`.
_IS = (
    rb"(?:\\*[\"'])?\]?[ \t]{0,4}(?:(?::[ \t]?(?:str|bytes|Optional\[str\]|str \| None)[ \t]?=)|=>|:=|=|:"
    rb"|%3[Dd]|&quot;\s?:\s?&quot;|>(?=[^<>\s=(]+</)|(?<=[\"']),)"
    rb"[ \t]{0,16}(?:[rbf](?=[\"']))?"
)
#: What may follow the word in a name, unless the name is that of a file, a size or the like.
_REST = rb"(?![A-Za-z_.-]{0,24}(?:file|path|dir|size|len|count|type|timeout|expir|parallelism))[\w.-]{0,40}"
_STRONG = (
    rb"(?:passw(?:or)?d|passphrase|secret|credential|api[_-]?key|access[_-]?key|private[_-]?key|account[_-]?key"
    rb"|signing[_-]?key|encryption[_-]?key|auth[_-]?key|subscription[_-]?key|shared[_-]?key|client[_-]?key|[_-]pwd"
    rb"|(?:auth|access|refresh|session|bearer|api|(?<![A-Za-z])id)[_-]?token(?!s|iz)|connection[_-]?string)"
)

_KEYS = "api access private account signing encryption auth subscription shared client"
_TOKENS = "auth access refresh session bearer api id"
_STRONG_NEEDS = " ".join((
    "passwd password passphrase secret credential _pwd -pwd",
    *(f"{word}{between}key" for word in _KEYS.split() for between in ("", "_", "-")),
    *(f"{word}{between}token" for word in _TOKENS.split() for between in ("", "_", "-")),
    *(f"connection{between}string" for between in ("", "_", "-")),
))  # fmt: skip


@dataclass(frozen=True)
class SecretKind:
    """One kind: its name as the archive shows it, texts of which one must occur, by a part of them, and its form."""

    name: str
    needs: Mapping[bytes, tuple[bytes, ...]]
    pattern: re.Pattern[bytes]
    check: Callable[[bytes], bool] = lambda _: True

    def spans(self, block: bytes, lowered: bytes) -> Iterator[tuple[int, int]]:
        """Where secrets of this kind lie in ``block``, from the front; ``lowered`` is its lower case."""
        if not any(root in lowered and any(word in lowered for word in words) for root, words in self.needs.items()):
            return
        for match in self.pattern.finditer(block):
            begin, end = _secret(match)
            found = block[begin:end]
            if found and not _SAID.match(found) and self.check(found):
                yield begin, end


def _secret(match: re.Match[bytes]) -> tuple[int, int]:
    groups = match.groupdict()
    name = next((name for name in ("secret", "double", "single", "nested", "inner", "bare") if groups.get(name)), None)
    begin, end = match.span(name or 0)
    if name == "bare":
        while end > begin and match.string[end - 1] in b",;)}]>":
            end -= 1
    return begin, end


# ---- looking once more


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


def is_secret(name: str, found: bytes) -> bool:
    """Whether ``found``, the value of something called ``name`` in plain data, has to go."""
    if not found or _SAID.match(found):
        return False
    if is_secret_name(name):
        return is_value(found)
    if "token" in name.lower() and is_token(found):
        return may_be_secret(name)
    return may_be_secret(name) and is_random(found)


def is_secret_name(name: str) -> bool:
    """A key, variable or option whose value is a secret whatever it looks like."""
    return _STRONG_NAME.search(name.encode()) is not None


def may_be_secret(name: str) -> bool:
    """A key, variable or option whose value is a secret where it looks like one."""
    return _WEAK_NAME.search(name.encode()) is not None


_STRONG_NAME = re.compile(rb"(?i)" + _STRONG + _REST + rb"\Z|^(?:pass|pwd|auth|sig)$")
_WEAK_NAME = re.compile(rb"(?i)token(?!s|iz)|key(?!s)|auth|session|signature|jwt|webhook|cookie|dsn")


def _kind(
    name: str, needs: str, pattern: bytes, check: Callable[[bytes], bool] = lambda _: True, flags: int = 0
) -> SecretKind:
    grouped: dict[bytes, tuple[bytes, ...]] = {}
    for word in needs.encode().split():
        root = next((root for root in _ROOTS if root in word), word)
        grouped[root] = (*grouped.get(root, ()), word)
    return SecretKind(name, grouped, re.compile(pattern, flags), check)


def _token(name: str, needs: str, pattern: bytes, check: Callable[[bytes], bool] = lambda _: True) -> SecretKind:
    """A kind that says by its beginning what it is."""
    return _kind(name, needs, _BEGIN + rb"(?P<secret>" + pattern + rb")", check)


_I = re.IGNORECASE
_LINES = re.MULTILINE
#: Texts that many others hold, and that are looked for first.
_ROOTS = (b"token", b"key", b"pass", b"_v1_")
#: In the order in which they are looked for: the most telling first, so that the archive says what was there.
KINDS = (
    _token("aws-access-key-id", "akia asia aroa aida agpa anpa abia acca",
           rb"(?:AKIA|ASIA|AROA|AIDA|AGPA|ANPA|ABIA|ACCA)[A-Z0-9]{12,}"),
    _kind("aws-secret-key", "secret",
          rb"aws.{0,12}secret[\w-]{0,24}" + _IS + _VALUE, is_value, _I),
    _kind("aws-session-token", "session", rb"session[_-]?token" + _IS + _VALUE, is_value, _I),
    _token("google-api-key", "aiza", rb"AIza[0-9A-Za-z_-]{30,}"),
    _token("google-oauth-token", "ya29. gocspx- 1//", rb"(?:ya29\.|GOCSPX-|1//0)[0-9A-Za-z_.-]{16,}"),
    _kind("azure-storage-key", "accountkey sharedaccesskey",
          rb"(?:AccountKey|SharedAccessKey)=(?P<secret>[^;\s\"']+)", flags=_I),
    _kind("azure-shared-access-signature", "sig=", rb"[?&;]sig=(?P<secret>[^&\s\"'<>]{16,})", flags=_I),
    _token("azure-client-secret", "q~", rb"[A-Za-z0-9_~.-]{3}\dQ~[A-Za-z0-9_~.-]{30,}"),
    _token("github-token", "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_", rb"(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{16,}"),
    _token("gitlab-token", "glpat- gldt- glrt- glcbt- glptt- glft- gloas-",
           rb"gl(?:pat|dt|rt|cbt|ptt|ft|oas)-[A-Za-z0-9_.-]{16,}"),
    _token("hugging-face-token", "hf_ api_org_", rb"(?:hf|api_org)_[A-Za-z0-9]{16,}"),
    _token("anthropic-key", "sk-ant-", rb"sk-ant-[A-Za-z0-9_-]{12,}"),
    _token("openai-key", "sk-", rb"sk-(?:proj-|svcacct-|admin-|None-|or-v1-|lf-)?[A-Za-z0-9_-]{16,}", has_digit),
    _kind("wandb-key", "wandb",
          rb"(?:wandb[._ -]?(?:api[._ -]?)?key|wandb\s+login(?:\s+--\S+)*|api\.wandb\.ai[^\n]{0,48}?password)"
          rb"[\"'\\]*\]?\s{0,4}[:=]?\s{0,4}[\"'\\]*(?P<secret>(?:local-)?[0-9a-f]{32,}|wandb_v1_\w+)", flags=_I),
    _token("wandb-key", "wandb_v1_", rb"wandb_v1_\w{16,}"),
    _token("slack-token", "xox xapp-", rb"(?:xox[abeoprsc]|xapp)-[A-Za-z0-9-]{10,}"),
    _kind("slack-webhook", "hooks.slack", rb"hooks\.slack(?:-gov)?\.com/(?P<secret>[A-Za-z]+/[A-Za-z0-9+/_-]{12,})"),
    _kind("discord-webhook", "/api/webhooks/", rb"/api/webhooks/(?P<secret>\d+/[\w-]{16,})"),
    _kind("teams-webhook", "webhook.office.com", rb"webhook\.office\.com/(?P<secret>[^\s\"'<>]{16,})"),
    _token("stripe-key", "_live_ _test_ whsec_", rb"(?:[srp]k_(?:live|test)_|whsec_)[A-Za-z0-9+/=]{10,}"),
    _token("twilio-key", "sk ac", rb"(?:SK|AC)[0-9a-f]{32}(?![0-9A-Za-z])"),
    _token("sendgrid-key", "sg.", rb"SG\.[\w-]{16,}\.[\w-]{16,}"),
    _token("mailgun-key", "key-", rb"key-[0-9a-f]{32}(?![0-9A-Za-z])"),
    _token("npm-token", "npm_", rb"npm_[A-Za-z0-9]{30,}"),
    _token("pypi-token", "pypi-", rb"pypi-[A-Za-z0-9_-]{16,}", has_digit),
    _token("docker-token", "dckr_", rb"dckr_(?:pat|oat)_[\w-]{16,}"),
    _kind("docker-auth", "auth", rb"[\"']auth\\?[\"']\s*:\s*\\?[\"'](?P<secret>[A-Za-z0-9+/=_-]{8,})"),
    _token("nvidia-key", "nvapi-", rb"nvapi-[\w-]{16,}"),
    _token("databricks-token", "dapi", rb"dapi[0-9a-f]{32}(?:-\d)?"),
    _token("model-service-key", "gsk_ r8_ pplx- xai- fw_ tgp_v1_",
           rb"(?:gsk_|r8_|pplx-|xai-|fw_|tgp_v1_)[A-Za-z0-9_-]{20,}", has_digit),
    _token("vault-token", "hvs. hvb. hvr.", rb"hv[sbr]\.[\w-]{16,}"),
    _token("digitalocean-token", "_v1_", rb"do[opr]_v1_[0-9a-f]{32,}"),
    _token("grafana-token", "glsa_ glc_", rb"(?:glsa_[A-Za-z0-9_]{20,}|glc_[A-Za-z0-9+/=]{20,})"),
    _token("service-token",
           "lin_api_ ntn_ pmak- shpat_ shpss_ sq0 nrak- tskey- rubygems_ dp.pt. pul- age-secret-key-1 atlasv1",
           rb"(?:lin_api_|ntn_|PMAK-|shp(?:at|ss)_|sq0[a-z]{3}-|NRAK-|tskey-[a-z]+-|rubygems_|dp\.pt\.|pul-"
           rb"|AGE-SECRET-KEY-1|[A-Za-z0-9]{14}\.atlasv1\.)[A-Za-z0-9_=-]{16,}"),
    _token("telegram-token", ":aa", rb"\d{8,10}:AA[\w-]{32,}"),
    _token("jwt", "eyj", rb"eyJ[A-Za-z0-9_=-]{6,}\.[A-Za-z0-9_=-]{6,}(?:\.[A-Za-z0-9_=-]*)*"),
    _token("encoded-json", "eyj", rb"eyJ[A-Za-z0-9_+/-]{32,}={0,2}"),  # Neptune's key, among others
    _kind("presigned-address", "x-amz- x-goog- signature= awsaccesskeyid=",
          rb"(?:X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)|[?&]Signature|AWSAccessKeyId)="
          rb"(?P<secret>[^&\s\"'<>\\]+)",
          flags=_I),
    _kind("database-address", "postgres mysql mariadb mongodb redis amqp mssql clickhouse",
          rb"(?:postgres(?:ql)?|mysql|mariadb|mongodb|rediss?|amqps?|mssql|clickhouse)(?:\+\w+)?://"
          rb"(?P<secret>[^\s@\"'<>/]*:[^\s\"'<>/?]*)@", flags=_I),
    _kind("password-in-address", "://", rb"://(?P<secret>[^\s/\"'<>?#@][^\s/\"'<>?#]*)@", is_password_in_address),
    _kind("netrc-password", "password",
          rb"(?:^|\blogin\s+\S+\s+)\s*password[ \t]+(?P<secret>[^\s\"']+)(?=\s*$|\s+machine|[\"'])",
          is_value, _I | _LINES),
    _kind("pgpass-password", ":5432: :5433: :6432: :*:",
          rb"(?:^|[\s\"'=])(?![\w.-]+\.(?:py|cu|cpp|cc|h|hpp|pyx|c|js|rs|go):)[\w.*-]+:(?:543[23]|6432|\*):(?!\d+:)[^:\s]+:[^:\s]+:"
          rb"(?P<secret>[^\s:\"'][^\s\"']*)(?=\s*$|[\"'])", flags=_LINES),
    _kind("bearer-token", "bearer", rb"bearer[ \t]+(?P<secret>[A-Za-z0-9._~+/=-]{8,})", has_digit, _I),
    _kind("basic-authorization", "basic", rb"basic[ \t]+(?P<secret>[A-Za-z0-9+/=_-]{6,})", is_basic, _I),
    _kind("authorization-header", "authorization -key -token",
          rb"(?:(?:proxy-)?authorization|x-[a-z-]*(?:key|token|secret)|api-key|(?:private|job)-token)\\*[\"']?\s*[:=]\s*"
          rb"\\*[\"']?(?:(?:bearer|basic|token|digest|negotiate|apikey)\s+)?(?P<secret>[^\s\"'\\]{6,})", is_value, _I),
    _kind("cookie", "cookie", rb"cookie\\*[\"']?\s*[:=]\s*\\*[\"']?(?P<secret>[\w.-]+=[^\r\n\"'\\]+)", flags=_I),
    _kind("command-line-password", "sshpass curl --user mysql",
          rb"(?:sshpass\s+-p\s*|\bmysql\b[^\n]{0,80}?\s-p(?=\S)"
          rb"|\bcurl\b[^\n]{0,200}?\s(?:-u|--user)[ =]?[\"']?[^\s:\"']+:)"
          rb"[\"']?(?P<secret>[^\s\"']+)"),
    _kind("command-line-secret", "--",
          rb"--?[\w-]*" + _STRONG + _REST + rb"[\"']?(?:\s*,\s*|[ \t]+|=)(?![\"']?-)" + _VALUE, is_no_number, _I),
    _kind("command-line-secret", "token",
          rb"--?[\w-]*token(?!s|iz)[\w-]{0,16}[\"']?(?:\s*,\s*|[ \t]+|=)(?![\"']?-)" + _VALUE, is_option_token, _I),
    _kind("kubernetes-variable", "value",
          rb"name\\*[\"']?\s*:\s*\\*[\"']?[\w-]*(?:" + _STRONG + rb"|token)[\w-]*\\*[\"']?\s*,?\s*"
          rb"\\*[\"']?value\\*[\"']?\s*:\s*" + _VALUE, is_value, _I),
    _kind("password", _STRONG_NEEDS,
          _STRONG + _REST + _IS + _VALUE, is_value, _I),
    _kind("password", "_pass pass=", rb"(?:_pass|(?<![\w ])pass(?==))" + _IS + _VALUE, is_no_number, _I),
    _kind("token-variable", "_token= _pat=",
          rb"(?<![A-Za-z0-9])[A-Z0-9_]{0,40}_(?:TOKEN|PAT)=(?P<secret>[^\s\"'<\[&][^\s\"'&]{5,})", is_no_number),
    _kind("token-in-address", "token= key= pwd=",
          rb"[?&](?:[a-z]+[_-])?(?:token|key|pwd)=(?P<secret>[^\s\"'&<>\\]{4,})", is_no_number, _I),
    _kind("token", "token auth jwt webhook",
          rb"(?:token|_auth|jwt|webhook)(?!s|iz)[\w.-]{0,40}" + _IS + _VALUE, is_token, _I),
    _kind("key", "key session signature dsn",
          rb"(?:key|session|signature|dsn)(?!s\b)[\w-]{0,24}" + _IS + _VALUE, is_random, _I),
)  # fmt: skip
