r"""The kinds of secrets in text, one row per kind: self-identifying tokens, addresses, assignments.

The forms are those that services document for their keys. ``needs`` are texts of which one must
occur (in lower case) before the expression of the row is tried, because searching for fixed text is
a hundred times faster. The group ``secret``, or the whole match without one, is replaced if
``check`` accepts it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from holdfast.core.redaction.secret_checks import (
    PLACEHOLDER,
    has_digit,
    is_basic,
    is_identifier,
    is_in_prose,
    is_non_number,
    is_option_token,
    is_password_in_address,
    is_random,
    is_token,
    is_uncommon_word,
    is_value,
)

#: Where a token may begin: not after a letter or digit, except in a colour code, ``\n`` or ``%2F``.
_BEGIN = rb"(?:(?<![A-Za-z0-9])|(?<=[0-9;\[]m)|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2}))"
#: A value: quoted (with escaped quotes), otherwise up to the next blank, quote or ampersand.
_VALUE = (
    rb"(?:\"(?P<double>(?:[^\"\\\r\n]|\\[^\r\n])+)|'(?P<single>(?:[^'\\\r\n]|\\[^\r\n])+)"
    rb"|\\+\"(?P<nested>(?:(?!\\+\")[^\r\n])+)|\\+'(?P<inner>(?:(?!\\+')[^\r\n])+)"
    rb"|(?P<bare>(?:[^\s\"'&\\]|\\(?![\"'nrt])|(?<=\w)\\*[\"'](?=\w)|&(?![\w.-]+=))+))"
)
#: Between a name and its value: `=`, `==`, `: `, `"] = `, `: str = `, `', '`.
_IS = (
    rb"(?:\\*[\"'])?\]?[ \t]{0,4}(?:(?::[ \t]?(?:str|bytes|Optional\[str\]|str \| None)[ \t]?=)"
    rb"|=>|:=|[=!]?=|:"
    rb"|%3[Dd]|&quot;\s?:\s?&quot;|>(?=[^<>\s=(]+</)|(?<=[\"']),)"
    rb"[ \t]{0,16}(?:[rbf](?=[\"']))?"
)
#: The rest of a name, unless it is that of a file, a size or similar.
_REST = (
    rb"(?![A-Za-z_.-]{0,24}(?:file|path|dir|size|len|count|type|timeout|expir|parallelism))"
    rb"[\w.-]{0,40}"
)
_STRONG = (
    rb"(?:passw(?:or)?d|passphrase|secret|credential|api[_-]?key|access[_-]?key"
    rb"|private[_-]?key|account[_-]?key"
    rb"|signing[_-]?key|encryption[_-]?key|auth[_-]?key|subscription[_-]?key"
    rb"|shared[_-]?key|client[_-]?key|[_-]pwd"
    rb"|(?:auth|access|refresh|session|bearer|api|(?<![A-Za-z])id)[_-]?token(?!s|iz)"
    rb"|connection[_-]?string)"
)

#: The text before a password in a sentence.
_PROSE = (
    rb"(?:passw(?:or)?d|passphrase|passcode|\bpwd|\bsecret)s?[ \t]+"
    rb"(?:(?:for|of)[ \t][^\n:]{1,60}?)?"
    rb"(?:(?:is|was|are|were|to)(?:[ \t]now)?[ \t]?[:=]?[ \t]+|:[ \t]*)"
)

_KEYS = "api access private account signing encryption auth subscription shared client"
_TOKENS = "auth access refresh session bearer api id"
_STRONG_NEEDS = " ".join(
    (
        "passwd password passphrase secret credential _pwd -pwd",
        *(f"{word}{between}key" for word in _KEYS.split() for between in ("", "_", "-")),
        *(f"{word}{between}token" for word in _TOKENS.split() for between in ("", "_", "-")),
        *(f"connection{between}string" for between in ("", "_", "-")),
    )
)


@dataclass(frozen=True)
class SecretKind:
    """One kind: its name in the archive, the required texts by their common part, and its form."""

    name: str
    needs: Mapping[bytes, tuple[bytes, ...]]
    pattern: re.Pattern[bytes]
    check: Callable[[bytes], bool] = lambda _: True

    def spans(self, block: bytes, lowered: bytes) -> Iterator[tuple[int, int]]:
        """Yield the spans of secrets of this kind in ``block``; ``lowered`` is its lower case."""
        if not any(
            root in lowered and any(word in lowered for word in words)
            for root, words in self.needs.items()
        ):
            return
        for match in self.pattern.finditer(block):
            begin, end = _secret_span(match)
            found = block[begin:end]
            if found and not PLACEHOLDER.match(found) and self.check(found):
                yield begin, end


def _secret_span(match: re.Match[bytes]) -> tuple[int, int]:
    groups = match.groupdict()
    name = next(
        (
            name
            for name in ("secret", "double", "single", "nested", "inner", "bare")
            if groups.get(name)
        ),
        None,
    )
    begin, end = match.span(name or 0)
    if name == "bare":
        while end > begin and match.string[end - 1] in b",;)}]>":
            end -= 1
    return begin, end


def is_secret(name: str, found: bytes) -> bool:
    """Return whether ``found``, the value of ``name`` in plain data, is a secret."""
    if not found or PLACEHOLDER.match(found):
        return False
    if is_secret_name(name):
        return is_value(found)
    if "token" in name.lower() and is_token(found):
        return may_be_secret(name)
    return may_be_secret(name) and is_random(found)


def is_secret_name(name: str) -> bool:
    """Return whether every value of this key, variable or option is a secret."""
    return _STRONG_NAME.search(name.encode()) is not None


def may_be_secret(name: str) -> bool:
    """Return whether a value of this key, variable or option is a secret if it looks like one."""
    return _WEAK_NAME.search(name.encode()) is not None


_STRONG_NAME = re.compile(rb"(?i)" + _STRONG + _REST + rb"\Z|^(?:pass|pwd|auth|sig)$")
_WEAK_NAME = re.compile(
    rb"(?i)token(?!s|iz)|key(?!s)|auth|session|signature|jwt|webhook|cookie|dsn"
)


def _kind(
    name: str,
    needs: str,
    pattern: bytes,
    check: Callable[[bytes], bool] = lambda _: True,
    flags: int = 0,
) -> SecretKind:
    grouped: dict[bytes, tuple[bytes, ...]] = {}
    for word in needs.encode().split():
        root = next((root for root in _ROOTS if root in word), word)
        grouped[root] = (*grouped.get(root, ()), word)
    return SecretKind(name, grouped, re.compile(pattern, flags), check)


def _token(
    name: str, needs: str, pattern: bytes, check: Callable[[bytes], bool] = lambda _: True
) -> SecretKind:
    """Return a kind with a characteristic prefix."""
    return _kind(name, needs, _BEGIN + rb"(?P<secret>" + pattern + rb")", check)


_I = re.IGNORECASE
_LINES = re.MULTILINE
#: Common parts of required texts, which are searched first.
_ROOTS = (b"token", b"key", b"pass", b"_v1_")
#: In the order of redaction: the most specific first, so that the mark shows what was replaced.
KINDS = (
    _kind("aws-secret-key", "akia asia", rb"(?:AKIA|ASIA)[A-Z0-9]{12,}[^A-Za-z0-9\r\n]{1,8}"
        rb"(?P<secret>[A-Za-z0-9+/]{40})(?![A-Za-z0-9+/=])", is_random),
    _token("aws-access-key-id", "akia asia aroa aida agpa anpa abia acca",
        rb"(?:AKIA|ASIA|AROA|AIDA|AGPA|ANPA|ABIA|ACCA)[A-Z0-9]{12,}"),
    _kind("aws-secret-key", "secret", rb"aws.{0,12}secret[\w-]{0,24}" + _IS + _VALUE, is_value, _I),
    _kind("aws-session-token", "session", rb"session[_-]?token" + _IS + _VALUE, is_value, _I),
    _token("google-api-key", "aiza", rb"AIza[0-9A-Za-z_-]{30,}"),
    _token("google-oauth-token", "ya29. gocspx- 1//",
        rb"(?:ya29\.|GOCSPX-|1//0)[0-9A-Za-z_.-]{16,}"),
    _kind("azure-storage-key", "accountkey sharedaccesskey",
        rb"(?:AccountKey|SharedAccessKey)=(?P<secret>[^;\s\"']+)", flags=_I),
    _kind("azure-shared-access-signature", "sig=", rb"[?&;]sig=(?P<secret>[^&\s\"'<>]{16,})",
        flags=_I),
    _token("azure-client-secret", "q~", rb"[A-Za-z0-9_~.-]{3}\dQ~[A-Za-z0-9_~.-]{30,}"),
    _token("github-token", "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
        rb"(?:gh[pousr]_|github_pat_)[A-Za-z0-9_]{16,}"),
    _token("gitlab-token", "glpat- gldt- glrt- glcbt- glptt- glft- gloas-",
        rb"gl(?:pat|dt|rt|cbt|ptt|ft|oas)-[A-Za-z0-9_.-]{16,}"),
    _token("hugging-face-token", "hf_ api_org_", rb"(?:hf|api_org)_[A-Za-z0-9]{16,}"),
    _token("anthropic-key", "sk-ant-", rb"sk-ant-[A-Za-z0-9_-]{12,}"),
    _token("openai-key", "sk-",
        rb"sk-(?:proj-|svcacct-|admin-|None-|or-v1-|lf-)?[A-Za-z0-9_-]{16,}", has_digit),
    _kind("wandb-key", "wandb", rb"(?:wandb[._ -]?(?:api[._ -]?)?key|wandb\s+login(?:\s+--\S+)*"
        rb"|api\.wandb\.ai[^\n]{0,48}?password)"
        rb"[\"'\\]*\]?\s{0,4}[:=]?\s{0,4}[\"'\\]*(?P<secret>(?:local-)?[0-9a-f]{32,}|wandb_v1_\w+)",
        flags=_I),
    _token("wandb-key", "wandb_v1_", rb"wandb_v1_\w{16,}"),
    _token("slack-token", "xox xapp-", rb"(?:xox[abeoprsc]|xapp)-[A-Za-z0-9-]{10,}"),
    _kind("slack-webhook", "hooks.slack",
        rb"hooks\.slack(?:-gov)?\.com/(?P<secret>[A-Za-z]+/[A-Za-z0-9+/_-]{12,})"),
    _kind("discord-webhook", "/webhooks/", rb"/api(?:/v\d+)?/webhooks/(?P<secret>\d+/[\w-]{16,})"),
    _kind("discord-token", ".", _BEGIN + rb"(?P<secret>[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,})",
        has_digit),
    _kind("webhook", "hook", rb"hooks?/(?:[\w-]{1,20}/){0,2}(?P<secret>[\w-]{16,})", is_identifier,
        _I),
    _kind("teams-webhook", "webhook.office.com",
        rb"webhook\.office\.com/(?P<secret>[^\s\"'<>]{16,})"),
    _token("stripe-key", "_live_ _test_ whsec_",
        rb"(?:[srp]k_(?:live|test)_|whsec_)[A-Za-z0-9+/=]{10,}"),
    _token("twilio-key", "sk ac", rb"(?:SK|AC)[0-9a-f]{32}(?![0-9A-Za-z])"),
    _token("sendgrid-key", "sg.", rb"SG\.[\w-]{16,}\.[\w-]{16,}"),
    _token("mailgun-key", "key-", rb"key-[0-9a-f]{32}(?![0-9A-Za-z])"),
    _token("npm-token", "npm_", rb"npm_[A-Za-z0-9]{30,}"),
    _token("pypi-token", "pypi-", rb"pypi-[A-Za-z0-9_-]{16,}", has_digit),
    _token("docker-token", "dckr_", rb"dckr_(?:pat|oat)_[\w-]{16,}"),
    _kind("docker-auth", "auth",
        rb"[\"']auth\\?[\"']\s*:\s*\\?[\"'](?P<secret>[A-Za-z0-9+/=_-]{8,})"),
    _token("nvidia-key", "nvapi-", rb"nvapi-[\w-]{16,}"),
    _token("databricks-token", "dapi", rb"dapi[0-9a-f]{32}(?:-\d)?"),
    _token("model-service-key", "gsk_ r8_ pplx- xai- fw_ tgp_v1_",
        rb"(?:gsk_|r8_|pplx-|xai-|fw_|tgp_v1_)[A-Za-z0-9_-]{20,}", has_digit),
    _token("vault-token", "hvs. hvb. hvr.", rb"hv[sbr]\.[\w-]{16,}"),
    _token("digitalocean-token", "_v1_", rb"do[opr]_v1_[0-9a-f]{32,}"),
    _token("grafana-token", "glsa_ glc_", rb"(?:glsa_[A-Za-z0-9_]{20,}|glc_[A-Za-z0-9+/=]{20,})"),
    _token("service-token",
        "lin_api_ ntn_ pmak- shpat_ shpss_ sq0 nrak- tskey- rubygems_ dp.pt. pul- "
        "age-secret-key-1 atlasv1 rpa_ sbp_"
        " pcsk_ tvly- csk- sntry lsv2_ dt0c01. xkeysib- atatt absk",
        rb"(?:rpa_|sbp_|pcsk_|tvly-|csk-|sntry[sua]_|lsv2_[a-z]+_|dt0c01\.|xkeysib-|ATATT|ABSK"
        rb"|lin_api_|ntn_|PMAK-|shp(?:at|ss)_|sq0[a-z]{3}-|NRAK-"
        rb"|tskey-[a-z]+-|rubygems_|dp\.pt\.|pul-"
        rb"|AGE-SECRET-KEY-1|[A-Za-z0-9]{14}\.atlasv1\.)[A-Za-z0-9_=.-]{16,}", has_digit),
    _token("service-token", "secret_",
        rb"secret_[A-Za-z0-9_]{0,32}[A-Za-z0-9]{32,}(?:\.[A-Za-z0-9]{16,})?", has_digit),
    _token("cloud-key-id", "ltai akid aklt", rb"(?:LTAI|AKID|AKLT)[A-Za-z0-9]{12,}", has_digit),
    _kind("telegram-token", ":aa",
        rb"(?:(?<![A-Za-z0-9])|(?<=/bot))(?P<secret>\d{8,10}:AA[\w-]{32,})"),
    _token("jwt", "eyj", rb"eyJ[A-Za-z0-9_=-]{6,}\.[A-Za-z0-9_=-]{6,}(?:\.[A-Za-z0-9_=-]*)*"),
    # Neptune's key, among others
    _token("encoded-json", "eyj", rb"eyJ[A-Za-z0-9_+/-]{32,}={0,2}"),
    _kind("presigned-address", "x-amz- x-goog- signature= awsaccesskeyid=",
        rb"(?:X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)|[?&]Signature|AWSAccessKeyId)="
        rb"(?P<secret>[^&\s\"'<>\\]+)", flags=_I),
    _kind("database-address", "postgres mysql mariadb mongodb redis amqp mssql clickhouse",
        rb"(?:postgres(?:ql)?|mysql|mariadb|mongodb|rediss?|amqps?|mssql|clickhouse)(?:\+\w+)?://"
        rb"(?P<secret>[^\s@\"'<>/]*:[^\s\"'<>/?]*)@", flags=_I),
    _kind("password-in-address", "://", rb"://(?P<secret>[^\s/\"'<>?#@][^\s/\"'<>?#]*)@",
        is_password_in_address),
    _kind("netrc-password", "password", rb"(?:^|\blogin\s+\S+\s+(?:account\s+\S+\s+)?)\s*"
        rb"password[ \t]+(?P<secret>[^\s\"']+)(?=\s*$|\s+machine|[\"'])", is_value, _I | _LINES),
    _kind("pgpass-password", ":5432: :5433: :6432: :*:",
        rb"(?:^|[\s\"'=])(?![\w.-]+\.(?:py|cu|cpp|cc|h|hpp|pyx|c|js|rs|go):)"
        rb"[\w.*-]+:(?:543[23]|6432|\*):(?!\d+:)[^:\s]+:[^:\s]+:"
        rb"(?P<secret>[^\s:\"'][^\s\"']*)(?=\s*$|[\"'])", flags=_LINES),
    _kind("bearer-token", "bearer", rb"bearer[ \t]+(?P<secret>[A-Za-z0-9._~+/=-]{8,})", has_digit,
        _I),
    _kind("basic-authorization", "basic", rb"basic[ \t]+(?P<secret>[A-Za-z0-9+/=_-]{6,})", is_basic,
        _I),
    _kind("authorization-header", "authorization -key -token",
        rb"(?:(?:proxy-)?authorization|x-[a-z-]*(?:key|token|secret)|api-key"
        rb"|(?:private|job)-token)\\*[\"']?\s*[:=]\s*"
        rb"\\*[\"']?(?:(?:bearer|basic|token|digest|negotiate|apikey)\s+)?"
        rb"(?P<secret>[^\s\"'\\]{6,})", is_value, _I),
    _kind("cookie", "cookie",
        rb"cookie\\*[\"']?\s*[:=]\s*\\*[\"']?(?P<secret>[\w.-]+=[^\r\n\"'\\]+)", flags=_I),
    _kind("command-line-password", "login redis-cli openssl sudo ::add-mask::",
        rb"(?:\b(?:docker|podman|nerdctl|helm|oras|crane|skopeo|buildah|az)\b[^\n]{0,80}?\blogin\b"
        rb"[^\n]{0,160}?\s-p[ =]|\bredis-cli\b[^\n]{0,160}?\s-a[ =]"
        rb"|\bopenssl\b[^\n]{0,200}?\s(?:-k |-pass(?:in|out)? pass:)"
        rb"|::add-mask::|\becho[ ](?=\S+ ?\| ?sudo -S))[\"']?(?P<secret>[^\s\"'|]+)"),
    _kind("command-line-password", "sshpass curl --user mysql",
        rb"(?:sshpass\s+-p\s*|\bmysql\b[^\n]{0,80}?\s-p(?=\S)"
        rb"|\bcurl\b[^\n]{0,200}?\s(?:-u|--user)[ =]?[\"']?[^\s:\"']+:)"
        rb"[\"']?(?P<secret>[^\s\"']+)"),
    _kind("command-line-secret", "--",
        rb"--?[\w-]*" + _STRONG + _REST + rb"[\"']?(?:\s*,\s*|[ \t]+|=)(?![\"']?-)" + _VALUE,
        is_non_number, _I),
    _kind("command-line-secret", "token",
        rb"--?[\w-]*token(?!s|iz)[\w-]{0,16}[\"']?(?:\s*,\s*|[ \t]+|=)(?![\"']?-)" + _VALUE,
        is_option_token, _I),
    _kind("kubernetes-variable", "value", rb"name\\*[\"']?\s*:\s*\\*[\"']?[\w-]*(?:" + _STRONG
        + rb"|token)[\w-]*?\\*?[\"']?(?:\s|\\[nr])*,?"
        rb"(?:\s|\\[nr])*\\*[\"']?value\\*[\"']?\s*:\s*" + _VALUE, is_value, _I),
    _kind("password", _STRONG_NEEDS, _STRONG + _REST + _IS + _VALUE, is_value, _I),
    _kind("password", "_pass pass=", rb"(?:_pass|(?<![\w ])pass(?==))" + _IS + _VALUE,
        is_non_number, _I),
    _kind("password", ";pwd= ;\tpwd=", rb";\s?pwd\s?=\s?(?P<secret>[^;\s\"']+)", is_value, _I),
    _kind("password", "pass", rb"(?:^|\\n)[ \t]*pass[ \t]?=[ \t]?" + _VALUE, is_option_token,
        _LINES),
    _kind("password-hash", "$apr1$ $2a$ $2b$ $2y$ $5$ $6$ $y$ $1$ $argon2",
        rb"\$(?:apr1|2[aby]|[156y]|argon2id?)\$(?P<secret>[\w./$=,+-]{8,})"),
    _kind("password", "passw passphrase passcode pwd secret", _PROSE + _VALUE, is_in_prose, _I),
    _kind("password", "passw passphrase passcode pwd secret",
        _PROSE + rb"(?P<secret>[a-z]{4,})(?=[ \t]*(?:[.,;!)]*(?:$|\\n|[\"'])|[.;!)][ \t]))",
        is_uncommon_word, _I | _LINES),
    _kind("token", "token key credential",
        rb"(?:token|key|credentials?)[ \t]+(?:is|was|are|were|to)[ \t]?[:=]?[ \t]+" + _VALUE,
        is_random, _I),
    _kind("key", "api", rb"api[ _-]?key[ \t]+(?:(?:is|was|to)[ \t]+)?" + _VALUE, is_option_token,
        _I),
    _kind("token-variable", "_token= _pat=",
        rb"(?<![A-Za-z0-9])[A-Z0-9_]{0,40}_(?:TOKEN|PAT)=(?P<secret>[^\s\"'<\[&][^\s\"'&]{5,})",
        is_non_number),
    _kind("token-in-address", "token= key= pwd=",
        rb"[?&](?:[a-z]+[_-])?(?:token|key|pwd)=(?P<secret>[^\s\"'&<>\\]{4,})", is_non_number, _I),
    _kind("token", "token auth jwt webhook",
        rb"(?:token|_auth|jwt|webhook)(?!s|iz)[\w.-]{0,40}" + _IS + _VALUE, is_token, _I),
    _kind("key", "key session signature dsn",
        rb"(?:key|session|signature|dsn)(?!s\b)[\w-]{0,24}" + _IS + _VALUE, is_random, _I),
)  # fmt: skip
